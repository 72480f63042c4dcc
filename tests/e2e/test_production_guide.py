"""docs/production.md, pasted: its commands in one shell, in order, and what it says that they print.

Ports and the folder are other ones here, nothing else. Of a ```text block every line must be found in what its command
printed, in that order; `…` stands for anything.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.test_demo import MARK, descendants
from tests.prometheus_server import needs_guide_tools

pytestmark = needs_guide_tools

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
FOLDER = "build/guide"
ADMIN = "9901"
NOT_RUN = {"What you need"}
"""Sections that install things."""
LIMIT_S = 180
_MARK = "guide-block"


@dataclass(frozen=True)
class Block:
    """One ```sh block with the section it is in and the lines that it should print."""

    section: str
    commands: str
    expected: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.section}: {self.commands.strip().splitlines()[0][:60]}"


def blocks(text: str) -> list[Block]:
    """The page's blocks in order, up to the section about clusters."""
    found, section = [], ""
    for part in re.finditer(
        r"^## ([^\n]+)$|^```sh\n(.*?)^```\n(?:```text\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL
    ):
        if part[1] is not None:
            section = part[1]
        elif section not in NOT_RUN:
            found.append(Block(section, part[2], tuple((part[3] or "").splitlines())))
    return found


BLOCKS = blocks(GUIDE)


def free_ports(wanted: list[str]) -> dict[str, str]:
    """A free port for each."""
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in wanted]
        return {port: str(server.getsockname()[1]) for port, server in zip(wanted, servers, strict=True)}


def elsewhere(text: str, ports: dict[str, str], folder: str) -> str:
    """The page with other ports and another folder."""
    for port, other in ports.items():
        text = re.sub(rf"(?<![a-z-]\d:)\b{port}\b", other, text)  # not those of p0:8100, which a file has
    text = re.sub(
        r"ppd-gateway canary (status|on|off|set \d+)", rf"\g<0> --admin http://127.0.0.1:{ports[ADMIN]}", text
    )
    return text.replace(FOLDER, folder)


def missing(expected: tuple[str, ...], printed: str) -> str | None:
    """The first expected line that is not in what was printed behind those before it; None when all are."""
    lines = iter(printed.splitlines())
    for line in expected:
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        if not any(re.search(pattern, shown) for shown in lines):
            return line
    return None


@dataclass(frozen=True, repr=False)
class Done:
    """status: of the shell. printed: by block. left: processes that the page has not ended. run: the blocks as run."""

    status: int
    printed: list[str]
    left: dict[int, str]
    run: list[Block]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = str(tmp_path_factory.mktemp("guide"))
    used = sorted(set(re.findall(r"127\.0\.0\.1:(\d{4})\b", GUIDE)))
    run = blocks(elsewhere(GUIDE, free_ports(used), folder))
    script = ["set -e"]
    for number, block in enumerate(run):
        script += [f"echo {_MARK} {number}", block.commands]
    mark = uuid.uuid4().hex
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PPD_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        MARK: mark,
    }
    output = Path(folder) / "output.txt"
    with output.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", "-c", "\n".join(script)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            status = shell.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            left = {pid: words for pid, words in descendants(mark).items() if pid != shell.pid}
            for pid in [shell.pid, *left]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shell.wait()
    printed = re.split(rf"^{_MARK} \d+\n", output.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return Done(status, printed, left, run)


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=[block.title for block in BLOCKS])
def test_a_command_prints_what_the_page_says(number: int, done: Done) -> None:
    if number >= len(done.printed):
        pytest.fail(f"not reached: the page stops at {BLOCKS[len(done.printed) - 1].title!r}", pytrace=False)
    line = missing(done.run[number].expected, done.printed[number])
    assert line is None, f"{line!r} is missing in:\n{done.printed[number]}"


def test_every_command_succeeds_and_the_page_ends_what_it_began(done: Done) -> None:
    assert done.status == 0, done.printed[-1]
    assert done.left == {}


def test_the_page_has_all_that_an_operator_does() -> None:
    sections = {block.section for block in BLOCKS}
    assert sections >= {"The live page", "A canary that is bad", "Drain a pod", "Reload a table", "Stop"}
    assert sum(bool(block.expected) for block in BLOCKS) > 15


def test_lines_are_looked_for_in_order_and_with_gaps() -> None:
    printed = "one\ntwo 22\nthree\n"
    assert missing(("one", "t…2", "three"), printed) is None
    assert missing(("three", "one"), printed) == "one"
    assert missing(("t…3",), printed) == "t…3"
