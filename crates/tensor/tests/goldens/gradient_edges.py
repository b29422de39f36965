"""Writes gradient_edges.json: PyTorch's gradients on the CPU where formulas overflow, underflow or change their branch.

    python gradient_edges.py > gradient_edges.json

Each case has an op, its operands (tensors, or numbers), the gradient of its result, and for each tensor of a
floating-point dtype the first gradient and the gradient of that gradient's sum, null if there is none.
"""

import json
import math

import torch
import torch.nn.functional as F

inf, nan = math.inf, math.nan
POINTS = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 2.5, -2.5]
F16, F32, F64 = torch.float16, torch.float32, torch.float64
I64, U8 = torch.int64, torch.uint8

OPS = {
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "sinc": torch.sinc,
    "softsign": F.softsign,
    "logit": torch.logit,
    "div": torch.div,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "xlogy": torch.xlogy,
    "pow": torch.pow,
    "addcmul": lambda x, a, b, value: torch.addcmul(x, a, b, value=value),
    "addcdiv": lambda x, a, b, value: torch.addcdiv(x, a, b, value=value),
}

# Op, operands, the result's gradient (None: ones); a number stands for itself.
CASES = [
    *[(op, [(F64, POINTS)], None) for op in ("hardswish", "hardsigmoid", "selu", "sinc", "softsign")],
    *[("elu", [(F64, POINTS), alpha], None) for alpha in (1.0, 0.7)],
    *[("celu", [(F64, POINTS), alpha], None) for alpha in (1.0, 2.0)],
    ("elu", [(F32, [100.0, 89.0, -100.0]), 1.0], None),
    ("celu", [(F32, [100.0, 89.0, -100.0]), 0.5], None),
    ("selu", [(F32, [100.0, 89.0, -100.0])], None),
    ("elu", [(F16, [12.0, 60.0, -60.0]), 1.0], None),
    ("sinc", [(F32, [1e-24, 1e-30, 0.25])], None),
    ("div", [(F16, [1e4]), (F16, [100.0])], [1000.0]),
    ("fmax", [(F32, [1.0, 5.0, nan]), (I64, [2, 3, 4])], None),
    ("fmin", [(F32, [1.0, 5.0, nan]), (U8, [2, 3, 4])], None),
    ("fmax", [(F32, [1.0, nan, 2.0, nan]), (F32, [nan, 1.0, 2.0, nan])], None),
    ("fmin", [(F32, [1.0, nan, 2.0, nan]), (F32, [nan, 1.0, 2.0, nan])], None),
    ("xlogy", [(F32, [1.0, 0.0, 2.0]), (F32, [0.0, 0.0, 3.0])], [0.0, 1.0, 1.0]),
    ("pow", [(F32, [2.0, 0.0]), (F32, [0.0, 0.0])], [inf, inf]),
    ("addcmul", [(F16, [1.0]), (F16, [1000.0]), (F16, [1000.0]), 0.001], [1000.0]),
]
# Ops whose second gradients are written, because PyTorch's own are finite.
SECOND = ("elu", "celu", "selu", "sinc", "hardswish")


def numbers(t):
    return None if t is None else [str(x) for x in t.double().flatten().tolist()]


cases = []
for op, operands, grad in CASES:
    tensors = [
        o if isinstance(o, float) else torch.tensor(o[1], dtype=o[0], requires_grad=o[0].is_floating_point)
        for o in operands
    ]
    out = OPS[op](*tensors)
    g = torch.ones_like(out) if grad is None else torch.tensor(grad, dtype=out.dtype)
    wanted = [t for t in tensors if torch.is_tensor(t) and t.requires_grad]
    first = torch.autograd.grad(out, wanted, g, create_graph=op in SECOND)
    second = [None] * len(first)
    if op in SECOND:
        second = [torch.autograd.grad(f.sum(), w, allow_unused=True)[0] if f.requires_grad else None for f, w in zip(first, wanted)]
    cases.append({
        "op": op,
        "operands": [
            {"number": o} if isinstance(o, float) else {"dtype": str(o[0]).removeprefix("torch."), "values": [str(v) for v in o[1]]}
            for o in operands
        ],
        "grad": numbers(g),
        "first": [numbers(f) for f in first],
        "second": [numbers(s) for s in second],
    })
print('{"source": "PyTorch %s, CPU", "cases": [' % torch.__version__.split("+")[0])
print(",\n".join(json.dumps(case) for case in cases))
print("]}")
