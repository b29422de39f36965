"""PyTorch's side of the example `ops`, after `common.py`."""

try:
    import torch
except ImportError as error:
    reply(error=f"no PyTorch: {error}")
    sys.exit(1)


class Spec:
    """The operands of one row of the table, by the same names as in `spec.rs`."""

    def __init__(self, order):
        self.dtype = getattr(torch, order["dtype"])
        self.sizes, self.view, self.device = order["sizes"], order["view"], order["device"]

    def random(self, sizes):
        if self.dtype.is_floating_point:
            return torch.randn(sizes, device=self.device).to(self.dtype)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, sizes, device=self.device, dtype=torch.uint8).to(torch.bool)
        return torch.randint(0, 100, sizes, device=self.device, dtype=self.dtype)

    def operand(self):
        *first, n = self.sizes
        if self.view == "offset":
            numel = torch.Size(self.sizes).numel()
            return self.random([numel + 1]).narrow(0, 1, numel).view(self.sizes)
        if self.view == "step":
            return self.random([*first, 2 * n])[..., ::2]
        if self.view == "narrow":
            return self.random([*first, n + 96]).narrow(-1, 32, n)
        return self.random(self.sizes)

    def row(self):
        return self.random(self.sizes[-1:])

    def normalized(self):
        x, weight, bias = self.operand(), self.row(), self.row()
        _, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
        return x, x.shape[-1:], mean, rstd, weight, bias

    def attended(self):
        # Measurements run in `inference_mode`, whose tensors have no gradients.
        with torch.inference_mode(False):
            q, k, v = (self.operand().requires_grad_() for _ in range(3))
            return causal_attention(q, k, v), (q, k, v), self.operand()

    def recorded(self, count, call):
        with torch.inference_mode(False):
            operands = tuple(self.operand().requires_grad_() for _ in range(count))
            return call(*operands), operands, self.operand()

    def column(self):
        return self.random([self.sizes[0], 1])

    def between(self):
        return self.random([self.sizes[0], 1, self.sizes[2]])

    def index(self):
        return torch.randint(0, self.sizes[0], self.sizes[:1], device=self.device)

    def left(self):
        return self.random(self.sizes[:-1])

    def right(self):
        return self.random([*self.sizes[:-3], *self.sizes[-2:]])

    def left_t(self):
        *batch, m, k, _ = self.sizes
        return self.random([*batch, k, m]).transpose(-1, -2)

    def right_t(self):
        *batch, _, k, n = self.sizes
        return self.random([*batch, n, k]).transpose(-1, -2)

    def vector(self):
        return self.random(self.sizes[-2:-1])


