#!/usr/bin/env python3
"""Runs Warpline's allocator and PyTorch's in turn on this machine's GPU, and prints the ratios of their figures."""

import argparse
import glob
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def build(folder):
    """Compiles torch_alloc.cpp against the installed PyTorch. Returns the program and its environment."""
    import torch
    from torch.utils import cpp_extension

    root = os.path.dirname(os.path.abspath(torch.__file__))
    site = os.path.dirname(root)
    nvcc = shutil.which("nvcc")
    homes = [cpp_extension.CUDA_HOME, nvcc and os.path.dirname(os.path.dirname(nvcc))]
    headers = [os.path.join(home, "include") for home in homes if home]
    headers += glob.glob(os.path.join(site, "nvidia", "*", "include"))
    headers = [path for path in headers if os.path.exists(os.path.join(path, "cuda_runtime_api.h"))]
    if not headers:
        sys.exit("error: cuda_runtime_api.h is nowhere: set CUDA_HOME")

    program = os.path.join(folder, "torch_alloc")
    lib = os.path.join(root, "lib")
    command = [os.environ.get("CXX", "g++"), "-O3", "-std=c++20", "-pthread"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += [os.path.join(HERE, "torch_alloc.cpp"), "-o", program]
    command += ["-isystem", os.path.join(root, "include"), "-isystem", headers[0]]
    # The loader finds the dependencies of libc10_cuda at run time.
    command += ["-L" + lib, "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-ltorch_cuda"]
    command += ["-lc10_cuda", "-lc10", "-Wl,--allow-shlib-undefined"]
    command += ["-Wl,-rpath," + lib]
    subprocess.run(command, check=True)

    # The program finds the CUDA runtime in the folder where this process found it.
    with open("/proc/self/maps") as maps:
        found = {os.path.dirname(line.split()[-1]) for line in maps if "libcudart" in line}
    paths = [lib, *sorted(found), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(filter(None, paths)))
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name(0)}", file=sys.stderr)
    return program, environment


def plain(ours, traces, folder):
    """Writes the traces as text files, without the lines that a replay ignores. Returns their paths."""
    paths = []
    for trace in traces:
        name = os.path.basename(trace).split(".")[0]
        path = os.path.join(folder, name + ".csv")
        if name.startswith("moe:"):
            with open(path, "w") as target:
                subprocess.run([ours, "--text", name], check=True, stdout=target)
            paths.append(path)
            continue
        reader = gzip.open if trace.endswith(".gz") else open
        with reader(trace, "rt") as source, open(path, "w") as target:
            target.writelines(line for line in source if line[0] in "af")
        paths.append(path)
    return paths


def measure(command, environment=None):
    """Returns nanoseconds per operation, and reserved bytes per requested byte."""
    output = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    figures = {}
    for line in output.splitlines():
        record = json.loads(line)
        figure = (record.pop("ns_per_op"), record.pop("reserved", None))
        key = tuple((k, v) for k, v in record.items() if not k.startswith("ns_"))
        figures[key] = figure
    return figures


def title(key):
    key = dict(key)
    bench = key.pop("bench")
    return ", ".join([bench] + [f"{value} {name}" for name, value in key.items()])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", required=True, help="the built example versus_torch")
    parser.add_argument("--policy", default="default")
    parser.add_argument("--options", default="", help="further options of ours: headroom_percent:5")
    parser.add_argument("--turns", type=int, default=3, help="runs of each, alternating")
    parser.add_argument("--rounds", type=int, default=5, help="measurements in a run")
    parser.add_argument("--times", type=int, default=50_000, help="operations in a measurement")
    parser.add_argument("--only", default="cached,threads,mixed,trace", help="some of these")
    parser.add_argument("--torch-conf", help="PYTORCH_CUDA_ALLOC_CONF for PyTorch")
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("traces", nargs="*", help="TRACE.csv.gz, TRACE.csv or moe:SHAPE:SEED:STEPS")
    options = parser.parse_args()
    if min(options.turns, options.rounds, options.times) < 1:
        parser.error("--turns, --rounds and --times are at least 1")

    with tempfile.TemporaryDirectory() as folder:
        program, environment = build(folder)
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            environment.pop(name, None)
        if options.torch_conf:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = options.torch_conf
        traces = plain(options.ours, options.traces, folder)
        rounds, times = str(options.rounds), str(options.times)
        theirs = [program, rounds, times, options.only, *traces]
        ours = [options.ours, "--driver", "cuda", "--policy", options.policy]
        ours += ["--options", options.options, "--rounds", rounds, "--times", times, "--only", options.only, *traces]
        figures = {}
        for turn in range(options.turns):
            print(f"turn {turn + 1} of {options.turns}", file=sys.stderr)
            for side, (command, env) in enumerate([(theirs, environment), (ours, None)]):
                for key, value in measure(command, env).items():
                    figures.setdefault(key, ([], []))[side].append(value)

    records = []
    print("| | PyTorch, ns | Warpline, ns | PyTorch ÷ Warpline | reserved ÷ requested, PyTorch | Warpline |")
    print("|---|---|---|---|---|---|")
    for key, sides in figures.items():
        if not all(sides):
            sys.exit(f"error: only one side measured {title(key)}")
        times, held = zip(*(zip(*side) for side in sides))
        torch, warpline = (statistics.median(side) for side in times)
        reserved = ["" if None in side else f"{statistics.median(side):.4f}" for side in held]
        columns = [f"{torch:.1f}", f"{warpline:.1f}", f"{torch / warpline:.1f}", *reserved]
        print("| " + " | ".join([title(key), *columns]) + " |")
        record = dict(key, torch_ns=torch, warpline_ns=warpline, ratio=torch / warpline)
        record["turns"] = list(zip(*times))
        record["reserved"] = reserved
        records.append(record)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(records, file, indent=1)


if __name__ == "__main__":
    main()
