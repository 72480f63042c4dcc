"""A canary beside plain PD: who goes where, what shadow decides, what the operator's own proxy gets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from gateway.core.canary import CanaryState
from gateway.net.records import Arm, Outcome, RequestRecord
from tests.net.world import CHAT, LONG, Reply, World, assistant, user, world


async def say(w: World, session: str, messages: list[dict[str, Any]], **fields: Any) -> tuple[Reply, RequestRecord]:
    """One turn of a conversation that the client calls by a name."""
    before = len(w.watcher.records)
    body = {"model": "sim", "messages": messages, "max_tokens": 8, **fields}
    reply = await w.post(CHAT, body, {"X-Session-ID": session})
    record = await w.record(before + 1)
    return reply, record


async def talk(w: World, session: str, turns: int = 3, **fields: Any) -> list[RequestRecord]:
    """A conversation of some turns."""
    messages, records = [user()], []
    for turn in range(turns):
        reply, record = await say(w, session, messages, **fields)
        assert reply.status == 200, reply.body
        records.append(record)
        text = reply.streamed_text if fields.get("stream") else reply.text
        messages += [assistant(text), user(f"And then, {turn}? {LONG}")]
    return records


async def sides(w: World) -> tuple[str, str]:
    """Names of a conversation of the canary's and one of the baseline's."""
    found: dict[str, str] = {}
    for number in range(40):
        _, record = await say(w, f"s{number}", [user()])
        key = bytes.fromhex(record.conversation or "")
        assert (record.arm == Arm.CANARY) == w.gateway.parts.canary.takes(key)
        found[record.arm] = f"s{number}"
        if len(found) == 2:
            return found[Arm.CANARY], found[Arm.BASELINE]
    raise AssertionError("forty conversations on one side")


def routes(records: list[RequestRecord]) -> list[str | None]:
    return [record.route for record in records]


async def test_the_canary_is_routed_by_the_policy_and_the_rest_goes_p_then_d_at_every_turn() -> None:
    async with world(policy="local", **{"canary.percent": 50}) as w:
        canary, baseline = await sides(w)
        ours, theirs = await talk(w, canary), await talk(w, baseline)
        assert routes(ours)[1:] == ["local", "local"]
        assert routes(theirs) == ["pd", "pd", "pd"]
        assert {record.arm for record in ours} == {Arm.CANARY}
        assert {record.arm for record in theirs} == {Arm.BASELINE}


async def test_without_a_canary_everything_is_routed_by_the_policy() -> None:
    async with world(policy="local") as w:
        records = await talk(w, "any")
        assert routes(records) == ["pd", "local", "local"]
        assert {record.arm for record in records} == {Arm.CANARY}
        assert records[0].shadow_route is None


async def test_a_conversation_without_a_name_stays_on_its_side() -> None:
    async with world(policy="local", **{"canary.percent": 50}) as w:
        for number in range(8):
            messages = [user(f"{number} {LONG}")]
            arms = set()
            for turn in range(3):
                reply = await w.chat(messages)
                messages += [assistant(reply.text), user(f"And {turn}? {LONG}")]
                arms.add((await w.record(3 * number + turn + 1)).arm)
            assert len(arms) == 1


async def test_the_baseline_reads_nothing_back() -> None:
    options = {"canary.percent": 0, "readback": True, "direct_without_proof": True}
    async with world(policy="readback", **options) as w:
        assert routes(await talk(w, "any")) == ["pd", "pd", "pd"]


async def test_turned_off_at_run_time_the_next_turn_is_the_baselines() -> None:
    async with world(policy="local") as w:
        messages = [user()]
        reply, _ = await say(w, "any", messages)
        messages += [assistant(reply.text), user("More. " + LONG)]
        reply, record = await say(w, "any", messages)
        assert record.route == "local"
        w.running.administration.canary.turn(False)
        messages += [assistant(reply.text), user("And more. " + LONG)]
        _, record = await say(w, "any", messages)
        assert (record.route, record.arm) == ("pd", Arm.BASELINE)


async def test_in_shadow_the_policy_decides_and_pd_is_carried_out() -> None:
    async with world(policy="local", **{"canary.shadow": True}) as w:
        records = await talk(w, "any")
        assert routes(records) == ["pd", "pd", "pd"]
        assert [record.shadow_route for record in records] == ["pd", "local", "local"]
        assert {record.arm for record in records} == {Arm.BASELINE}
        assert "tokens are on D" in (records[1].shadow_reason or "")
        assert w.gateway.parts.canary.shadowed == {"pd": 1, "local": 2}


# The operator's own proxy


class Proxy:
    """A proxy of somebody else's, that answers what the test tells it to and keeps what it got."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.pieces = [b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n', b"data: [DONE]\n\n"]
        self.fault = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append((request.path_qs, {k.lower(): v for k, v in request.headers.items()}, body))
        if self.fault == "status":
            return web.Response(status=503, body=b'{"busy": true}', headers={"X-Proxy": "its own"})
        if not msgspec.json.decode(body).get("stream"):
            text = (
                b'{"choices": [ {"message": {"content": "Hi"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}'
            )
            return web.Response(body=text, content_type="application/json", headers={"X-Proxy": "its own"})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Proxy": "its own"})
        await answer.prepare(request)
        for piece in self.pieces:
            await answer.write(piece)
        if self.fault == "reset":
            assert request.transport is not None
            request.transport.abort()
        return answer


