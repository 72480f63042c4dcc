"""The demo's parts on their own: conversations, traffic, the gateway's log, joining, sums, showing, children."""

from __future__ import annotations

import asyncio
import io
import signal
from pathlib import Path

import pytest
from rich.console import Console

from gateway.core.pods import Role
from gateway.net.records import Outcome, RequestRecord
from gateway.ops.logs import request_line
from loadtest import conversations
from loadtest.conversations import PlayedTurn, Script, TurnFailedError, UserTurn, time_per_token_s
from loadtest.demo import counters, options, report, screen, traffic
from loadtest.demo.access_log import Entry, GatewayLog, read_entry
from loadtest.demo.children import ChildEndedError, Children, DemoError, clean_environment
from loadtest.demo.counters import Counted, CountersError
from loadtest.demo.lateness import BUSY_MS, Lateness
from loadtest.demo.record import Ledger, Row
from loadtest.demo.summary import Summary, change, percent, run_of, same_traffic
from loadtest.pod import SimulatedPod, tokenizer

STAMP = "2026-11-29 16:00:00,000 INFO"


def played(turn: int, *, conversation: str = "1", request_id: str = "r", ttft_s: float = 0.1) -> PlayedTurn:
    return PlayedTurn(conversation, turn, request_id, 120, 100, 11, 96, ttft_s, 0.008, "stop", "words")


def row(turn: int, ttft_ms: float, tpot_ms: float | None = 8.0, *, context: int = 0, cached: int | None = 0) -> Row:
    route = ("pd", "P1") if turn == 1 else ("local", None)
    return Row("1", turn, "r", *route, "D2", context, 20, 11, cached, ttft_ms, tpot_ms, "why")


