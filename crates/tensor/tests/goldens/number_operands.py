"""Writes number_operands.json: results of PyTorch on the CPU where one operand is a number or a tensor without dimensions.

    python number_operands.py > number_operands.json

Operands are chosen such that it shows whether that operand is rounded to the dtype of the others first.
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
    "floor_divide": torch.floor_divide,
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    # The base is positive and small, so that all powers are finite.
    "pow": lambda a, b: torch.pow(abs(a) / 16, abs(b)),
    "eq": torch.eq,
    "lt": torch.lt,
    "lerp": lambda a, n: torch.lerp(a, a * 3, n),
    "addcmul": lambda a, n: torch.addcmul(a, a, n, value=1),
}
REVERSED = ("add", "sub", "mul", "div", "maximum", "remainder", "lt", "pow")
# The other operand is a Python number instead of a tensor.
PLAIN = ("add", "sub", "mul", "div", "floor_divide", "div_trunc", "remainder", "fmod", "pow", "eq", "lt", "lerp")
PLAIN_REVERSED = ("sub", "pow")


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


cases = []
for dtype in (torch.float16, torch.bfloat16):
    values = torch.tensor([0.1, -0.3, 1.7, 2.5, -5.1, 12.3, 100.7, -0.0123, 2.0, 6.28], dtype=dtype)
    for other in (torch.float32, torch.float64, None):
        ops, reversed_ops = (OPS, REVERSED) if other else (PLAIN, PLAIN_REVERSED)
        for op in ops:
            function = OPS[op]
            for number in NUMBERS:
                scalar = torch.tensor(number, dtype=other) if other else number
                for number_first in (False, True):
                    if number_first and op not in reversed_ops:
                        continue
                    out = function(scalar, values) if number_first else function(values, scalar)
                    cases.append({
                        "op": op,
                        "dtype": dtype_name(dtype),
                        "number": scalar.item() if other else number,
                        "number_dtype": dtype_name(other) if other else None,
                        "number_first": number_first,
                        "input": values.double().tolist(),
                        "output": out.double().tolist(),
                        "output_dtype": dtype_name(out.dtype),
                    })
print('{"source": "PyTorch %s, CPU", "cases": [' % torch.__version__.split("+")[0])
print(",\n".join(json.dumps(case) for case in cases))
print("]}")