@pytest.fixture
async def proxy() -> Any:
    made = Proxy()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"  # type: ignore[attr-defined]
    yield made
    await runner.cleanup()


async def test_the_proxy_gets_what_the_client_sent_byte_for_byte(proxy: Any) -> None:
    async with world(policy="local", **{"canary.percent": 0, "canary.passthrough": proxy.url}) as w:
        body = b'{ "max_tokens":8, "model":"sim",\n "messages": [{"role":"user","content":"Hello"}], "odd": 1e3 }'
        headers = {
            "X-Session-ID": "mine",
            "Authorization": "Bearer sk-client",
            "X-Custom": "kept",
            "X-Request-Id": "r1",
        }
        reply = await w.post(CHAT + "?a=b", body, headers)
        assert (reply.status, reply.headers["x-proxy"]) == (200, "its own")
        assert reply.body.startswith(b'{"choices": [ {"message"')
        [(path, seen, sent)] = proxy.seen
        assert (path, sent) == (CHAT + "?a=b", body)
        for name, value in headers.items():
            assert seen[name.lower()] == value
        record = await w.record(1)
        assert (record.arm, record.answering, record.outcome) == (Arm.BASELINE, proxy.url, Outcome.OK)
        assert (record.prompt_tokens, record.output_tokens) == (9, 2)
        assert not w.prefill[0].requests, "no pod heard of it"


async def test_its_stream_comes_as_it_is_and_the_next_turn_is_known(proxy: Any) -> None:
    async with world(policy="local", **{"canary.percent": 0, "canary.passthrough": proxy.url}) as w:
        first = await w.chat([user()], stream=True)
        assert first.body == b"".join(proxy.pieces)
        again = await w.chat([user(), assistant("Hi"), user("More")], stream=True)
        assert again.status == 200
        one, two = await w.record(1), await w.record(2)
        assert (one.turn, two.turn, one.conversation) == (1, 2, two.conversation)
        assert one.ttft_s is not None


async def test_only_the_baseline_goes_there(proxy: Any) -> None:
    async with world(policy="local", **{"canary.percent": 50, "canary.passthrough": proxy.url}) as w:
        canary, _ = await sides(w)
        before = len(proxy.seen)
        assert {record.arm for record in await talk(w, canary, 2)} == {Arm.CANARY}
        assert len(proxy.seen) == before


async def test_a_conversation_that_comes_from_the_proxy_begins_at_p(proxy: Any) -> None:
    async with world(policy="local", **{"canary.percent": 0, "canary.passthrough": proxy.url}) as w:
        await w.chat([user()])
        w.running.administration.canary.set_percent(100)
        await w.chat([user(), assistant("Hi"), user("More. " + LONG)])
        record = await w.record(2)
        assert (record.turn, record.route, record.arm) == (2, "pd", Arm.CANARY)


