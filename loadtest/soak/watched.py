"""`python -m loadtest.soak.watched serve …`: `ppd-gateway`, which at SIGUSR2 counts its tasks and its blocks of memory.

Rule of this room: the gateway itself is untouched, and nothing happens until it is asked.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from gateway.ops.cli import main


def tell(*_: object) -> None:
    """A line on standard error."""
    counts = f"tasks={len(asyncio.all_tasks())} blocks={sys.getallocatedblocks()}"
    print(f"soak {counts}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, tell)
    sys.exit(main())
