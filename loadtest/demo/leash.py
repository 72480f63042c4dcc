"""`python -m loadtest.demo.leash PARENT MODULE ARGS…`: run a module that ends when its parent does, however that ends.

Rule of this room: Linux only has the means (`PR_SET_PDEATHSIG`); elsewhere this runs the module and nothing more.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def follow(parent: int) -> None:
    """Have the kernel send SIGTERM when the parent ends; exit if it has ended already."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    follow(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
