"""Which failed tests get a second try."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run import MOST, main, may_try_again


@pytest.mark.parametrize(
    ("failed", "again"),
    [
        ([], False),
        (["tests/vllm/test_a.py::test_b"], True),
        ([f"tests/net/test_a.py::test_{n}" for n in range(MOST)], True),
        ([f"tests/net/test_a.py::test_{n}" for n in range(MOST + 1)], False),
        (["tests/net/test_a.py::test_b", "tests/core/test_a.py::test_b"], False),
        (["tests/test_docs.py::test_b"], False),
    ],
)
def test_a_handful_that_the_machine_can_be_blamed_for(failed: list[str], again: bool) -> None:
    assert may_try_again(failed) is again


PASSES_THEN = """
from pathlib import Path
def test_moody():
    seen = Path(__file__).with_name("seen")
    tried = len(seen.read_text()) if seen.exists() else 0
    seen.write_text("x" * (tried + 1))
    assert tried >= {fails}
def test_steady():
    with Path(__file__).with_name("steady").open("a") as seen:
        seen.write("x")
"""


@pytest.mark.parametrize(("fails", "code", "word"), [(0, 0, ""), (1, 0, "PASSED AT THE SECOND TRY"), (2, 1, "STILL")])
def test_what_failed_is_run_once_more_alone_and_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fails: int, code: int, word: str
) -> None:
    (tmp_path / "test_moody.py").write_text(PASSES_THEN.format(fails=fails))
    assert main(["-q", "-c", "/dev/null", f"--rootdir={tmp_path}", str(tmp_path)]) == code
    assert (tmp_path / "steady").read_text() == "x"
    said = capfd.readouterr().out
    assert word in said
    assert ("test_moody.py::test_moody\n!!" in said) is bool(word)


def test_a_run_that_pytest_could_not_make_is_not_repeated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-q", "-c", "/dev/null", f"--rootdir={tmp_path}", str(tmp_path / "nothing_here.py")]) == 4
    assert "ONCE MORE" not in capfd.readouterr().out


HANGS_ONCE = """
import threading
from pathlib import Path
def test_stuck():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        threading.Event().wait()
"""


def test_what_hangs_has_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_stuck.py").write_text(HANGS_ONCE)
    options = ["-q", "-c", "/dev/null", "-o", "timeout=0.5", f"--rootdir={tmp_path}"]
    assert main([*options, str(tmp_path)]) == 0
    said = capfd.readouterr().out
    assert "Timeout (>0.5s)" in said
    assert "PASSED AT THE SECOND TRY ONLY" in said


def test_every_test_has_a_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) < float(pytestconfig.getini("faulthandler_timeout"))
    assert pytestconfig.getini("faulthandler_exit_on_timeout")
