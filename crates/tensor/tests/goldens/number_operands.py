"""Writes number_operands.json: results of PyTorch on the CPU where one operand is a tensor without dimensions.

    python number_operands.py > number_operands.json

Operands are chosen such that it shows whether that tensor is rounded to the dtype of the others first.
"""

import json

import torch

NUMBERS = [0.1234567, -2.0014648, 3.1415926]
OPS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "eq": torch.eq,
    "lt": torch.lt,
    "lerp": lambda a, n: torch.lerp(a, a * 3, n),
    "addcmul": lambda a, n: torch.addcmul(a, a, n, value=1),
}


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


cases = []
for dtype in (torch.float16, torch.bfloat16):
    values = torch.tensor([0.1, -0.3, 1.7, 2.5, -5.1, 12.3, 100.7, -0.0123], dtype=dtype)
    for other in (torch.float32, torch.float64):
        for op, function in OPS.items():
            for number in NUMBERS:
                scalar = torch.tensor(number, dtype=other)
                for reversed_ in (False, True):
                    if reversed_ and op not in ("add", "sub", "mul", "div", "maximum", "remainder", "lt"):
                        continue
                    out = function(scalar, values) if reversed_ else function(values, scalar)
                    cases.append({
                        "op": op,
                        "dtype": dtype_name(dtype),
                        "number": scalar.item(),
                        "number_dtype": dtype_name(other),
                        "number_first": reversed_,
                        "input": values.double().tolist(),
                        "output": out.double().tolist(),
                        "output_dtype": dtype_name(out.dtype),
                    })
print('{"source": "PyTorch %s, CPU", "cases": [' % torch.__version__.split("+")[0])
print(",\n".join(json.dumps(case) for case in cases))
print("]}")
