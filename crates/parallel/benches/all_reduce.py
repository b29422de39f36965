"""Measures PyTorch with the sizes and methods of examples/all_reduce_speed.rs."""

import argparse
import ctypes
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT = 60


class Start:
    """A spinning barrier of all ranks."""

    def __init__(self, came, rank):
        self.came, self.rank, self.round = came, rank, 0

    def wait(self):
        self.round += 1
        self.came[self.rank] = self.round
        begun = time.perf_counter()
        while min(self.came) < self.round:
            if time.perf_counter() - begun > LIMIT:
                raise RuntimeError("another rank is gone")


def median(times):
    return sorted(times)[len(times) // 2] * 1e6


def measure(args, start, call):
    one, each, host = [], [], []
    for _ in range(5):
        call()
        torch.cuda.current_stream().synchronize()
    for _ in range(args.runs):
        start.wait()
        begun = time.perf_counter()
        call()
        torch.cuda.current_stream().synchronize()
        one.append(time.perf_counter() - begun)
    for _ in range(args.loops):
        start.wait()
        begun = time.perf_counter()
        for _ in range(args.calls):
            call()
        host.append((time.perf_counter() - begun) / args.calls)
        torch.cuda.current_stream().synchronize()
        each.append((time.perf_counter() - begun) / args.calls)
    return median(one), median(each), median(host)


def rank_main(rank, args, came):
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{args.port}",
        rank=rank,
        world_size=args.ranks,
    )
    start = Start(came, rank)
    if rank == 0:
        print(
            f"{args.ranks} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}, "
            f"NCCL {torch.cuda.nccl.version()}"
        )
        print(f"{'':10}  {'':24}{'one call':>12}{'in a loop':>12}{'host':>12}{'GB/s':>9}")
    for kib in map(int, args.kib.split(",")):
        x = torch.zeros(kib * 256, device="cuda")
        ways = {
            "torch": lambda: dist.all_reduce(x),
            "torch, async_op": lambda: dist.all_reduce(x, async_op=True).wait(),
        }
        for name, call in ways.items():
            one, each, host = measure(args, start, call)
            if rank == 0:
                rate = kib * 1024 / each / 1e3
                print(
                    f"{kib:6} KiB  {name:24}{one:9.2f} us{each:9.2f} us{host:9.2f} us{rate:9.2f}",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kib", default="4,1024,32768,262144")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--loops", type=int, default=9)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--port", type=int, default=29517)
    args = parser.parse_args()
    came = mp.get_context("spawn").RawArray(ctypes.c_long, args.ranks)
    mp.spawn(rank_main, (args, came), nprocs=args.ranks)
