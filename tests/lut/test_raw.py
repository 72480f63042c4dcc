"""The raw measurement file."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lut.raw import RawWriter, read_raw
from lut.table import TableError
from tests.lut.examples import dead, raw


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "raw.jsonl"


def line(**changed: Any) -> bytes:
    return json.dumps({**msgspec.to_builtins(raw()), **changed}).encode() + b"\n"


def test_what_is_appended_is_read_again_with_file_and_line(path: Path) -> None:
    points = [raw(repeat=0), raw(repeat=1, arm="local"), dead(stopped="overloaded", arm="readback", block_size=None)]
    for point in points:  # a run that is interrupted and resumed each time
        with RawWriter(path) as writer:
            writer.append(point)
            assert writer.torn is None
    read = read_raw(path)
    assert [located.point for located in read.points] == points
    assert [located.where for located in read.points] == [f"{path}:{number}" for number in (1, 2, 3)]
    assert read.torn is None


def test_a_line_has_the_names_and_units_that_are_promised(path: Path) -> None:
    with RawWriter(path) as writer:
        writer.append(raw())
    assert list(json.loads(path.read_bytes())) == [
        *("format", "version", "assignment", "arm", "context_tokens", "new_tokens", "output_tokens", "rate"),
        *("rate_achieved", "repeat", "samples", "success", "ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s"),
        *("model", "block_size", "simulated", "started_at", "duration_s", "stopped"),
    ]


@pytest.mark.parametrize("cut", [1, 2, 60, 400])
def test_a_torn_last_line_is_left_out_and_reported(path: Path, cut: int) -> None:
    path.write_bytes(line(repeat=0) + line(repeat=1)[: -1 - cut])
    read = read_raw(path)
    assert [located.point.repeat for located in read.points] == [0]
    assert read.torn == f"{path}:2: torn line of {len(line(repeat=1)) - 1 - cut} bytes left out"


def test_a_last_line_of_zeros_is_torn_too(path: Path) -> None:
    path.write_bytes(line() + b"\0" * 50)
    assert read_raw(path).torn == f"{path}:2: torn line of 50 bytes left out"


def test_a_resumed_run_cuts_the_torn_line_off_and_says_so(path: Path) -> None:
    path.write_bytes(line(repeat=0) + line(repeat=1)[:30])
    with RawWriter(path) as writer:
        assert writer.torn == f"{path}:2: torn line of 30 bytes left out"
        writer.append(raw(repeat=2))
    assert [located.point.repeat for located in read_raw(path).points] == [0, 2]


def test_a_whole_last_line_that_lacks_only_its_end_is_kept(path: Path) -> None:
    path.write_bytes(line(repeat=0)[:-1])
    with RawWriter(path) as writer:
        assert writer.torn is None
        writer.append(raw(repeat=1))
    assert [located.point.repeat for located in read_raw(path).points] == [0, 1]


def test_a_file_that_is_only_a_torn_line_becomes_empty(path: Path) -> None:
    path.write_bytes(b'{"form')
    with RawWriter(path) as writer:
        assert writer.torn is not None
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"{\n", "JSON is malformed|Input data was truncated"),
        (b'{"format": "other"}\n', "Invalid enum value 'other'"),
        (b"\xff\xfe\n", "malformed|invalid|decode"),
        (line(version=2), "Invalid enum value 2"),
        (line(arm="x"), "Invalid enum value 'x'"),
        (line(assignment="4R"), "Expected `str` matching regex"),
        (line(assignment="0P_3D"), "Expected `str` matching regex"),
        (line(rate=0), "Expected `float` > 0.0"),
        (line(success=1.1), "Expected `float` <= 1.0"),
        (line(new_tokens=0), "Expected `int` >= 1"),
        (line(samples=-1), "Expected `int` >= 0"),
        (line(ttft_mean_s=-1), "Expected `float` >= 0.0"),
        (line(ttft_mean_s=None), "one of ttft_mean_s and ttft_p99_s is null, the other is not"),
        (line(tpot_p99_s=None), "one of tpot_mean_s and tpot_p99_s is null, the other is not"),
        (line(ttft_mean_s=None, ttft_p99_s=None), "turns succeeded, but ttft_mean_s is null"),
        (line(success=0), "no turn succeeded, but ttft_mean_s is not null"),
    ],
)
def test_a_malformed_line_is_refused_with_file_and_line(path: Path, bad: bytes, words: str) -> None:
    path.write_bytes(line() + b"\n" + bad + line())
    with pytest.raises(TableError) as refused:
        read_raw(path)
    assert str(refused.value).startswith(f"{path}:3: ")
    assert re.search(words, str(refused.value))
    assert "\n" not in str(refused.value)


def test_a_resumed_run_refuses_a_file_that_is_malformed(path: Path) -> None:
    path.write_bytes(b"something else\n")
    with pytest.raises(TableError, match=r"raw.jsonl:1: "):
        RawWriter(path)
    assert path.read_bytes() == b"something else\n"


def test_a_point_that_could_not_be_read_again_is_not_written(path: Path) -> None:
    with RawWriter(path) as writer:
        for point in (raw(rate=0.0), raw(success=2.0), raw(ttft_mean_s=math.nan)):
            with pytest.raises(TableError, match="not written, the point is malformed"):
                writer.append(point)
    assert path.read_bytes() == b""


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"none.jsonl: cannot be read"):
        read_raw(tmp_path / "none.jsonl")
    with pytest.raises(TableError, match="cannot be written"):
        RawWriter(tmp_path / "none" / "raw.jsonl")