class Noted:
    """A board, or an audience, that writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.rows: list[Row] = []

    def sent(self, conversation: str, turn: int) -> None:
        self.events.append(("sent", turn))

    def spoke(self, conversation: str, turn: int, ttft_s: float) -> None:
        assert ttft_s >= 0
        self.events.append(("spoke", turn))

    def ended(self, turn: PlayedTurn) -> None:
        self.events.append(("ended", turn.turn))

    def settled(self, row: Row) -> None:
        self.rows.append(row)


# ---- conversations


async def test_a_played_conversation_sends_its_whole_history_each_turn() -> None:
    script = Script("a", "Be brief.", (UserTurn("one two three", 5), UserTurn("four", 7), UserTurn("five", 1)))
    audience = Noted()
    async with SimulatedPod() as pod, conversations.connect(pod.url) as client:
        turns = await conversations.play(client, "sim", script, lambda name, turn: f"{name}-{turn}", audience)
        bodies = [record.body for record in pod.requests]
        ids = [record.headers["x-request-id"] for record in pod.requests]
    assert ids == ["a-1", "a-2", "a-3"]
    assert [message["content"] for message in bodies[2]["messages"]] == [
        *("Be brief.", "one two three", turns[0].text, "four", turns[1].text, "five"),
    ]
    assert [turn.output_tokens for turn in turns] == [5, 7, 1]
    assert [turn.finish_reason for turn in turns] == ["length"] * 3
    assert audience.events == [(what, turn) for turn in (1, 2, 3) for what in ("sent", "spoke", "ended")]


async def test_context_is_what_the_last_turn_left_and_new_is_the_rest() -> None:
    script = Script("a", "Be brief.", (UserTurn("one two three", 5), UserTurn("four", 5)))
    async with SimulatedPod() as pod, conversations.connect(pod.url) as client:
        one, two = await conversations.play(client, "sim", script, lambda name, turn: f"{name}-{turn}", Noted())
    assert (one.context_tokens, one.new_tokens) == (0, one.prompt_tokens)
    assert two.context_tokens == one.prompt_tokens + 5
    # What closes the answer, "<|im_end|>\n", then the user's turn and the assistant's opening.
    added = "<|im_end|>\n<|im_start|>user\nfour<|im_end|>\n<|im_start|>assistant\n"
    assert two.new_tokens == len(tokenizer.encode(added))


async def test_a_turn_that_fails_is_named() -> None:
    script = Script("b", "Be brief.", (UserTurn("one", 5),))
    async with SimulatedPod() as pod, conversations.connect(pod.url) as client:
        pod.fault("refuse_5xx", status=503)
        with pytest.raises(TurnFailedError, match=r"^conversation b, turn 1 \(request b-1\): InternalServerError"):
            await conversations.play_all(client, "sim", [script], lambda name, turn: f"{name}-{turn}", Noted())


def test_tpot_is_the_mean_gap_after_the_first_token() -> None:
    assert time_per_token_s(1.0, 1.5, 11) == pytest.approx(0.05)
    assert time_per_token_s(1.0, 1.0, 1) is None


# ---- traffic


def test_the_same_traffic_is_written_every_time() -> None:
    assert traffic.build(4, 4) == traffic.build(4, 4)


def test_documents_grow_from_a_few_hundred_to_a_few_thousand_tokens() -> None:
    firsts = [script.turns[0].text for script in traffic.build(4, 4)]
    counts = [len(tokenizer.encode(text)) for text in firsts]
    assert counts == sorted(counts)
    assert 200 < counts[0] < 400
    assert 2500 < counts[3] < 4000
    for text, words in zip(firsts, traffic.DOCUMENT_WORDS, strict=True):
        assert words <= len(text.split()) < words + 40


def test_follow_ups_are_short_and_no_two_documents_are_alike() -> None:
    scripts = traffic.build(options.MAX_CONVERSATIONS, options.MAX_TURNS)
    assert len({script.turns[0].text for script in scripts}) == options.MAX_CONVERSATIONS
    for script in scripts:
        assert len(script.turns) == options.MAX_TURNS
        assert all(len(turn.text.split()) < 20 for turn in script.turns[1:])
        assert "{" not in "".join(turn.text for turn in script.turns)


def test_the_longest_conversation_fits_the_model() -> None:
    for script in traffic.build(4, options.MAX_TURNS):
        texts = [script.system, *(turn.text for turn in script.turns)]
        longest = sum(len(tokenizer.encode(text)) + 10 for text in texts)
        assert longest + sum(turn.max_tokens + 10 for turn in script.turns) < 8192


# ---- the gateway's log


def record(**fields: object) -> RequestRecord:
    made = RequestRecord("demo-1", "POST", "/v1/chat/completions", 200, Outcome.OK, stream=True)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_an_entry_is_read_from_the_line_the_gateway_writes() -> None:
    line = request_line(
        record(route="pd", prefill="http://p:1", answering="http://d:2", turn=1, ttft_s=0.1, reason="turn 1: why not")
    )
    assert read_entry(f"{STAMP} ppd_gateway.access {line}") == Entry(
        request_id="demo-1",
        outcome="ok",
        stream=True,
        route="pd",
        prefill="http://p:1",
        answered_by="http://d:2",
        turn=1,
        attempts=1,
        ttft_ms=100.0,
        reason="turn 1: why not",
    )


def test_a_local_turn_has_no_prefill_pod() -> None:
    line = request_line(record(route="local", answering="http://d:2", turn=2, attempts=2, reason="r"))
    entry = read_entry(f"{STAMP} ppd_gateway.access {line}")
    assert entry is not None
    assert (entry.prefill, entry.attempts, entry.ttft_ms) == (None, 2, None)


@pytest.mark.parametrize(
    "line",
    [
        f"{STAMP} ppd_gateway.access {request_line(record())}",
        f"{STAMP} ppd_gateway.fault fault=x id=demo-1 pod=http://d:2 detail='route=pd turn=1 answered_by=x'",
        "Traceback (most recent call last):",
        "",
    ],
)
def test_other_lines_are_no_entries(line: str) -> None:
    assert read_entry(line) is None


async def test_a_gateway_is_ready_when_it_listens_and_all_its_pods_are_up() -> None:
    log = GatewayLog()
    waiting = asyncio.ensure_future(log.ready(2))
    lines = [
        f"{STAMP} ppd_gateway ppd-gateway 0.1.0 on http://127.0.0.1:8000, policy local, pods: 1 prefill, 1 decode",
        f"{STAMP} ppd_gateway.pod pod=http://p:1 role={Role.PREFILL} up=1 detail='healthy'",
        f"{STAMP} ppd_gateway.pod pod=http://p:1 role={Role.PREFILL} up=0 detail='reset'",
        f"{STAMP} ppd_gateway.pod pod=http://d:2 role={Role.DECODE} up=1 detail='healthy'",
    ]
    for line in lines:
        log.feed(line)
        await asyncio.sleep(0)
        assert not waiting.done()
    log.feed(f"{STAMP} ppd_gateway admin API on http://127.0.0.1:9901")
    assert log.admin_url == "http://127.0.0.1:9901"
    log.feed(lines[1])
    assert await waiting == "http://127.0.0.1:8000"


# ---- rows and sums

ENTRY = Entry("r", "ok", True, "local", None, "http://d:2", 2, 1, 90.0, "why")


@pytest.mark.parametrize("gateway_first", [True, False])
async def test_a_row_settles_when_client_and_gateway_have_both_spoken(gateway_first: bool) -> None:
    board = Noted()
    ledger = Ledger(board, {"http://d:2": "D2"}.__getitem__)
    steps = [lambda: ledger.ended(played(2)), lambda: ledger.heard(ENTRY)]
    first, second = reversed(steps) if gateway_first else steps
    first()
    assert board.rows == []
    second()
    expected = Row("1", 2, "r", "local", None, "D2", 100, 20, 11, 96, 100.0, 8.0, "why")
    assert board.rows == [expected]
    assert await ledger.complete(1) == [expected]


def test_medians_are_of_first_turns_and_of_later_turns() -> None:
    rows = [
        row(1, 200),
        row(1, 300),
        row(2, 60, 8.0, context=180, cached=160),
        row(3, 40, 9.0, context=280, cached=272),
        row(2, 100, None, context=80, cached=None),
    ]
    run = run_of("local", "http://g", {}, rows, Counted(prefill_requests=2, kv_bytes=1_000_000, kv_reads=2), 1.5)
    assert run.first_turn_ttft_ms == 250
    assert run.later_turns_ttft_ms == 60
    assert run.later_turns_tpot_ms == 8.5
    assert run.cached_share == (160 + 272) / (200 + 300 + 100)
    assert (run.prefill_requests, run.kv_bytes, run.kv_reads) == (2, 1_000_000, 2)


def test_changes_are_from_pd_to_local_in_percent() -> None:
    pd = run_of("pd", "", {}, [row(1, 200), row(2, 160, 8.0)], Counted(16, 800, 16), 0.0)
    local = run_of("local", "", {}, [row(1, 200), row(2, 60, 10.0)], Counted(4, 600, 4), 0.0)
    changed = change(pd, local)
    assert changed.first_turn_ttft == 0.0
    assert changed.later_turns_ttft == -62.5
    assert changed.later_turns_tpot == 25.0
    assert (changed.prefill_requests, changed.kv_reads, changed.kv_bytes) == (-75.0, -75.0, -25.0)


def test_there_is_no_change_from_nothing() -> None:
    assert percent(0, 5) is None
    assert percent(None, 5) is None
    assert percent(5, None) is None
    assert percent(4, 0) == -100.0


def test_lateness_is_a_95th_percentile_of_ticks() -> None:
    late = Lateness()
    assert late.p95_ms == 0.0
    late.ticks_ms = [float(tick) for tick in range(1, 100)]  # 1 to 99: of 100 parts, 95 lie below 95
    assert late.p95_ms == 95.0


@pytest.mark.parametrize(("late_ms", "warned"), [(BUSY_MS - 1, False), (BUSY_MS + 1, True)])
def test_a_busy_machine_is_told_of(late_ms: float, warned: bool) -> None:
    shown = io.StringIO()
    pd = run_of("pd", "", {}, [row(1, 200), row(2, 160, 8.0)], Counted(16, 800, 16), 0.0)
    local = run_of("local", "", {}, [row(1, 200), row(2, 60, 10.0)], Counted(4, 600, 4), late_ms)
    summary = Summary(True, "profile", "note", True, local, pd, change(pd, local), 9.0)
    report.comparison(Console(file=shown, width=200), summary)
    assert ("This machine was busy during run local" in shown.getvalue()) is warned
    assert "-62 %" in shown.getvalue()


def test_traffic_is_the_same_when_prompts_and_answers_are() -> None:
    one, two = played(1), played(2)
    assert same_traffic([one, two], [played(2, request_id="x", ttft_s=9.0), played(1)])
    assert not same_traffic([one], [two])


def test_a_metric_is_summed_over_its_samples() -> None:
    page = '# TYPE a_total counter\na_total{k="1"} 2.0\na_total{k="2"} 3.0\n# TYPE b histogram\nb_sum 7.5\nb_count 2\n'
    assert counters.total(page, "a_total") == 5.0
    assert counters.total(page, "b_sum") == 7.5
    with pytest.raises(CountersError, match="no metric c"):
        counters.total(page, "c")


async def test_the_pods_say_what_they_counted() -> None:
    async with SimulatedPod(role="prefill") as lender, SimulatedPod(role="decode") as reader:
        assert await counters.read([lender.url], [reader.url]) == Counted(0, 0, 0)
    with pytest.raises(CountersError, match="/metrics: ConnectError"):
        await counters.read([lender.url], [reader.url])


# ---- showing


def test_a_terminal_gets_a_table_that_fits_eighty_columns() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80, color_system=None)
    with screen.board(console, "Title") as board:
        board.sent("1", 1)
        board.spoke("1", 1, 0.1234)
        under_way = shown.getvalue()
        board.settled(Row("1", 1, "r", "pd", "P1", "D2", 3_640, 3_231, 120, 3_632, 123.4, 8.04, "why"))
    assert "123" in under_way
    assert "P1 → D2" not in under_way
    last = shown.getvalue().rpartition("TPOT ms")[2]
    for text in ("pd", "P1 → D2", "3,640", "3,231", "120", "3,632", "123", "8.0"):
        assert text in last


def test_elsewhere_each_finished_turn_is_a_line() -> None:
    shown = io.StringIO()
    with screen.board(Console(file=shown), "Title") as board:
        board.sent("1", 2)
        board.spoke("1", 2, 0.1)
        board.settled(row(2, 61.25, None, context=1_000, cached=None))
    assert [line.split() for line in shown.getvalue().splitlines()[2:]] == [
        ["1", "2", "local", "D2", "1,000", "20", "11", "-", "61.2", "-"]
    ]


# ---- flags and children


def test_flags_that_cannot_work_are_refused(tmp_path: Path) -> None:
    for wrong in (["--turns", "1"], ["--conversations", "17"], ["--port", "x"], ["--json", str(tmp_path)]):
        with pytest.raises(SystemExit, match="2"):
            options.parse(wrong, {})


def test_demo_once_is_any_value_but_zero() -> None:
    assert options.parse([], {"DEMO_ONCE": "1"}).once
    assert not options.parse([], {"DEMO_ONCE": "0"}).once
    assert not options.parse([], {}).once


def test_the_users_own_gateway_variables_do_not_reach_the_children() -> None:
    assert clean_environment({"PPD_POLICY": "pd", "PATH": "/bin"}) == {"PATH": "/bin"}


async def test_a_child_that_dies_is_told_of_with_its_last_lines() -> None:
    async with Children() as children:
        await children.start("it", "json.tool", ["/nowhere.json"], lambda line: None)
        with pytest.raises(ChildEndedError, match=r"^it ended with status [12]$") as caught:
            await children.guard(asyncio.Event().wait())
    assert "/nowhere.json" in caught.value.lines[-1]


async def test_a_child_that_is_late_is_told_of_and_ended() -> None:
    async with Children() as children:
        child = await children.start("it", "http.server", ["--bind", "127.0.0.1", "0"], lambda line: None)
        with pytest.raises(DemoError, match=r"^it was not ready within 0.01 s$"):
            await children.guard(asyncio.Event().wait(), 0.01)
        assert child.process.returncode is None
    assert child.process.returncode == -signal.SIGTERM
