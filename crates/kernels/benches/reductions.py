# The cases of reductions.txt in PyTorch: as `examples/reduce_bandwidth.rs`.
import os, sys, torch

torch.set_default_device("cuda")
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "bool": "bool", "u8": "uint8",
          "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64"}
path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "reductions.txt")
for line in open(path).read().splitlines():
    if line.startswith("#"):
        continue
    op, dtype, sizes, strides, offset, dims, reps = line.split()
    sizes, strides, dims = ([int(n) for n in part.split(",") if n != "-"] for part in (sizes, strides, dims))
    offset, reps = int(offset), int(reps)
    dtype = getattr(torch, DTYPES[dtype])
    reach = offset + sum((n - 1) * s for n, s in zip(sizes, strides)) + 1
    x = torch.zeros(reach, dtype=dtype).as_strided(sizes, strides, offset)
    f = getattr(x, op)
    of = (dims,) if len(dims) > 1 else (dims[0],) if dims else ()
    g = lambda: f(*of)
    try:
        for _ in range(3):
            g()
    except Exception as error:
        print(f"{line} | {error}", flush=True)
        continue
    torch.cuda.synchronize()
    times = []
    for _ in range(7):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        for _ in range(reps):
            g()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended) / reps)
    time, read = sorted(times)[3], x.numel() * x.element_size()
    print(f"{line} | {time:.4f} ms {read / time / 1e6:.0f} GB/s", flush=True)
