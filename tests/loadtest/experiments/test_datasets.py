"""ShareGPT and WildChat files, and conversations made up after them."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from loadtest.experiments import datasets
from loadtest.experiments.datasets import Filter
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.published_chats import PUBLISHED, PublishedChats
from loadtest.experiments.workloads import Script, TurnScript

LOOSE = Filter(min_turns=1)


def said(who: str, tokens: int) -> dict[str, str]:
    return {"from": who, "value": "abcd" * tokens}


def share(*messages: dict[str, str], name: str = "x") -> dict[str, Any]:
    return {"id": name, "conversations": list(messages)}


def load(tmp_path: Path, text: str, kind: str = "sharegpt", wanted: Filter = LOOSE, limit: int = 99) -> Any:
    path = tmp_path / "file.json"
    path.write_text(text, encoding="utf-8")
    return datasets.load(kind, path, wanted, limit)


def test_a_sharegpt_array_gives_turns_of_tokens(tmp_path: Path) -> None:
    records = [share(said("human", 10), said("gpt", 20), said("human", 3), said("gpt", 4))]
    found = load(tmp_path, json.dumps(records))
    assert found.recorded == [Script((TurnScript(10, 20), TurnScript(3, 4)))]
    assert "CC0" in found.origin


def test_what_is_said_before_an_answer_is_one_prompt_and_the_rest_is_left_out(tmp_path: Path) -> None:
    record = share(
        said("gpt", 9), said("system", 2), said("human", 10), said("human", 5), said("gpt", 20), said("human", 3)
    )
    assert load(tmp_path, json.dumps([record])).recorded == [Script((TurnScript(17, 20),))]


def test_wildchat_lines_are_read_and_broken_ones_counted(tmp_path: Path) -> None:
    good = {
        "conversation_hash": "h",
        "conversation": [{"role": "user", "content": "abcd"}, {"role": "assistant", "content": "abcd" * 2}],
    }
    lines = [json.dumps(good), "{broken", json.dumps({"conversation": "no"}), "", json.dumps([1]), json.dumps(good)]
    found = load(tmp_path, "\n".join(lines), "wildchat")
    assert found.recorded == [Script((TurnScript(1, 2),))] * 2
    assert "3 malformed" in found.origin
    assert "ODC-BY" in found.origin


def test_a_message_of_a_strange_kind_makes_the_record_no_conversation(tmp_path: Path) -> None:
    records = [
        share({"from": "human", "value": None}),
        share({"from": "alien", "value": "x"}),
        share(said("human", 1), said("gpt", 1)),
    ]  # type: ignore[arg-type]
    assert "2 malformed" in load(tmp_path, json.dumps(records)).origin


def test_records_longer_than_a_chunk_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_CHUNK_CHARS", 16)
    records = [share(said("human", 40), said("gpt", 50)), share(said("human", 1), said("gpt", 2))]
    assert len(load(tmp_path, " \n" + json.dumps(records, indent=2)).recorded) == 2


def test_reading_stops_at_the_limit_so_the_rest_may_be_anything(tmp_path: Path) -> None:
    first = json.dumps(share(said("human", 1), said("gpt", 2)))
    assert len(load(tmp_path, f"[{first}, {first}, oops", limit=2).recorded) == 2


@pytest.mark.parametrize("text", ["[{}, oops]", '[{"id": 1}', "[1 2"])
def test_an_array_that_breaks_off_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ExperimentError, match=r"file\.json: no (JSON behind record|conversation)"):
        load(tmp_path, text)


@pytest.mark.parametrize("text", ["", "hello", "<html>"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ExperimentError, match="neither a JSON array nor"):
        load(tmp_path, text)


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(ExperimentError, match="/nowhere/x: cannot be read"):
        datasets.load("sharegpt", Path("/nowhere/x"), LOOSE, 9)


def test_parquet_without_pyarrow_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ExperimentError, match=r"pyarrow is not installed|cannot be read as Parquet"):
        datasets.load("wildchat", tmp_path / "x.parquet", LOOSE, 9)


@pytest.mark.parametrize(
    ("turns", "admitted"),
    [
        ([(10, 10)], False),
        ([(10, 10)] * 2, True),
        ([(10, 10)] * 21, False),
        ([(2049, 10), (1, 1)], False),
        ([(10, 2049), (1, 1)], False),
        ([(2000, 2000)] * 2, True),
        ([(2000, 2000)] * 3, False),
    ],
)
def test_the_papers_filter(turns: list[tuple[int, int]], admitted: bool) -> None:
    assert Filter().admits(Script(tuple(TurnScript(*turn) for turn in turns))) is admitted


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_made_up_chats_have_the_published_means_and_say_that_they_are_made_up(name: str) -> None:
    published, chats = PUBLISHED[name], PublishedChats(name, PUBLISHED[name])
    scripts = list(islice(chats.scripts(random.Random("x")), 3000))
    turns = [turn for script in scripts for turn in script.turns]
    assert all(Filter().admits(script) for script in scripts)
    assert len(turns) / len(scripts) == pytest.approx(published.mean_turns, rel=0.05)
    assert sum(turn.output_tokens for turn in turns) / len(turns) == pytest.approx(
        published.mean_answer_tokens, rel=0.15
    )
    assert chats.origin.startswith("MADE UP")
