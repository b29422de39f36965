"""Counts lines of Rust code without comments, blanks and tests in `tensor`, `kernels` and `runtime`, by cause.

Usage: python3 docs/notes/lines_of_code.py COMMIT COMMIT
"""
import collections
import re
import subprocess
import sys

# The first pattern that matches a path in a crate's `src` decides.
CAUSES = [
    ("Mixed precision: autocast, `GradScaler`, precision switches", r"/amp/|unscale|total_norm|precision|/autocast"),
    ("Attention, rotary embedding, key-value cache", r"attention|rotary|kv_cache"),
    ("Normalization, with batch norm", r"norm"),
    ("Convolutions, cuDNN, pooling, resampling", r"conv|/pool|resample|window|cudnn|column"),
    ("Graphs of steps, replays, captures", r"graph|replay|captur"),
    ("Shared memory of processes, semaphores, peers", r"multiprocess|semaphore|shared_memory|/shared|peers"),
    ("Elementwise ops and their gradients",
     r"elementwise|formula|unary|binary|operators|powers|inplace|activation|bounds|expr|methods/ops|math/"),
    ("Reductions, statistics, scans, sorting", r"reduce|reduction|statistic|scan|sort|order|topk|cumul"),
    ("Indexing, scatter, shapes, views, copies", r"index|scatter|shapes|views|transfer|cat|strided|fill|copy|copies"),
    ("Products and linear layers", r"product|matmul|linear|blas"),
    ("Losses, dropout, embeddings", r"loss|cross_entropy|dropout|embedding|functional/"),
    ("Autograd engine", r"autograd"),
    ("Random numbers", r"random|generator|philox"),
    ("Creation, reading, printing, options",
     r"print|factor|literal|read|options|tensor_data|new_like|shape|tensor\.rs|pending|dtype"),
    ("Launch path, iteration, typed kernels", r"launch|iter|kernel|module|program|lanes|host"),
    ("Storage, order of uses, races", r"storage|race|memory|runtime"),
    ("CUDA interface of the façade", r"cuda"),
    ("Optimizers", r"optim"),
    ("Other", ""),
]
SOURCE = re.compile(r"crates/(tensor|kernels|runtime)/src(/.*\.rs)$")
TEST = re.compile(r"(^|/)\w*tests?(/|\.rs|_)")


def git(*arguments):
    return subprocess.check_output(["git", *arguments], text=True)


def code_lines(text):
    """Counts lines of code, without items under `#[cfg(test)]`."""
    count, lines = 0, iter(text.split("\n"))
    for line in lines:
        line = line.strip()
        if re.match(r"#\[cfg\((all\()?test", line):
            depth, began = 0, False
            for line in lines:
                line = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', "", line).split("//")[0]
                depth += line.count("{") - line.count("}")
                began |= "{" in line
                if depth <= 0 and (began or line.rstrip().endswith(";")):
                    break
        elif line and not line.startswith("//"):
            count += 1
    return count


def by_cause(commit):
    counts = collections.Counter()
    for path in git("ls-tree", "-r", "--name-only", commit).split("\n"):
        source = SOURCE.match(path)
        if source and not TEST.search(source[2]):
            cause = next(name for name, pattern in CAUSES if re.search(pattern, source[2]))
            counts[cause] += code_lines(git("show", f"{commit}:{path}"))
    return counts


before, after = map(by_cause, sys.argv[1:3])
for cause, _ in sorted(CAUSES, key=lambda cause: before[cause[0]] - after[cause[0]]):
    print(f"| {cause} | {before[cause]:,} | {after[cause]:,} | {after[cause] - before[cause]:+,} |")
total = [sum(counts.values()) for counts in (before, after)]
print(f"| all | {total[0]:,} | {total[1]:,} | {total[1] - total[0]:+,} |")
