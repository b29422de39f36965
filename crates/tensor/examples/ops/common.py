"""The common first part of the programs `torch.py` and `numpy.py`, as the example starts them.

Each line on stdin is an order in JSON, each line on stdout its reply:
{"prepare": {...}}, {"measure": milliseconds}, {"drop": whether to empty the cache}.
"""

import json
import os
import sys
import time

# Libraries must not write between the replies, so their output goes to standard error.
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def reply(**values):
    replies.write(json.dumps(values) + "\n")
    replies.flush()


class Timed:
    """A row that is being measured, as in `timing.rs`. One call runs the op `calls` times."""

    calls, reps = 1, None
    # Maximum number of calls enqueued without a wait. With more, the host waits for the device.
    most = 500

    def loop(self, reps):
        """Returns the seconds that `reps` calls take the host."""
        call = self.call
        start = time.perf_counter()
        for _ in range(reps):
            call()
        return time.perf_counter() - start

    def once(self, reps):
        return self.loop(reps)

    def measure(self, target_ms):
        """Returns the seconds per call, measured over enough calls to fill the target time, up to a maximum."""
        if self.reps is None:
            first = min(self.once(1), self.once(1))
            self.reps = int(max(1, min(target_ms / 1e3 / max(first, 1e-9), self.most)))
            self.once(self.reps)
        return self.once(self.reps) / self.reps / self.calls


def serve(new_row, drop=lambda empty: None):
    """Carries out orders until the end of the input."""
    row = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "prepare" in order:
                row = new_row(order["prepare"])
                reply()
            elif "measure" in order:
                reply(seconds=row.measure(order["measure"]))
            else:
                row = None
                drop(order["drop"])
                reply()
        except Exception as error:
            row = None
            reply(error=f"{type(error).__name__}: {error}")
