#!/usr/bin/env python3
"""Measures the same graphs as `main.rs` in PyTorch, and prints the same lines with "side": "torch"."""

import argparse
import json
import statistics
import time

import torch


def measure(options, stream, chain):
    for _ in range(10):
        chain()
    host, whole, in_a_row = [], [], []
    for _ in range(options.rounds):
        stream.synchronize()
        start = time.perf_counter()
        chain()
        host.append((time.perf_counter() - start) * 1e6)
        stream.synchronize()
        whole.append((time.perf_counter() - start) * 1e6)
    for _ in range((options.rounds + 9) // 10):
        stream.synchronize()
        start = time.perf_counter()
        for _ in range(options.row):
            chain()
        stream.synchronize()
        in_a_row.append((time.perf_counter() - start) * 1e6 / options.row)
    return [statistics.median(times) for times in (host, whole, in_a_row)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=20, help="ops in the chain")
    parser.add_argument("--numel", type=int, default=1024, help="elements of each tensor")
    parser.add_argument("--rounds", type=int, default=200, help="measurements")
    parser.add_argument("--row", type=int, default=100, help="chains in a row")
    options = parser.parse_args()

    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        x = torch.ones(options.numel, device="cuda")

        def chain():
            y = x + 1.0
            for _ in range(1, options.ops):
                y = y + 1.0
            return y

        chain()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        result = chain()
        graph.capture_end()
        eager = measure(options, stream, chain)
        replay = measure(options, stream, graph.replay)
        stream.synchronize()
        assert (result == options.ops + 1).all().item(), "a wrong result"

    device = torch.cuda.get_device_name(0)
    for kind, (host, whole, in_a_row) in (("enqueue", eager), ("replay", replay)):
        print(json.dumps({
            "bench": "graph_replay", "kind": kind, "side": "torch", "device": device,
            "ops": options.ops, "numel": options.numel,
            "host_us": host, "whole_us": whole, "in_a_row_us": in_a_row,
        }))
    ratios = [a / b for a, b in zip(eager, replay)]
    print(json.dumps({
        "bench": "graph_replay", "kind": "speedup", "side": "torch",
        "host": ratios[0], "whole": ratios[1], "in_a_row": ratios[2],
    }))


if __name__ == "__main__":
    main()