@pytest.mark.parametrize("stream", [False, True])
async def test_its_own_errors_are_the_clients_to_see_and_nobody_else_is_asked(proxy: Any, stream: bool) -> None:
    async with world(policy="local", **{"canary.percent": 0, "canary.passthrough": proxy.url}) as w:
        proxy.fault = "status"
        reply = await w.chat([user()], stream=stream)
        assert (reply.status, reply.body) == (503, b'{"busy": true}')
        record = await w.record(1)
        assert (record.outcome, record.arm) == (Outcome.FAILED, Arm.BASELINE)
        assert len(proxy.seen) == 1
        assert not w.decode[0].requests
        assert not w.decode[1].requests


@pytest.mark.parametrize("change", [(b"\n", b"\r\n"), (b'"Hi"}}]}', b'"Hi"')], ids=["CR LF", "no JSON"])
async def test_its_stream_comes_as_it_is_even_if_it_is_not_as_a_pods(proxy: Any, change: tuple[bytes, bytes]) -> None:
    async with world(policy="local", **{"canary.percent": 0, "canary.passthrough": proxy.url}) as w:
        proxy.pieces = [piece.replace(*change) for piece in proxy.pieces]
        assert (await w.chat([user()], stream=True)).body == b"".join(proxy.pieces)
        assert (await w.record(1)).outcome is Outcome.OK
        assert w.watcher.faults == []


async def test_its_stream_that_breaks_is_the_baselines_failure(proxy: Any) -> None:
    async with world(policy="local", **{"canary.percent": 0, "canary.passthrough": proxy.url}) as w:
        proxy.pieces, proxy.fault = proxy.pieces[:1], "reset"
        reply = await w.chat([user()], stream=True)
        assert b"upstream_error" in reply.body
        assert (await w.record(1)).outcome is Outcome.BROKEN
        assert "outside_stream_reset" in w.watcher.fault_kinds


async def test_a_proxy_that_is_not_there_is_a_502(proxy: Any) -> None:
    async with world(policy="local", **{"canary.percent": 0, "canary.passthrough": "http://127.0.0.1:1"}) as w:
        reply = await w.chat([user()])
        assert reply.status == 502
        assert (await w.record(1)).outcome is Outcome.FAILED
        assert len(w.gateway.parts.store) == 0


async def test_the_pods_key_does_not_go_to_the_proxy(proxy: Any, tmp_path: Path) -> None:
    key = tmp_path / "pod-key"
    key.write_text("sk-of-the-pods")
    flags = {"canary.percent": 0, "canary.passthrough": proxy.url, "upstream_api_key_file": str(key)}
    async with world(policy="local", **flags) as w:
        await w.chat([user()])
        assert "sk-of-the-pods" not in str(proxy.seen)


# The guard


def finished(arm: Arm, number: int, **fields: Any) -> RequestRecord:
    record = RequestRecord(f"r{number}", "POST", CHAT, status=200, outcome=Outcome.OK, stream=True, route="pd")
    record.arm, record.conversation, record.turn, record.estimated_tokens = arm, f"{arm}{number}", 2, 500
    record.ttft_s, record.tpot_s = 0.1 + number % 9 / 1000, 0.01
    for name, value in fields.items():
        setattr(record, name, value)
    return record


async def feed(w: World, canary: dict[str, Any], count: int = 200) -> None:
    for number in range(count):
        w.gateway.parts.observer.finished(finished(Arm.CANARY, number, **canary))
        w.gateway.parts.observer.finished(finished(Arm.BASELINE, number))


BAD = [{"outcome": Outcome.FAILED, "ttft_s": None, "tpot_s": None}, {"ttft_s": 0.4}, {"tpot_s": 0.03}]