def causal_attention(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def gradients(out, operands, gradient):
    with torch.inference_mode(False):
        return torch.autograd.grad(out, operands, gradient, retain_graph=True)


OPS = {}


def op(name, operands, call):
    OPS[name] = operands, call


def additions(x):
    for _ in range(20):
        x = x + 1
    return x


op("copy_", lambda s: (s.operand(), s.operand()), lambda x, y: y.copy_(x, non_blocking=True))
op("clone", lambda s: (s.operand(),), lambda x: x.clone())
op("add", lambda s: (s.operand(), s.operand()), lambda x, y: x + y)
op("add_", lambda s: (s.operand(), s.operand()), lambda x, y: x.add_(y))
op("mul by a number", lambda s: (s.operand(),), lambda x: x * 2)
op("exp", lambda s: (s.operand(),), lambda x: x.exp())
op("gelu", lambda s: (s.operand(),), lambda x: torch.nn.functional.gelu(x))
op("fill_", lambda s: (s.operand(),), lambda x: x.fill_(1))
op("eq", lambda s: (s.operand(), s.operand()), lambda x, y: x == y)
op("to float32", lambda s: (s.operand(),), lambda x: x.to(torch.float32))
op("to bfloat16", lambda s: (s.operand(),), lambda x: x.to(torch.bfloat16))
op("normal_", lambda s: (s.operand(),), lambda x: x.normal_())
op("uniform_", lambda s: (s.operand(),), lambda x: x.uniform_())
op("sum", lambda s: (s.operand(),), lambda x: x.sum())
op("sum of rows", lambda s: (s.operand(),), lambda x: x.sum(-1))
op("sum of columns", lambda s: (s.operand(),), lambda x: x.sum(0))
op("sum of dim 1", lambda s: (s.operand(),), lambda x: x.sum(1))
op("sum of dims 0, 2", lambda s: (s.operand(),), lambda x: x.sum((0, 2)))
op("mean of rows", lambda s: (s.operand(),), lambda x: x.mean(-1))
op("amax of rows", lambda s: (s.operand(),), lambda x: x.amax(-1))
op("amax of columns", lambda s: (s.operand(),), lambda x: x.amax(0))
op("argmax of rows", lambda s: (s.operand(),), lambda x: x.argmax(-1))
op("argmax of columns", lambda s: (s.operand(),), lambda x: x.argmax(0))
op("softmax of rows", lambda s: (s.operand(),), lambda x: x.softmax(-1))
op("softmax of columns", lambda s: (s.operand(),), lambda x: x.softmax(0))
op("log_softmax of rows", lambda s: (s.operand(),), lambda x: x.log_softmax(-1))
op("gradients of layer_norm's weight and bias", lambda s: (s.normalized(), s.operand()),
   lambda n, g: torch.ops.aten.native_layer_norm_backward(g, *n, [False, True, True]))
op("causal attention", lambda s: (s.operand(), s.operand(), s.operand()), causal_attention)
op("gradients of causal attention", lambda s: s.attended(), gradients)
op("gradient of gelu", lambda s: s.recorded(1, torch.nn.functional.gelu), gradients)
op("gradient of mish", lambda s: s.recorded(1, torch.nn.functional.mish), gradients)
op("gradient of erf", lambda s: s.recorded(1, torch.erf), gradients)
op("gradients of mul", lambda s: s.recorded(2, torch.mul), gradients)
op("gradients of div", lambda s: s.recorded(2, torch.div), gradients)
op("transpose", lambda s: (s.operand(),), lambda x: x.t().contiguous())
op("permute 0213", lambda s: (s.operand(),), lambda x: x.permute(0, 2, 1, 3).contiguous())
op("permute 0231", lambda s: (s.operand(),), lambda x: x.permute(0, 2, 3, 1).contiguous())
op("permute 0312", lambda s: (s.operand(),), lambda x: x.permute(0, 3, 1, 2).contiguous())
op("permute 210", lambda s: (s.operand(),), lambda x: x.permute(2, 1, 0).contiguous())
op("add a row", lambda s: (s.operand(), s.row()), lambda x, r: x + r)
op("add a column", lambda s: (s.operand(), s.column()), lambda x, c: x + c)
op("add between", lambda s: (s.operand(), s.between()), lambda x, b: x + b)
op("add transposed", lambda s: (s.operand(),), lambda x: x + x.t())
op("cat rows", lambda s: (s.operand(),), lambda x: torch.cat([x, x], 0))
op("cat columns", lambda s: (s.operand(),), lambda x: torch.cat([x, x], 1))
op("index_select of rows", lambda s: (s.operand(), s.index()), lambda x, i: x.index_select(0, i))
op("matmul", lambda s: (s.left(), s.right()), lambda a, b: a @ b)
op("matmul, left transposed", lambda s: (s.left_t(), s.right()), lambda a, b: a @ b)
op("matmul, right transposed", lambda s: (s.left(), s.right_t()), lambda a, b: a @ b)
op("matmul by a vector", lambda s: (s.left(), s.vector()), lambda a, b: a @ b)
op("empty", lambda s: (), lambda: torch.empty(1024, device="cuda"))
op("zeros", lambda s: (), lambda: torch.zeros(1024, device="cuda"))
op("view", lambda s: (s.operand(),), lambda x: x.view(-1))
op("20 additions of a number", lambda s: (s.operand(),), additions)


class Row(Timed):
    def __init__(self, order):
        operands, call = OPS[order["op"]]
        operands = operands(Spec(order))
        self.call = lambda: call(*operands)
        self.on_device = order["timing"] != "host"
        if self.on_device:
            self.most = 10_000
        self.call()
        self.call()
        if order["graph_calls"]:
            self.calls, run = order["graph_calls"], self.call
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                for _ in range(self.calls):
                    run()
            self.call = self.graph.replay
            self.call()
        self.synchronize = torch.cuda.synchronize if order["device"] == "cuda" else lambda: None

    def once(self, reps):
        """Returns the seconds that `reps` calls take."""
        self.synchronize()
        if not self.on_device:
            seconds = self.loop(reps)
            self.synchronize()
            return seconds
        call = self.call
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(reps):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def drop(empty):
    if empty and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


with torch.inference_mode():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    if threads:
        torch.set_num_threads(threads)
    reply(version=torch.__version__, threads=torch.get_num_threads())
    serve(Row, drop)
