"""Measures PyTorch with the shapes and methods of examples/data_parallel_speed.rs."""

import argparse
import time

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--batches", default="1024,8192,32768")
parser.add_argument("--width", type=int, default=4096)
parser.add_argument("--runs", type=int, default=9)
parser.add_argument("--pinned", action="store_true")
parser.add_argument("--train", action="store_true")
args = parser.parse_args()
found = torch.cuda.device_count()


def synchronize():
    for device in range(found):
        torch.cuda.synchronize(device)


def measure(f):
    f()
    f()
    total, host = [], []
    for _ in range(args.runs):
        synchronize()
        start = time.perf_counter()
        f()
        host.append(time.perf_counter() - start)
        synchronize()
        total.append(time.perf_counter() - start)
    middle = args.runs // 2
    return sorted(total)[middle] * 1e6, sorted(host)[middle] * 1e6


print(f"{found} GPU(s): {torch.cuda.get_device_name(0)}, torch {torch.__version__}")
layers = [layer for _ in range(8) for layer in (nn.Linear(args.width, args.width), nn.ReLU())]
net = nn.Sequential(*layers).cuda().bfloat16()
optimizer = torch.optim.SGD(net.parameters(), lr=0.0, fused=True)


def step(net, x):
    if not args.train:
        with torch.no_grad():
            net(x)
        return
    optimizer.zero_grad(set_to_none=True)
    net(x).square().mean().backward()
    optimizer.step()


for batch in map(int, args.batches.split(",")):
    x = torch.randn(batch, args.width, device="cuda:0", dtype=torch.bfloat16)
    if args.pinned:
        x = x.cpu().pin_memory()
    one, host = measure(lambda: step(net, x.to("cuda:0", non_blocking=True)))
    print(f"batch {batch:6}  1 GPU : {one:9.1f} us (host {host:7.1f} us)", flush=True)
    for count in (2, 4, 8):
        if count > found:
            continue
        parallel = nn.DataParallel(net, device_ids=list(range(count)))
        every, host = measure(lambda: step(parallel, x))
        print(
            f"batch {batch:6}  {count} GPUs: {every:9.1f} us (host {host:7.1f} us)  x{one / every:.2f}",
            flush=True,
        )
