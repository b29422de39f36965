"""Writes lbfgs.json: runs of torch.optim.LBFGS in float64 on the CPU, 20 steps each.

    python lbfgs.py > lbfgs.json

`mlp` is a network of two layers, tanh between them, under the mean squared error; `rosenbrock` is the sum of
100 (x[i+1] - x[i]^2)^2 + (1 - x[i])^2. A run has the options, the loss that each step returned, the parameters after the
last step, and the counts of the optimizer's state.
"""

import json

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def wave(count, factor, scale):
    return [round(scale * float(torch.sin(torch.tensor(factor * i + 0.3))), 6) for i in range(count)]


# Parameters are in the order of their names.
MLP = {
    "b1": ([8], wave(8, 0.9, 0.2)),
    "b2": ([2], [0.0, 0.0]),
    "w1": ([8, 3], wave(24, 1.7, 0.6)),
    "w2": ([2, 8], wave(16, 2.3, 0.5)),
}
X = ([10, 3], wave(30, 3.1, 1.5))
Y = ([10, 2], wave(20, 1.3, 0.8))
ROSENBROCK = {"x": ([5], [-1.2, 1.0, 0.5, -0.7, 1.5])}


def tensor(made):
    sizes, values = made
    return torch.tensor(values).reshape(sizes)


def mlp(p):
    hidden = torch.tanh(F.linear(tensor(X), p["w1"], p["b1"]))
    return F.mse_loss(F.linear(hidden, p["w2"], p["b2"]), tensor(Y))


def rosenbrock(p):
    x = p["x"]
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def run(loss_of, start, **options):
    params = {name: tensor(made).requires_grad_() for name, made in start.items()}
    optimizer = torch.optim.LBFGS(params.values(), **options)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(20)]
    state = optimizer.state_dict()["state"][0]
    return {
        "problem": loss_of.__name__,
        "options": options,
        "losses": losses,
        "final": {name: param.flatten().tolist() for name, param in params.items()},
        "n_iter": state["n_iter"],
        "func_evals": state["func_evals"],
    }


wolfe = {"line_search_fn": "strong_wolfe"}
start = {"mlp": MLP, "rosenbrock": ROSENBROCK}
runs = [
    run(mlp, MLP, lr=0.8, max_iter=2, **wolfe),
    run(mlp, MLP, max_iter=3, history_size=4, **wolfe),
    run(mlp, MLP, lr=0.2, max_iter=2),
    run(rosenbrock, ROSENBROCK, max_iter=8, **wolfe),
    run(rosenbrock, ROSENBROCK, lr=0.5, max_iter=3, max_eval=7, history_size=3, **wolfe),
    run(rosenbrock, ROSENBROCK, lr=0.1, max_iter=3, tolerance_change=1e-7, tolerance_grad=1e-5),
]
print(json.dumps({"start": start, "x": X, "y": Y, "runs": runs}))
