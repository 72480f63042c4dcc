"""Conversations from the files of ShareGPT and WildChat, read as streams; only numbers of tokens are kept.

ShareGPT is one JSON array (or a line per conversation) of `{"id", "conversations": [{"from", "value"}, …]}`; WildChat
one object a line, `{"conversation_hash", "conversation": [{"role", "content"}, …]}`, or Parquet where pyarrow is
installed. Either is read by what is in it, not by its name.

Rule of this room: a record that is not a conversation is counted and left out, a file that is no such file is refused.
The text of a message is dropped as soon as it is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gateway.core.estimates import START_BYTES_PER_TOKEN
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.workloads import Recorded, Script, TurnScript

LICENCE_NOTES = {
    "sharegpt": "ShareGPT: the mirrors call it CC0-1.0, which is contested (users' texts, ChatGPT's answers).",
    "wildchat": "WildChat: ODC-BY since mid-2024, the AI2 ImpACT licence (low risk) before; name Zhao et al. 2024.",
}
"""For whoever brings a file. Neither comes with this project, and no text of them is kept or printed."""

_USER = {"human", "user"}
_ANSWER = {"gpt", "assistant", "chatgpt", "bing", "bard", "model"}
_CHUNK_CHARS = 1 << 20
_MAX_RECORD_CHARS = 1 << 28


@dataclass(frozen=True, slots=True)
class Filter:
    """Which conversations count. The defaults are the paper's."""

    min_turns: int = 2
    max_turns: int = 20
    max_message_tokens: int = 2048
    max_context_tokens: int = 8192

    def admits(self, script: Script) -> bool:
        turns = script.turns
        if not self.min_turns <= len(turns) <= self.max_turns or script.total_tokens > self.max_context_tokens:
            return False
        return all(max(turn.new_tokens, turn.output_tokens) <= self.max_message_tokens for turn in turns)

    def __str__(self) -> str:
        return (
            f"{self.min_turns} to {self.max_turns} turns, messages up to {self.max_message_tokens} tokens, "
            f"{self.max_context_tokens} in all"
        )


@dataclass(slots=True)
class Counts:
    """What became of the records of a file."""

    taken: int = 0
    filtered: int = 0
    malformed: int = 0


def load(kind: str, path: Path, wanted: Filter, limit: int, bytes_per_token: float = START_BYTES_PER_TOKEN) -> Recorded:
    """The first `limit` conversations of a file that pass. kind: sharegpt or wildchat. Raises ExperimentError."""
    counts, scripts = Counts(), []
    for record in _records(path):
        script = script_of(record, bytes_per_token)
        if script is None:
            counts.malformed += 1
        elif not wanted.admits(script):
            counts.filtered += 1
        else:
            counts.taken += 1
            scripts.append(script)
        if len(scripts) == limit:
            break
    if not scripts:
        raise ExperimentError(
            f"{path}: no conversation in it counts ({counts.filtered} were filtered out, {counts.malformed} are none)"
        )
    origin = (
        f"{path.name}, {counts.taken} conversations ({wanted}; {counts.filtered} filtered out, {counts.malformed} "
        f"malformed), {bytes_per_token:g} bytes taken for a token. {LICENCE_NOTES[kind]}"
    )
    return Recorded(kind, origin, scripts, repeat=True)


def script_of(record: Any, bytes_per_token: float) -> Script | None:
    """The turns of one record, None when it is no conversation with an answer.

    What is said before an answer is one prompt; a last question without an answer is left out.
    """
    messages = _messages(record)
    if messages is None:
        return None
    turns: list[TurnScript] = []
    said = 0
    for role, text in messages:
        tokens = max(1, round(len(text.encode("utf-8", "replace")) / bytes_per_token))
        if role in _ANSWER:
            if said:
                turns.append(TurnScript(said, tokens))
            said = 0
        else:
            said += tokens
    return Script(tuple(turns)) if turns else None


def _messages(record: Any) -> list[tuple[str, str]] | None:
    if not isinstance(record, dict):
        return None
    found = record.get("conversations", record.get("conversation"))
    if not isinstance(found, list):
        return None
    messages = []
    for message in found:
        if not isinstance(message, dict):
            return None
        role, text = message.get("from", message.get("role")), message.get("value", message.get("content"))
        if not isinstance(role, str) or not isinstance(text, str) or role not in _USER | _ANSWER | {"system"}:
            return None
        messages.append((role, text))
    return messages


def _records(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.read(1)
            while first.isspace() or first == "\ufeff":
                first = file.read(1)
            if first == "[":
                yield from _array(path, file)
            elif first == "{":
                yield from _lines(file, first)
            else:
                raise ExperimentError(f"{path}: neither a JSON array nor a JSON object a line")
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read ({error.strerror})") from None


def _lines(file: TextIO, first: str) -> Iterator[Any]:
    """A line that is no JSON gives None, which counts as malformed."""
    for line in _after(first, file):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                yield None


def _after(first: str, file: TextIO) -> Iterable[str]:
    yield first + file.readline()
    yield from file


def _array(path: Path, file: TextIO) -> Iterator[Any]:
    """The elements of an array whose bracket was read, one at a time."""
    decoder = json.JSONDecoder()
    buffer, at, done = "", 0, 0
    while True:
        while at < len(buffer) and (buffer[at].isspace() or buffer[at] == ","):
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        if at < len(buffer):
            try:
                record, at = decoder.raw_decode(buffer, at)
            except (ValueError, RecursionError):
                pass
            else:
                done += 1
                yield record
                continue
        # Twice as much each time, or a long record would be tried again for each chunk of it.
        more = file.read(max(_CHUNK_CHARS, len(buffer) - at))
        if not more or len(buffer) - at > _MAX_RECORD_CHARS:
            raise ExperimentError(f"{path}: no JSON behind record {done}, or the array does not end")
        buffer, at = buffer[at:] + more, 0


def _parquet(path: Path) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ExperimentError(f"{path}: pyarrow is not installed; give the data as JSON lines") from None
    try:
        with ParquetFile(path) as file:
            names = [name for name in ("conversation", "conversations") if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=256, columns=names):
                yield from batch.to_pylist()
    except (OSError, ArrowException) as error:
        raise ExperimentError(f"{path}: cannot be read as Parquet ({error})") from None
