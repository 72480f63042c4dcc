"""What counts as a unit test is there, and what does not stay among its own is failed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit import OUTSIDE, ROOT, selection

WORLDLY_TESTS = """
import socket, subprocess, sys

def test_a_process():
    subprocess.run([sys.executable, "-c", ""])

def test_a_listener():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))

def test_a_connection_whose_error_is_caught():
    with socket.socket() as caller:
        try:
            caller.connect(("127.0.0.1", 9))
        except Exception:
            pass

def test_nothing_of_that_kind():
    pass
"""


@pytest.mark.parametrize("name", OUTSIDE, ids=str)
def test_what_is_left_out_exists(name: str) -> None:
    pattern, _, test = name.partition("::")
    files = list(ROOT.glob(pattern))
    assert files
    assert not test or re.search(rf"^(async )?def {test}\b", files[0].read_text(), re.MULTILINE)


def test_the_sans_io_rooms_are_taken_whole() -> None:
    taken = [argument for argument in selection() if not argument.startswith("--")]
    assert {"tests/core", "tests/wire", "tests/lut", "tests/test_imports.py", "tests/test_docs.py"} <= set(taken)
    assert not any(name.startswith(("tests/core/", "tests/wire/", "tests/lut/")) for name in OUTSIDE)


def test_a_process_or_a_connection_fails_a_unit_test(tmp_path: Path) -> None:
    file = tmp_path / "test_worldly.py"
    file.write_text(WORLDLY_TESTS)
    run = "import sys, pytest; from tests.unit import Guard; sys.exit(pytest.main(sys.argv[1:], plugins=[Guard()]))"
    options = ["-q", "-c", "/dev/null", f"--rootdir={tmp_path}", "-p", "no:cacheprovider", str(file)]
    ended = subprocess.run([sys.executable, "-c", run, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    failed = re.findall(r"^FAILED \S+::(\w+)", ended.stdout, re.MULTILINE)
    assert failed == ["test_a_process", "test_a_listener", "test_a_connection_whose_error_is_caught"], ended.stdout
    assert "1 passed" in ended.stdout
