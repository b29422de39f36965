"""Writes precision.json: what PyTorch reads back after sequences of settings of `torch.backends`.

Usage: python precision.py > precision.json. A setting is a name and a value. Before the first setting and after
each follow the values of NAMES, or null where PyTorch reports that old and new settings were mixed.
"""

import json
import multiprocessing
import random
import warnings

import torch

backends = torch.backends

SETTERS = {
    "fp32_precision": lambda v: setattr(backends, "fp32_precision", v),
    "cuda.matmul.fp32_precision": lambda v: setattr(backends.cuda.matmul, "fp32_precision", v),
    "cudnn.fp32_precision": lambda v: setattr(backends.cudnn, "fp32_precision", v),
    "cudnn.conv.fp32_precision": lambda v: setattr(backends.cudnn.conv, "fp32_precision", v),
    "cudnn.rnn.fp32_precision": lambda v: setattr(backends.cudnn.rnn, "fp32_precision", v),
    "cuda.matmul.allow_tf32": lambda v: setattr(backends.cuda.matmul, "allow_tf32", v),
    "cudnn.allow_tf32": lambda v: setattr(backends.cudnn, "allow_tf32", v),
    "float32_matmul_precision": torch.set_float32_matmul_precision,
}
NAMES = {
    "fp32_precision": lambda: backends.fp32_precision,
    "cuda.matmul.fp32_precision": lambda: backends.cuda.matmul.fp32_precision,
    "cudnn.fp32_precision": lambda: backends.cudnn.fp32_precision,
    "cudnn.conv.fp32_precision": lambda: backends.cudnn.conv.fp32_precision,
    "cudnn.rnn.fp32_precision": lambda: backends.cudnn.rnn.fp32_precision,
    "cuda.matmul.allow_tf32": lambda: backends.cuda.matmul.allow_tf32,
    "cudnn.allow_tf32": lambda: backends.cudnn.allow_tf32,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
}


def read():
    values = []
    for get in NAMES.values():
        try:
            values.append(get())
        except RuntimeError as error:
            assert "mix of the legacy and new APIs" in str(error), error
            values.append(None)
    return values


def run(seed):
    chosen, steps = random.Random(seed), [{"set": None, "read": read()}]
    for _ in range(8):
        name = chosen.choice(list(SETTERS))
        if name == "float32_matmul_precision":
            value = chosen.choice(["highest", "high", "medium"])
        elif name.endswith("allow_tf32"):
            value = chosen.choice([False, True])
        else:
            value = chosen.choice(["none", "ieee", "tf32"] + ["bf16"] * (name == "fp32_precision"))
        SETTERS[name](value)
        steps.append({"set": [name, value], "read": read()})
    return steps


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # The settings are the process's, and some have no way back, so each sequence has a process of its own.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        runs = pool.map(run, range(64), chunksize=1)
    print("[\n" + ",\n".join(json.dumps(steps) for steps in runs) + "\n]")
