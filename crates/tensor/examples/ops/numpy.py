"""NumPy's side of the example `ops` with `--numpy`, after `common.py`.

NumPy's elementwise ops use one core. Its products use the number of threads in OPENBLAS_NUM_THREADS.
"""

if len(sys.argv) > 1 and sys.argv[1] != "0":
    os.environ["OPENBLAS_NUM_THREADS"] = sys.argv[1]
# NumPy's threads keep their cores busy after a call, by default for a tenth of a second, which
# would disturb Warpline's turn. 2 to the power of 20 clocks are enough for NumPy's own next call.
os.environ["OPENBLAS_THREAD_TIMEOUT"] = "20"
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


# Names as in `table.rs`. NumPy lacks the other ops.
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


class Row(Timed):
    def __init__(self, order):
        if order["op"] not in OPS:
            raise NotImplementedError("NumPy has no such op")
        operands, call = OPS[order["op"]]
        operands = operands(Spec(order))
        self.call = lambda: call(*operands)
        self.call()
        self.call()


reply(version=np.__version__, threads=int(os.environ.get("OPENBLAS_NUM_THREADS", "0")))
serve(Row)
