"""Writes grad_scaler.json: runs of 50 steps under torch.amp.GradScaler on the CPU, in regions of autocast in float16.

    python grad_scaler.py > grad_scaler.json

The network is w2 · tanh(w1 · x) under the mean squared error. In the steps of OVERFLOWS the input is so large that the
products are infinite in float16. A run has the options, the scale and the growth tracker after each step, the number of
steps that the optimizer took, and the parameters after the last step. `unscaled` runs call unscale_ and clip the
gradients; `accumulated` ones add the gradients of two losses; `two` ones train each parameter by its own optimizer.
"""

import json

import torch
import torch.nn.functional as F

OVERFLOWS = {"a": [3, 4, 17, 30], "b": [0, 1, 2, 10, 25, 26, 49]}
RUNS = {
    "adam": ("Adam", {"lr": 0.01}, "a", set()),
    "adam, from the first step": ("Adam", {"lr": 0.01}, "b", set()),
    "adamw": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}, "b", {"unscaled"}),
    "adam, accumulated": ("Adam", {"lr": 0.01, "amsgrad": True}, "a", {"accumulated"}),
    "sgd": ("SGD", {"lr": 0.05}, "b", set()),
    "sgd with momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}, "a", {"unscaled"}),
    "sgd with dampening": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.5}, "b", set()),
    "rmsprop": ("RMSprop", {"lr": 0.01, "momentum": 0.5}, "a", set()),
    "adadelta": ("Adadelta", {"lr": 1.0}, "b", {"unscaled"}),
    "two optimizers": ("Adam", {"lr": 0.01}, "b", {"two"}),
}


def wave(count, factor, scale):
    return [round(scale * float(torch.sin(torch.tensor(factor * i + 0.3))), 4) for i in range(count)]


W1, W2 = ([8, 3], wave(24, 1.7, 0.6)), ([2, 8], wave(16, 2.3, 0.5))
X, Y = ([10, 3], wave(30, 3.1, 1.5)), ([10, 2], wave(20, 1.3, 0.8))


def made(shape, values):
    return torch.tensor(values).reshape(shape)


def run(name):
    kind, options, overflows, flags = RUNS[name]
    parameters = [made(*W1).requires_grad_(), made(*W2).requires_grad_()]
    # Fused steps read the scale and the mark in memory. SGD with momentum is not fused, because its fused first step
    # makes an uninitialized buffer, which a skipped step leaves as it is.
    fused = kind in ("Adam", "AdamW") or kind == "SGD" and "momentum" not in options
    make = lambda parameters: getattr(torch.optim, kind)(parameters, **options, **({"fused": True} if fused else {}))
    optimizers = [make([p]) for p in parameters] if "two" in flags else [make(parameters)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
    scales, trackers = [], []
    for step in range(50):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for part in range(2 if "accumulated" in flags else 1):
            x = made(*X) * (1 + 0.01 * step + 0.5 * part)
            if step in OVERFLOWS[overflows]:
                x = x * 1e7
            with torch.autocast("cpu", dtype=torch.float16):
                out = F.linear(torch.tanh(F.linear(x, parameters[0])), parameters[1])
            scaler.scale(F.mse_loss(out.float(), made(*Y))).backward()
        for optimizer in optimizers:
            if "unscaled" in flags:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        trackers.append(scaler.state_dict()["_growth_tracker"])
    state = optimizers[0].state[parameters[0]]
    return {
        "optimizer": kind,
        "options": options,
        "overflows": OVERFLOWS[overflows],
        "flags": sorted(flags),
        "scales": scales,
        "growth_trackers": trackers,
        "steps": float(state["step"]) if "step" in state else None,
        "parameters": [p.detach().flatten().tolist() for p in parameters],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"tensors": {"w1": W1, "w2": W2, "x": X, "y": Y}, "runs": {name: run(name) for name in RUNS}}))
