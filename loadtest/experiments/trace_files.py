"""Recorded traffic: what a gateway wrote about its requests, or a trace of one's own.

A trace has one JSON object a line and turn, in any order: `{"at_s": 12.5, "conversation": "x", "new_tokens": 40,
"output_tokens": 210, "tenant": "a"}`; `at_s` is when the turn was sent, `tenant` may be left out. A gateway's access
lines are read as they are, in either format; they hold no text.

Rule of this room: a turn's thinking time is what passed since the turn before it ended, as far as that was recorded.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.workloads import Recorded, Script, TurnScript

_ACCESS = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) \S+ ppd_gateway\.access (.*)$")
_FIELD = re.compile(r'(\w+)=("[^"]*"|\S+)')
TOKEN_S = 0.01
"""Taken for a token of an answer whose end was not recorded."""


class TraceLine(msgspec.Struct, frozen=True):
    """One turn of a trace."""

    at_s: Annotated[float, Meta(ge=0, le=1e10)]
    conversation: Annotated[str, Meta(min_length=1)]
    new_tokens: Annotated[int, Meta(ge=1, le=2**24)]
    output_tokens: Annotated[int, Meta(ge=1, le=2**24)]
    tenant: str = ""


class _Seen(NamedTuple):
    at_s: float
    ended_s: float
    prompt_tokens: int | None
    new_tokens: int
    output_tokens: int
    tenant: str


def load(path: Path) -> Recorded:
    """Raises ExperimentError naming the line."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.strip()]
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read ({error.strerror})") from None
    own = bool(lines) and lines[0].lstrip().startswith("{") and '"at_s"' in lines[0]
    seen, left_out = _trace(path, lines) if own else _access(lines)
    if not seen:
        raise ExperimentError(f"{path}: neither a trace nor access lines of a gateway: no turn in it")
    scripts = _scripts(seen)
    turns = sum(len(script.turns) for script in scripts)
    origin = f"recorded: {path.name}, {len(scripts)} conversations, {turns} turns, {left_out} lines left out"
    return Recorded(path.stem, origin, scripts)


def _trace(path: Path, lines: Iterable[str]) -> tuple[dict[str, list[_Seen]], int]:
    seen: dict[str, list[_Seen]] = defaultdict(list)
    decoder = msgspec.json.Decoder(TraceLine)
    for number, line in enumerate(lines, start=1):
        try:
            turn = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise ExperimentError(f"{path}: turn {number}: {error}") from None
        ended_s = turn.at_s + TOKEN_S * turn.output_tokens
        seen[turn.conversation].append(
            _Seen(turn.at_s, ended_s, None, turn.new_tokens, turn.output_tokens, turn.tenant)
        )
    return seen, 0


def _access(lines: Iterable[str]) -> tuple[dict[str, list[_Seen]], int]:
    """Answered turns only; a log has many other lines."""
    seen: dict[str, list[_Seen]] = defaultdict(list)
    left_out = 0
    for line in lines:
        try:
            ended_s, fields = _json_line(line) if line.startswith("{") else _console_line(line)
            prompt, output = int(fields["prompt_tokens"]), int(fields["output_tokens"])
            at_s = ended_s - float(fields["total_ms"]) / 1000
            seen[fields["conversation"]].append(_Seen(at_s, ended_s, prompt, prompt, max(1, output), ""))
        except (KeyError, ValueError, TypeError, msgspec.MsgspecError):
            left_out += 1
    return seen, left_out


def _console_line(line: str) -> tuple[float, dict[str, str]]:
    """When it was written and its fields. Raises ValueError for another kind of line."""
    match = _ACCESS.match(line)
    if match is None:
        raise ValueError
    ended_s = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
    return ended_s, dict(_FIELD.findall(match[2]))


def _json_line(line: str) -> tuple[float, dict[str, Any]]:
    """The same of a line of `log_format = "json"`."""
    fields = msgspec.json.decode(line, type=dict[str, Any])
    if fields["logger"] != "ppd_gateway.access":
        raise ValueError
    return datetime.fromisoformat(fields["time"]).timestamp(), fields


def _scripts(seen: dict[str, list[_Seen]]) -> list[Script]:
    began_s = min(turn.at_s for turns in seen.values() for turn in turns)
    scripts = []
    for turns in seen.values():
        turns.sort(key=lambda turn: turn.at_s)
        made = []
        context, free_s = 0, turns[0].at_s
        for turn in turns:
            new = turn.new_tokens if turn.prompt_tokens is None else max(1, turn.prompt_tokens - context)
            made.append(TurnScript(new, turn.output_tokens, max(0.0, turn.at_s - free_s)))
            context = (turn.prompt_tokens or context + new) + turn.output_tokens
            free_s = turn.ended_s
        scripts.append(Script(tuple(made), turns[0].tenant, turns[0].at_s - began_s))
    return sorted(scripts, key=lambda script: script.at_s or 0.0)
