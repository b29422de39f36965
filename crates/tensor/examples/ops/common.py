"""What `torch.py` and `numpy.py` share, each of which follows it in the program that the example starts.

Each line on stdin is an order in JSON, each line on stdout what came of it:
{"prepare": {...}}, {"measure": milliseconds}, {"drop": whether to empty the cache}.
"""

import json
import os
import sys
import time

# Whatever libraries print must not come between the replies.
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def reply(**values):
    replies.write(json.dumps(values) + "\n")
    replies.flush()


class Timed:
    """A row that is being measured, as in `timing.rs`: a call of its own is `calls` of the op."""

    calls, reps = 1, None
    # Calls that are enqueued without a wait: with more, the host waits for the device.
    most = 500

    def loop(self, reps):
        """Seconds of so many calls, by the clock."""
        call = self.call
        start = time.perf_counter()
        for _ in range(reps):
            call()
        return time.perf_counter() - start

    def once(self, reps):
        return self.loop(reps)

    def measure(self, target_ms):
        """Seconds of a call, of as many as take the target."""
        if self.reps is None:
            first = min(self.once(1), self.once(1))
            self.reps = int(max(1, min(target_ms / 1e3 / max(first, 1e-9), self.most)))
            self.once(self.reps)
        return self.once(self.reps) / self.reps / self.calls


def serve(new_row, drop=lambda empty: None):
    """Carries orders out until there are no more."""
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
