# PyTorch's part of `model_speed`: the same models and steps. Prints one line per step: name, microseconds, peak bytes.
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ONLY = sys.argv[1] if len(sys.argv) > 1 else ""
torch.backends.cuda.matmul.allow_tf32 = False


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


def gpt(name, dtype, batch, length, sizes, outer):
    net = Gpt(*sizes).cuda().to(dtype)
    tokens = torch.randint(0, sizes[3], (batch, length), device="cuda")

    def step_of(optimizer):
        def step():
            optimizer.zero_grad(set_to_none=True)
            net(tokens, tokens).backward()
            optimizer.step()

        return step

    median(name, 1, outer, step_of(torch.optim.AdamW(net.parameters(), 1e-4, fused=True)))
    if "4 layers" in name:
        adam = torch.optim.AdamW(net.parameters(), 1e-4, fused=True, capturable=True)
        captured("gpt 4 layers bf16, a graph", 10, step_of(adam))


if "mlp".startswith(ONLY) or ONLY.startswith("mlp"):
    small()
NARROW, GPT2 = (256, 4, 4, 1024, 1024), (768, 12, 12, 50304, 1024)
for row in [
    ("gpt 4 layers bf16 8x128", torch.bfloat16, 8, 128, NARROW, 9),
    ("gpt2 124M bf16 8x1024", torch.bfloat16, 8, 1024, GPT2, 5),
    ("gpt2 124M f32 8x1024", torch.float32, 8, 1024, GPT2, 5),
]:
    if row[0].startswith(ONLY):
        gpt(*row)
