"""The tests in front of real vLLM pods, or a loud word on why they did not run.

Run as `python -m tests.run_vllm [pytest arguments]` from the repository's root. Exit code: that of tests.run, or 0 when
the vLLM environment can neither be found nor built.
"""

from __future__ import annotations

import sys

from loadtest.vllm_cpu import environment
from loadtest.vllm_cpu.errors import BuildError
from tests import run

LIMITS = ("--timeout=900", "-o", "faulthandler_timeout=1000")
"""Seconds for a test: the first of a file also waits for its pods."""


def main(arguments: list[str]) -> int:
    try:
        environment.ensure()
    except BuildError as error:
        run.shout([f"REAL vLLM TESTS SKIPPED: {error}"])
        return 0
    return run.main(["tests/vllm", *LIMITS, *(arguments or ["-q"])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
