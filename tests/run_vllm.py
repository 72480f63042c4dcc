"""The tests in front of real vLLM pods, or a loud word on why they did not run.

Run as `python -m tests.run_vllm [pytest arguments]` from the repository's root. Exit code: pytest's own, or 0 when
the vLLM environment can neither be found nor built.
"""

from __future__ import annotations

import subprocess
import sys

from loadtest.vllm_cpu import environment
from loadtest.vllm_cpu.errors import BuildError


def main(arguments: list[str]) -> int:
    try:
        environment.ensure()
    except BuildError as error:
        _shout(f"REAL vLLM TESTS SKIPPED: {error}")
        return 0
    return subprocess.call([sys.executable, "-m", "pytest", "tests/vllm", *(arguments or ["-q"])])


def _shout(words: str) -> None:
    line = "!" * min(100, max(40, len(words)))
    sys.stdout.flush()
    sys.stdout.write(f"\n{line}\n{words}\n{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
