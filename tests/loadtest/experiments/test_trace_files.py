"""Recorded traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.net.records import RequestRecord
from gateway.ops import logs
from loadtest.experiments import trace_files
from loadtest.experiments.errors import ExperimentError
from loadtest.experiments.workloads import Script

ACCESS = (
    "2026-11-29 10:00:{at:06.3f} INFO ppd_gateway.access id=r status=200 outcome=ok method=POST stream=1 route=pd "
    'conversation={talk} turn=1 prompt_tokens={prompt} output_tokens={output} total_ms={ms} reason="a b"'
)


def access(at: float, talk: str, prompt: int, output: int, ms: float) -> str:
    return ACCESS.format(at=at, talk=talk, prompt=prompt, output=output, ms=ms).replace(".", ",", 1)


def load(tmp_path: Path, *lines: str) -> list[Script]:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return list(trace_files.load(path).recorded)


def test_a_trace_gives_conversations_with_their_times_and_thinking(tmp_path: Path) -> None:
    first, second = load(
        tmp_path,
        '{"at_s": 30.0, "conversation": "a", "new_tokens": 7, "output_tokens": 50}',
        '{"at_s": 12.0, "conversation": "b", "new_tokens": 1, "output_tokens": 1, "tenant": "t"}',
        '{"at_s": 10.0, "conversation": "a", "new_tokens": 40, "output_tokens": 100}',
    )
    assert (first.at_s, second.at_s, second.tenant) == (0.0, 2.0, "t")
    assert [(turn.new_tokens, turn.output_tokens) for turn in first.turns] == [(40, 100), (7, 50)]
    # 100 tokens are taken for one second, so the person thought for 19.
    assert first.turns[1].think_s == pytest.approx(19.0)


def test_access_lines_of_a_gateway_are_a_trace(tmp_path: Path) -> None:
    (script,) = load(
        tmp_path,
        "2026-11-29 10:00:00,000 INFO ppd_gateway ppd-gateway 1.0 on http://127.0.0.1:8000, policy ppd",
        access(2.0, "c", 100, 20, 1000.0),
        access(10.5, "c", 150, 10, 500.0),
        "2026-11-29 10:00:11,000 INFO ppd_gateway.access id=r status=400 outcome=rejected",
    )
    assert [(turn.new_tokens, turn.output_tokens) for turn in script.turns] == [(100, 20), (30, 10)]
    assert script.turns[1].think_s == pytest.approx(8.0)


def test_access_lines_in_json_are_one_too(tmp_path: Path) -> None:
    head = '{"time":"2026-11-29T10:00:%s.000Z","level":"info","logger":"ppd_gateway.%s","event":"request",'
    line = head + '"conversation":"c","prompt_tokens":%d,"output_tokens":%d,"total_ms":%s}'
    (script,) = load(
        tmp_path,
        head % ("01", "main") + '"message":"on"}',
        line % ("02", "access", 100, 20, "1000.0"),
        line % ("11", "access", 150, 10, "500.0"),
        head % ("12", "access") + '"status":400}',
        '{"time": broken',
    )
    assert [(turn.new_tokens, turn.output_tokens) for turn in script.turns] == [(100, 20), (30, 10)]
    assert script.turns[1].think_s == pytest.approx(8.5)


def test_the_lines_that_the_gateway_writes_are_read(tmp_path: Path) -> None:
    record = RequestRecord(request_id="r", method="POST", path="/v1/completions")
    record.conversation, record.prompt_tokens, record.output_tokens, record.total_s = "ab", 50, 7, 0.25
    for line in (
        logs.console_access()("2026-11-29 10:00:00", 5, record),
        logs.json_access()("2026-11-29T10:00:00", 5, record),
    ):
        (script,) = load(tmp_path, line.rstrip())
        assert [(turn.new_tokens, turn.output_tokens) for turn in script.turns] == [(50, 7)]


def test_a_malformed_turn_names_its_line(tmp_path: Path) -> None:
    good = '{"at_s": 1, "conversation": "a", "new_tokens": 7, "output_tokens": 50}'
    with pytest.raises(ExperimentError, match=r"trace\.jsonl: turn 2: .*new_tokens"):
        load(tmp_path, good, good.replace("7", "0"))


@pytest.mark.parametrize("text", ["", "nothing of the kind"])
def test_a_file_without_turns_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ExperimentError, match="no turn in it"):
        load(tmp_path, text)
