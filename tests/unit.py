"""The unit tests alone: those that start no process and open no connection.

Run as `python -m tests.unit [pytest arguments]` from the repository's root. A test of these that does either fails.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("tests/core", "tests/wire", "tests/lut", "tests/ops", "tests/loadtest")
"""Their tests are unit tests, as are those of `tests/test_*.py`, but for `OUTSIDE`."""

OUTSIDE: tuple[str, ...] = (
    "tests/test_loaded.py",
    "tests/test_run.py",
    "tests/test_unit.py",
    "tests/ops/test_admin*.py",
    "tests/ops/test_completion.py",
    "tests/ops/test_control_settings.py::test_without_the_admin_api_its_library_is_not_loaded",
    "tests/ops/test_doctor*.py",
    "tests/ops/test_extra_commands.py",
    "tests/ops/test_keys.py::test_profile_shows_the_pods_their_key",
    "tests/ops/test_profile_command.py",
    "tests/ops/test_scrape.py::test_workers_ask_each_other_and_a_silent_one_is_shown_as_down",
    "tests/ops/test_tracing.py",
    "tests/loadtest/experiments/test_commands.py",
    "tests/loadtest/experiments/test_paper.py",
    "tests/loadtest/experiments/test_run.py::test_rows_are_written_and_read_again_and_do_not_depend_on_the_processes",
    "tests/loadtest/experiments/test_slo.py::test_the_same_case_runs_on_http_pods_behind_the_gateway_as_it_is_served",
    "tests/loadtest/experiments/test_slo_drift.py::test_on_http_pods_become_slow_in_the_middle",
    "tests/loadtest/live/test_live_client.py",
    "tests/loadtest/live/test_live_run.py",
    "tests/loadtest/test_bench_*.py",
    "tests/loadtest/test_fit_stream.py",
    "tests/loadtest/test_kv_events.py",
    "tests/loadtest/test_mock_*.py",
    "tests/loadtest/test_pod_*.py",
    "tests/loadtest/test_probes.py",
)
"""Files, and single tests of files that have others. Of benchmarks and experiments also what runs a whole command."""

WORLDLY = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "socket.bind", "socket.connect"})
"""Audit events that a unit test must not cause."""


class Guard:
    """Fails a test that causes a worldly event, and says where."""

    def __init__(self) -> None:
        self._running = False
        self._seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._running and event in WORLDLY:
            self._seen.append(event + ":\n" + "".join(traceback.format_stack(limit=8)[:-1]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        self._running = True
        self._seen.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        result = yield
        self._running = False
        if self._seen:
            pytest.fail(f"not a unit test ({Path(__file__).name} says what is): {self._seen[0]}", pytrace=False)
        return result


def selection() -> list[str]:
    """What pytest is to be called with."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("test_*.py"))
    return [
        *ROOMS,
        *(file for file in files if file not in OUTSIDE),
        *(f"--deselect={each}" if "::" in each else f"--ignore-glob={ROOT / each}" for each in OUTSIDE),
    ]


def main(arguments: list[str]) -> int:
    return pytest.main([*selection(), *arguments], plugins=[Guard()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
