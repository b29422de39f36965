# PyTorch's part of `model_speed`: the same models and steps. Prints one line per step: name, microseconds, peak bytes.
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ONLY = sys.argv[1] if len(sys.argv) > 1 else ""
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.benchmark = "--benchmark" in sys.argv


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        b, l, width = x.shape
        parts = self.qkv(self.ln_1(x)).split(width, dim=2)
        q, k, v = [t.view(b, l, self.heads, width // self.heads).transpose(1, 2) for t in parts]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, l, width)
        x = x + self.proj(y)
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, width, heads, layers, vocabulary, length):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.view(-1))


class Layer(nn.Module):
    def __init__(self, width, heads, key_heads, hidden):
        super().__init__()
        self.heads, self.key_heads, self.own = heads, key_heads, width // heads
        self.n1, self.n2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        self.q, self.o = linear(width, width), linear(width, width)
        self.k, self.v = (linear(width, key_heads * self.own) for _ in range(2))
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)

    def forward(self, x, cos, sin, index, mask, keys, values):
        b, l, width = x.shape

        def rotate(t):
            first, second = t.chunk(2, -1)
            return t * cos + torch.cat([-second, first], -1) * sin

        def apart(t, heads):
            return t.view(b, l, heads, self.own).transpose(1, 2)

        y = self.n1(x)
        q, k = rotate(apart(self.q(y), self.heads)), rotate(apart(self.k(y), self.key_heads))
        keys.index_copy_(2, index, k)
        values.index_copy_(2, index, apart(self.v(y), self.key_heads))
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, l, width))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def median(name, inner, outer, f):
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    times = []
    for _ in range(outer):
        start = time.perf_counter()
        for _ in range(inner):
            f()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6 / inner)
    print(name, sorted(times)[outer // 2], torch.cuda.max_memory_allocated(), sep="\t", flush=True)


def captured(name, inner, step):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    median(name, inner, 9, graph.replay)


def small():
    layers = nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    net = nn.Sequential(*layers).cuda()
    x, y = torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")

    def step_of(optimizer):
        def step():
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(net(x), y).backward()
            optimizer.step()

        return step

    median("mlp 3x256 SGD", 100, 9, step_of(torch.optim.SGD(net.parameters(), 0.01)))
    median("mlp 3x256 AdamW", 100, 9, step_of(torch.optim.AdamW(net.parameters(), 1e-3, fused=True)))
    adam = torch.optim.AdamW(net.parameters(), 1e-3, fused=True, capturable=True)
    captured("mlp 3x256 AdamW, a graph", 100, step_of(adam))
    with torch.no_grad():
        median("mlp 3x256 forward", 200, 9, lambda: net(x))


def gpt(name, dtype, region, batch, length, sizes, outer):
    torch.backends.cuda.matmul.allow_tf32 = "tf32" in name
    net = Gpt(*sizes).cuda().to(dtype)
    scaler = torch.amp.GradScaler("cuda", enabled=region == torch.float16)
    tokens = torch.randint(0, sizes[3], (batch, length), device="cuda")

    def step_of(optimizer):
        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=region, enabled=region is not None):
                loss = net(tokens, tokens)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    median(name, 1, outer, step_of(torch.optim.AdamW(net.parameters(), 1e-4, fused=True)))
    if "4 layers" in name:
        adam = torch.optim.AdamW(net.parameters(), 1e-4, fused=True, capturable=True)
        captured("gpt 4 layers bf16, a graph", 10, step_of(adam))
    torch.backends.cuda.matmul.allow_tf32 = False


def products():
    a, b = (torch.randn(10240, 10240, device="cuda") for _ in range(2))
    for name in ["product 10240 f32", "product 10240 tf32"]:
        torch.backends.cuda.matmul.allow_tf32 = "tf32" in name
        median(name, 5, 5, lambda: a @ b)
    torch.backends.cuda.matmul.allow_tf32 = False


@torch.no_grad()
def decoding(width=2048, heads=32, key_heads=8, hidden=8192, layers=16, vocabulary=128256, capacity=1024):
    dtype, own = torch.bfloat16, width // heads
    with torch.device("cuda"):
        embedding = nn.Embedding(vocabulary, width).to(dtype)
        model = [Layer(width, heads, key_heads, hidden).to(dtype) for _ in range(layers)]
        norm = nn.RMSNorm(width, eps=1e-5).to(dtype)
        caches = [[torch.zeros(1, key_heads, capacity, own, dtype=dtype) for _ in range(2)] for _ in model]
        token, position = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        frequencies, positions = 1 / (500000 ** (torch.arange(0, own, 2) / own)), torch.arange(capacity)

    def step():
        angles = position.float()[:, None] * frequencies[None]
        angles = torch.cat([angles, angles], -1).to(dtype)
        cos, sin, mask = angles.cos(), angles.sin(), (positions <= position)[None, None, None]
        x = embedding(token)
        for layer, cache in zip(model, caches):
            x = layer(x, cos, sin, position, mask, *cache)
        token.copy_(F.linear(norm(x), embedding.weight).argmax(-1))
        position.add_(1).remainder_(capacity)

    median("llama 1.2B bf16, a token", 20, 9, step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    median("llama 1.2B bf16, a graph", 1, 21, graph.replay)
    median("llama 1.2B bf16, a graph, 20 in a row", 20, 9, graph.replay)
    median("llama 1.2B bf16, a graph, 1000 in a row", 1000, 1, graph.replay)


def resnet50(name, dtype, tf32, memory_format, is_graph):
    import torchvision

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    net = torchvision.models.resnet50().cuda().to(dtype).to(memory_format=memory_format)
    images = torch.randn(64, 3, 224, 224, device="cuda", dtype=dtype).to(memory_format=memory_format)
    classes = torch.randint(0, 1000, (64,), device="cuda")
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, fused=True)

    def step():
        sgd.zero_grad(set_to_none=True)
        F.cross_entropy(net(images).float(), classes).backward()
        sgd.step()

    captured(name, 5, step) if is_graph else median(name, 5, 5, step)


if __name__ == "__main__":
    if "mlp".startswith(ONLY) or ONLY.startswith("mlp"):
        small()
    NARROW, GPT2 = (256, 4, 4, 1024, 1024), (768, 12, 12, 50304, 1024)
    for row in [
        ("gpt 4 layers bf16 8x128", torch.bfloat16, None, 8, 128, NARROW, 9),
        ("gpt2 124M bf16 8x1024", torch.bfloat16, None, 8, 1024, GPT2, 5),
        ("gpt2 124M f32 8x1024", torch.float32, None, 8, 1024, GPT2, 5),
        ("gpt2 124M tf32 8x1024", torch.float32, None, 8, 1024, GPT2, 5),
        ("gpt2 124M autocast bf16 8x1024", torch.float32, torch.bfloat16, 8, 1024, GPT2, 5),
        ("gpt2 124M autocast f16 8x1024", torch.float32, torch.float16, 8, 1024, GPT2, 5),
    ]:
        if row[0].startswith(ONLY):
            gpt(*row)
    if "product".startswith(ONLY) or ONLY.startswith("product"):
        products()
    if "llama".startswith(ONLY) or ONLY.startswith("llama"):
        decoding()
    LAST = torch.channels_last
    for row in [
        ("resnet50 f32 64", torch.float32, False, torch.contiguous_format, False),
        ("resnet50 tf32 64", torch.float32, True, torch.contiguous_format, False),
        ("resnet50 bf16 64", torch.bfloat16, True, torch.contiguous_format, False),
        ("resnet50 bf16 channels last 64", torch.bfloat16, True, LAST, False),
        ("resnet50 bf16 channels last 64, a graph", torch.bfloat16, True, LAST, True),
    ]:
        if row[0].startswith(ONLY):
            resnet50(*row)
