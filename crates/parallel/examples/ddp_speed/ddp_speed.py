"""PyTorch's part of ddp_speed: the same model, steps and tokens. `torchrun` starts it with the settings as JSON."""

import json
import os
import struct
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER), str(FOLDER / "../../../nn/examples/model_speed")]
from pytorch import Gpt  # noqa: E402

WARM_UP, CHECKED_STEPS, ALL_REDUCES, LR = 11, 20, 10, 1e-4
S = json.loads(sys.argv[1])
CUDA = not S["cpu"]
if S["graph"]:
    # The watchdog must not query events while a stream is captured.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def median(times):
    return sorted(times)[len(times) // 2] if times else None


def gpt():
    return Gpt(S["width"], S["heads"], S["layers"], S["vocabulary"], S["length"]).to(DEVICE)


def data_parallel(net):
    return net if RANKS == 1 else DistributedDataParallel(net, device_ids=[DEVICE.index] if CUDA else None)


def adamw(net, **options):
    return torch.optim.AdamW(net.parameters(), LR, fused=True, **options)


def timed(step):
    """Returns the microseconds of a step, in a run that all ranks start together."""
    dist.barrier()
    synchronize()
    start = time.perf_counter()
    for _ in range(S["steps"]):
        step()
    synchronize()
    return (time.perf_counter() - start) * 1e6 / S["steps"]


def last_bucket(net):
    """Returns the size of the last bucket in bytes, and the microseconds of its all-reduce between two events."""
    sizes = str(net._get_ddp_logging_data()["rebuilt_bucket_sizes"])
    size = int(sizes.split(",")[-1])
    if not CUDA:
        return size, None
    buffer = torch.zeros(size // 2, dtype=torch.bfloat16, device=DEVICE)
    times = []
    for _ in range(S["runs"] + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        start.record()
        for _ in range(ALL_REDUCES):
            dist.all_reduce(buffer)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / ALL_REDUCES)
    return size, median(times[1:])


def speed():
    net = gpt().bfloat16()
    side = torch.cuda.Stream() if CUDA else None
    # A DistributedDataParallel that is captured must be made on a side stream.
    with torch.cuda.stream(side if S["graph"] else None):
        net = data_parallel(net)
    tokens = torch.randint(0, S["vocabulary"], (S["batch"], S["length"]), device=DEVICE)

    def step_of(optimizer):
        def step():
            optimizer.zero_grad(set_to_none=True)
            net(tokens, tokens).backward()
            optimizer.step()

        return step

    step = step_of(adamw(net))
    for _ in range(WARM_UP):
        step()
    with_ddp, without = [], []
    for _ in range(S["runs"]):
        with_ddp.append(timed(step))
        if RANKS > 1:
            with net.no_sync():
                without.append(timed(step))
    row = {"step_us": median(with_ddp), "no_sync_us": median(without)}
    row["peak"] = torch.cuda.max_memory_allocated() if CUDA else None
    if RANKS > 1:
        row["last_bucket_bytes"], row["last_all_reduce_us"] = last_bucket(net)
    if S["graph"]:
        row["graph_us"] = captured(step_of(adamw(net, capturable=True)), side)
    return row


def captured(step, side):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        step()
    return median([timed(graph.replay) for _ in range(S["runs"])])


def text(batch):
    """The made-up text of rank.rs, as [batch, length + 1]."""
    count = S["batch"] * (S["length"] + 1)
    number = torch.arange(batch * count, (batch + 1) * count, dtype=torch.int64)
    mixed = (number * 2654435761 & 0xFFFFFFFF) ^ (number & 0xFF) << 20
    return (mixed * S["vocabulary"] >> 32).view(S["batch"], -1).to(DEVICE)


def load(path):
    """Reads float32 tensors from a safetensors file."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, data = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32", name
            start, end = entry["data_offsets"]
            flat = torch.frombuffer(data, dtype=torch.float32, count=(end - start) // 4, offset=start)
            tensors[name] = flat.view(entry["shape"])
    return tensors


def check():
    net = gpt()
    net.load_state_dict(load(S["weights"]))
    net = data_parallel(net)
    optimizer, losses = adamw(net), []
    for step in range(CHECKED_STEPS):
        batch = text(step * RANKS + RANK)
        optimizer.zero_grad(set_to_none=True)
        loss = net(batch[:, :-1], batch[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean / RANKS)
    return {"losses": [loss.item() for loss in losses]}


torch.backends.cuda.matmul.allow_tf32 = False
if CUDA:
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE)
else:
    dist.init_process_group("gloo")
row = check() if S["check"] else speed()
row["torch"] = torch.__version__
if RANK == 0:
    print(json.dumps(row), flush=True)
dist.destroy_process_group()