@pytest.mark.parametrize("worse", BAD, ids=["failures", "ttft", "tpot"])
async def test_a_bad_canary_turns_itself_off_and_stays_off_over_a_restart(
    worse: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = {"canary.percent": 50, "canary.state_file": str(tmp_path / "canary.json")}
    async with world(policy="local", **flags) as w:
        keeper = w.running.administration.canary
        await feed(w, worse)
        found = await keeper.look()
        assert found is not None
        assert found.verdict is not None
        assert keeper.canary.status.state is CanaryState.STOPPED
        assert "canary stopped (50 %)" in caplog.text
        assert {record.arm for record in await talk(w, "any", 2)} == {Arm.BASELINE}
    async with world(policy="local", **flags) as w:
        keeper = w.running.administration.canary
        assert keeper.canary.status.why == found.verdict
        assert keeper.canary.status.state is CanaryState.STOPPED
        keeper.turn(True)
        assert keeper.canary.status.state is CanaryState.ON
    async with world(policy="local", **flags) as w:
        assert w.gateway.parts.canary.status.state is CanaryState.ON


async def test_a_good_canary_goes_on() -> None:
    async with world(policy="local", **{"canary.percent": 50}) as w:
        await feed(w, {})
        found = await w.running.administration.canary.look()
        assert found is not None
        assert (found.failures.canary, found.verdict) == (200, None)


async def test_what_clients_did_themselves_is_no_evidence_and_neither_is_an_unstreamed_answers_first_byte() -> None:
    async with world(policy="local", **{"canary.percent": 50}) as w:
        keeper = w.running.administration.canary
        await feed(w, {"outcome": Outcome.CANCELLED, "ttft_s": None})
        await feed(w, {"outcome": Outcome.REJECTED, "ttft_s": None})
        found = await keeper.look()
        assert found is not None
        assert found.failures.canary == 0
        await feed(w, {"stream": False, "ttft_s": 9.0})
        found = await keeper.look()
        assert found is not None
        assert found.ttft.canary == 0


async def test_with_all_or_nothing_there_is_nothing_to_compare() -> None:
    async with world(policy="local") as w:
        await feed(w, BAD[0])
        assert await w.running.administration.canary.look() is None
        assert w.gateway.parts.canary.status.state is CanaryState.ON


async def test_the_guard_looks_by_itself() -> None:
    flags = {"canary.percent": 50, "canary.look_s": 0.05}
    async with world(policy="local", **flags) as w:
        await feed(w, BAD[0])
        async with asyncio.timeout(30):
            while w.gateway.parts.canary.status.state is CanaryState.ON:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_when_the_canarys_pods_die_the_guard_gives_everybody_back_to_the_operators_proxy(proxy: Any) -> None:
    flags = {"canary.percent": 50, "canary.passthrough": proxy.url, "canary.min_samples": 20}
    async with world(policy="local", decode=1, **flags) as w:
        await w.kill(w.decode[0])
        statuses = [(await say(w, f"s{number}", [user("Hi")]))[0].status for number in range(80)]
        assert (min(statuses), max(statuses) >= 502) == (200, True)
        found = await w.running.administration.canary.look()
        assert found is not None
        assert "conversations met a failure, of the baseline's 0 of" in (found.verdict or "")
        statuses = [(await say(w, f"s{number}", [user("Hi")]))[0].status for number in range(20)]
        assert set(statuses) == {200}


async def test_turned_off_the_guard_lets_everything_pass() -> None:
    async with world(policy="local", **{"canary.percent": 50, "canary.guard": False}) as w:
        await feed(w, BAD[0])
        found = await w.running.administration.canary.look()
        assert found is not None
        assert found.failures.canary == 0


async def test_another_percentage_in_the_configuration_wins_over_the_file_but_a_stop_stays(tmp_path: Path) -> None:
    file = str(tmp_path / "canary.json")
    async with world(policy="local", **{"canary.percent": 50, "canary.state_file": file}) as w:
        w.running.administration.canary.set_percent(20)
    async with world(policy="local", **{"canary.percent": 50, "canary.state_file": file}) as w:
        assert w.gateway.parts.canary.status.percent == 20
        await feed(w, BAD[0])
        await w.running.administration.canary.look()
    async with world(policy="local", **{"canary.percent": 5, "canary.state_file": file}) as w:
        status = w.gateway.parts.canary.status
        assert (status.percent, status.state) == (5, CanaryState.STOPPED)


async def test_a_state_file_that_cannot_be_read_leaves_the_canary_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "canary.json"
    file.write_bytes(b'{"state": "on", "percent": 1e9}')
    async with world(policy="local", **{"canary.state_file": str(file)}) as w:
        assert w.gateway.parts.canary.status.state is CanaryState.OFF
    assert "not a state file of this version" in caplog.text


async def test_a_state_file_that_cannot_be_written_is_said_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(policy="local", **{"canary.state_file": str(tmp_path / "none" / "canary.json")}) as w:
        w.running.administration.canary.set_percent(20)
        assert w.gateway.parts.canary.status.percent == 20
    assert "a restart will not know of this change" in caplog.text
