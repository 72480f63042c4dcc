"""The demo's flags and its one environment variable.

Rule of this room: what cannot work is refused here, before anything is started.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_CONVERSATIONS, MAX_TURNS = 16, 8
"""With more turns the longest conversation would outgrow the model's context."""


@dataclass(frozen=True, slots=True)
class Options:
    """once: end after the summary. json: where to write it."""

    conversations: int
    turns: int
    port: int
    json: Path | None
    once: bool


def parse(arguments: Sequence[str] | None, environment: Mapping[str, str]) -> Options:
    """Read the command line. Exits with status 2 when it makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.demo",
        description="A gateway in front of simulated vLLM pods: plays a few conversations, shows what became of each "
        "turn, compares with every turn through the prefill pod, then serves until Ctrl-C.",
        epilog="DEMO_ONCE=1 in the environment: end after the summary.",
    )
    parser.add_argument("--conversations", type=_whole(1, MAX_CONVERSATIONS), default=4, metavar="N", help="default 4")
    parser.add_argument("--turns", type=_whole(2, MAX_TURNS), default=4, metavar="N", help="of each; default 4")
    parser.add_argument("--port", type=_whole(0, 65535), default=0, help="of the gateway; default 0, any free port")
    parser.add_argument("--json", type=_writable, metavar="FILE", help="write rows and summary there")
    once = environment.get("DEMO_ONCE", "") not in ("", "0")
    return Options(**vars(parser.parse_args(arguments)), once=once)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def check(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}")
        return int(text)

    return check


def _writable(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in a directory that exists")
    return path
