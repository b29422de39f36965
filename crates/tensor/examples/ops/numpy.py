"""NumPy's side of the example `ops` with `--numpy`, by the orders of `torch.py`.

NumPy's elementwise ops take one core, its products as many as OPENBLAS_NUM_THREADS says.
"""

import json
import os
import sys
import time

replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def reply(**values):
    replies.write(json.dumps(values) + "\n")
    replies.flush()


if len(sys.argv) > 1 and sys.argv[1] != "0":
    os.environ["OPENBLAS_NUM_THREADS"] = sys.argv[1]
try:
    import numpy as np
except ImportError as error:
    reply(error=f"no NumPy: {error}")
    sys.exit(1)

rng = np.random.default_rng(0)


class Spec:
    """The operands of one row of the table, by the same names as in `spec.rs`."""

    def __init__(self, order):
        self.dtype, self.sizes = np.dtype(order["dtype"]), order["sizes"]

    def random(self, sizes):
        if self.dtype.kind == "f":
            return rng.standard_normal(sizes, dtype=np.float32).astype(self.dtype)
        return rng.integers(0, 100, sizes).astype(self.dtype)

    def operand(self):
        return self.random(self.sizes)

    def row(self):
        return self.random(self.sizes[-1:])

    def column(self):
        return self.random([self.sizes[0], 1])

    def index(self):
        return rng.integers(0, self.sizes[0], self.sizes[0])

    def left(self):
        return self.random(self.sizes[:-1])

    def right(self):
        return self.random([*self.sizes[:-3], *self.sizes[-2:]])

    def vector(self):
        return self.random(self.sizes[-2:-1])


def fill_normal(x):
    rng.standard_normal(out=x, dtype=x.dtype)


def fill_uniform(x):
    rng.random(out=x, dtype=x.dtype)


# Under the names of `table.rs`; NumPy lacks the others.
OPS = {
    "copy_": (lambda s: (s.operand(), s.operand()), lambda x, y: np.copyto(y, x)),
    "add": (lambda s: (s.operand(), s.operand()), lambda x, y: x + y),
    "add_": (lambda s: (s.operand(), s.operand()), lambda x, y: np.add(x, y, out=x)),
    "mul by a number": (lambda s: (s.operand(),), lambda x: x * 2),
    "exp": (lambda s: (s.operand(),), np.exp),
    "to float32": (lambda s: (s.operand(),), lambda x: x.astype(np.float32)),
    "normal_": (lambda s: (s.operand(),), fill_normal),
    "uniform_": (lambda s: (s.operand(),), fill_uniform),
    "sum": (lambda s: (s.operand(),), lambda x: x.sum()),
    "sum of rows": (lambda s: (s.operand(),), lambda x: x.sum(-1)),
    "sum of columns": (lambda s: (s.operand(),), lambda x: x.sum(0)),
    "amax of rows": (lambda s: (s.operand(),), lambda x: x.max(-1)),
    "argmax of rows": (lambda s: (s.operand(),), lambda x: x.argmax(-1)),
    "transpose": (lambda s: (s.operand(),), lambda x: np.ascontiguousarray(x.T)),
    "add a row": (lambda s: (s.operand(), s.row()), lambda x, r: x + r),
    "add a column": (lambda s: (s.operand(), s.column()), lambda x, c: x + c),
    "cat rows": (lambda s: (s.operand(),), lambda x: np.concatenate([x, x], 0)),
    "index_select of rows": (lambda s: (s.operand(), s.index()), lambda x, i: x.take(i, 0)),
    "matmul": (lambda s: (s.left(), s.right()), lambda a, b: a @ b),
    "matmul by a vector": (lambda s: (s.left(), s.vector()), lambda a, b: a @ b),
}

MOST_CALLS = 500


class Row:
    """A row that is being measured, as in `timing.rs`."""

    def __init__(self, order):
        if order["op"] not in OPS:
            raise NotImplementedError("NumPy has no such op")
        operands, call = OPS[order["op"]]
        operands = operands(Spec(order))
        self.call = lambda: call(*operands)
        self.call()
        self.call()
        self.reps = None

    def once(self, reps):
        """Seconds of so many calls."""
        call = self.call
        start = time.perf_counter()
        for _ in range(reps):
            call()
        return time.perf_counter() - start

    def measure(self, target_ms):
        """Seconds of a call, of as many as take the target."""
        if self.reps is None:
            first = min(self.once(1), self.once(1))
            self.reps = int(max(1, min(target_ms / 1e3 / max(first, 1e-9), MOST_CALLS)))
            self.once(self.reps)
        return self.once(self.reps) / self.reps


def main():
    reply(version=np.__version__, threads=int(os.environ.get("OPENBLAS_NUM_THREADS", "0")))
    row = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "prepare" in order:
                row = Row(order["prepare"])
                reply()
            elif "measure" in order:
                reply(seconds=row.measure(order["measure"]))
            else:
                row = None
                reply()
        except Exception as error:
            row = None
            reply(error=f"{type(error).__name__}: {error}")


main()
