"""pytest, with one more try, alone, for what failed because the machine was busy.

Run as `python -m tests.run [pytest arguments]` from the repository's root. Tests that start processes, pods, a browser
or a Prometheus depend on a machine that others use as well. What fails among them is run once more by itself, when it
is no more than a handful, and named loudly at the end. What cannot depend on the machine gets no second try.
Exit code: pytest's own, of the last run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 5
NEVER = ("tests/core/", "tests/wire/", "tests/lut/", "tests/test_")
"""Where no test knows of time, processes or sockets."""
FAILED = 1
"""pytest's exit code for tests that failed; all others are about the run itself."""


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="ppd-tests-") as folder:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={folder}", *arguments]
        code = subprocess.call(command)
        failed = _failed(Path(folder)) if code == FAILED else []
        if not may_try_again(failed):
            return code
        shout([f"{len(failed)} FAILED AND ARE RUN ONCE MORE, ALONE:", *failed])
        code = subprocess.call([*command, "--last-failed"])
        shout([f"{'STILL FAILING' if code else 'PASSED AT THE SECOND TRY ONLY'}, OF:", *failed])
        return code


def may_try_again(failed: list[str]) -> bool:
    """Not when nothing failed that pytest could name, too much, or what the machine cannot be blamed for."""
    return 0 < len(failed) <= MOST and not any(test.startswith(NEVER) for test in failed)


def _failed(cache: Path) -> list[str]:
    """Node ids, as pytest's cache has them."""
    try:
        return sorted(json.loads((cache / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:
        return []


def shout(lines: list[str]) -> None:
    """Between two rules, where nobody reads past it."""
    rule = "!" * min(100, max(40, *map(len, lines)))
    sys.stdout.flush()
    sys.stdout.write("\n".join(["", rule, *lines, rule, ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
