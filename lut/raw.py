"""Raw measurements: what a profiler writes, append-only, one JSON line per cell, arm and repeat.

Rule of this room: a line is written once, in one piece, and never changed. An interrupted run may leave a torn last
line, which is reported and left out; anything else that is malformed names file and line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta

from lut.cell import Route
from lut.errors import refuse

Tokens = Annotated[int, Meta(ge=0, le=2**31)]
Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class RawPoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One arm in one cell, measured once.

    Latencies are of the turns that came to a good end, None when none did; TPOT is None also for outputs of one
    token, which have none. A turn that did not end before the run was stopped did not come to a good end.
    """

    format: Literal["ppd-raw"] = "ppd-raw"
    version: Literal[1] = 1
    assignment: Annotated[str, Meta(pattern="^[1-9][0-9]*P_[1-9][0-9]*D$")]
    arm: Route
    context_tokens: Tokens
    new_tokens: Annotated[int, Meta(ge=1, le=2**31)]
    output_tokens: Annotated[int, Meta(ge=1, le=2**31)]
    rate: Annotated[float, Meta(gt=0, le=1e9)]
    """Turns per second at the gateway, as asked for."""
    rate_achieved: Seconds | None
    """Turns per second that were really sent."""
    repeat: Count
    samples: Count
    """Turns measured, whatever became of them."""
    success: Annotated[float, Meta(ge=0, le=1)]
    """Share of them that came to a good end."""
    ttft_mean_s: Seconds | None
    ttft_p99_s: Seconds | None
    tpot_mean_s: Seconds | None
    tpot_p99_s: Seconds | None
    model: str
    block_size: Annotated[int, Meta(ge=1)] | None
    simulated: bool
    started_at: str | None
    """ISO 8601."""
    duration_s: Seconds
    stopped: Literal["overloaded"] | None
    """Why it was stopped before its planned end."""

    def __post_init__(self) -> None:
        if (self.ttft_mean_s is None) != (self.ttft_p99_s is None):
            raise ValueError("one of ttft_mean_s and ttft_p99_s is null, the other is not")
        if (self.tpot_mean_s is None) != (self.tpot_p99_s is None):
            raise ValueError("one of tpot_mean_s and tpot_p99_s is null, the other is not")
        if self.ttft_mean_s is None and self.succeeded > 0:
            raise ValueError("turns succeeded, but ttft_mean_s is null")
        if self.ttft_mean_s is not None and self.succeeded <= 0:
            raise ValueError("no turn succeeded, but ttft_mean_s is not null")

    @property
    def succeeded(self) -> float:
        """Turns that came to a good end."""
        return self.samples * self.success


@dataclass(frozen=True, slots=True)
class Located:
    """A point and where it was read: `file:line`."""

    where: str
    point: RawPoint


@dataclass(frozen=True, slots=True)
class RawFile:
    """All whole lines of a file, and a report on a torn last one."""

    points: tuple[Located, ...]
    torn: str | None


def read_raw(path: Path | str) -> RawFile:
    """Raises TableError naming file and line."""
    path = Path(path)
    points: list[Located] = []
    for number, line, whole in _lines(path):
        where = f"{path}:{number}"
        try:
            points.append(Located(where, _decoder.decode(line)))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if whole:
                raise refuse(where, error) from error
            return RawFile(tuple(points), f"{where}: torn line of {len(line)} bytes left out")
    return RawFile(tuple(points), None)


class RawWriter:
    """Appends points to a file; each is on disk when `append` returns.

    A torn last line, left by an interrupted run, is cut off first; `torn` says so.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.torn: str | None = None
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise refuse(self.path, f"cannot be written ({error.strerror})") from error
        try:
            self.torn = self._mend()
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, point: RawPoint) -> None:
        """Raises TableError when the point would not be read again, or the disk is full."""
        self.extend([point])

    def extend(self, points: Iterable[RawPoint]) -> None:
        """Several in one piece, all or none of them. Raises TableError as `append` does."""
        line = b"".join(msgspec.json.encode(point) + b"\n" for point in points)
        try:
            for each in line.splitlines():
                _decoder.decode(each)
        except msgspec.MsgspecError as error:
            raise refuse(self.path, f"not written, the point is malformed: {error}") from error
        try:
            written = os.write(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            raise refuse(self.path, f"cannot be written ({error.strerror})") from error
        if written != len(line):
            raise refuse(self.path, f"only {written} of {len(line)} bytes could be written")

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _mend(self) -> str | None:
        """End the file with a newline: after a whole last line, or in place of a torn one."""
        torn = read_raw(self.path).torn
        content = self.path.read_bytes()
        if torn is not None:
            os.ftruncate(self._descriptor, content.rfind(b"\n") + 1)
        elif content and not content.endswith(b"\n"):
            os.write(self._descriptor, b"\n")
        return torn


_decoder = msgspec.json.Decoder(RawPoint)


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """(line number, line, whether it ends as a line does); empty lines are passed over."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line, line.endswith(b"\n")
    except OSError as error:
        raise refuse(path, f"cannot be read ({error.strerror})") from error
