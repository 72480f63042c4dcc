"""Messages and responses through the gateway: routed like chat, in the words of their own dialect."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from loadtest.pod.simulated import SimulatedPod
from tests.net.cluster import cluster, needs_server
from tests.net.world import LONG, Reply, World, user, world
from tests.redis_server import RedisServer

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
_OWN = re.compile(rb'"(id|item_id|call_id)":"[^"]+"|"(created_at)":\d+')


def plain(body: bytes) -> bytes:
    """Without ids and times."""
    return _OWN.sub(lambda found: b'"%s":"*"' % (found[1] or found[2]), body)


@dataclass(frozen=True)
class Dialect:
    """How a client talks in one of the two."""

    path: str
    limit: str
    prompt: str
    tools: Any
    forced: Any
    hear: Callable[[Any], list[dict[str, Any]]]
    last: bytes

    def body(self, history: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        return {"model": "sim", self.prompt: history, self.limit: 40, **fields}


def _whole(stream: bytes) -> Any:
    return msgspec.json.decode(stream.rstrip().rpartition(b"data: ")[2])["response"]


DIALECTS = [
    pytest.param(
        Dialect(
            MESSAGES,
            "max_tokens",
            "messages",
            [{"name": "look", "input_schema": SCHEMA}],
            {"type": "tool", "name": "look"},
            lambda answer: [{"role": "assistant", "content": answer["content"]}],
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
        ),
        id="messages",
    ),
    pytest.param(
        Dialect(
            RESPONSES,
            "max_output_tokens",
            "input",
            [{"type": "function", "name": "look", "parameters": SCHEMA}],
            {"type": "function", "name": "look"},
            lambda answer: answer["output"],
            b"",
        ),
        id="responses",
    ),
]
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@each_dialect
async def test_turn_one_goes_through_p_and_later_ones_straight_to_d(dialect: Dialect) -> None:
    async with world(prefill=1, decode=2) as w:
        history: list[dict[str, Any]] = [user()]
        for turn in (1, 2, 3):
            reply = await w.post(dialect.path, dialect.body(history))
            assert reply.status == 200, reply.body
            record = await w.record(turn)
            assert (record.turn, record.route) == (turn, "pd" if turn == 1 else "local"), record.reason
            history += [*dialect.hear(reply.json), user(f"and then, {turn}?")]
        assert len({record.answering for record in w.watcher.records}) == 1
        assert w.watcher.faults == []


@each_dialect
async def test_a_streamed_turn_is_recognised_in_the_next(dialect: Dialect) -> None:
    async with world(prefill=1, decode=2) as w, SimulatedPod() as alone:
        first = await w.post(dialect.path, dialect.body([user()], stream=True))
        whole = await w.post(dialect.path, dialect.body([user()]), url=alone.url)
        history = [user(), *dialect.hear(whole.json), user("and then?")]
        assert first.headers["content-type"].startswith("text/event-stream")
        await w.post(dialect.path, dialect.body(history, stream=True))
        record = await w.record(2)
        assert (record.turn, record.route, record.kind) == (2, "local", "next")
        assert record.answering == w.watcher.records[0].answering


@each_dialect
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("call", [False, True])
async def test_the_client_gets_what_one_plain_pod_says(dialect: Dialect, stream: bool, call: bool) -> None:
    more = {"tools": dialect.tools, "tool_choice": dialect.forced} if call else {}
    body = dialect.body([user()], stream=stream, **more)
    async with world(prefill=1, decode=1) as w, SimulatedPod() as alone:
        for _ in range(2):
            expected = await w.post(dialect.path, body, url=alone.url)
            got = await w.post(dialect.path, body, headers={"X-Session-ID": "one"})
            record = w.watcher.records[-1]
            if record.route == "pd":
                assert plain(got.body) == plain(expected.body)
            assert b"remote_engine_id" not in got.body
        assert w.watcher.records[0].route == "pd"
        assert w.watcher.records[0].prompt_tokens
        assert w.watcher.records[0].output_tokens


@each_dialect
async def test_a_pod_that_offers_its_blocks_does_so_in_vain(dialect: Dialect) -> None:
    """With `bidirectional_kv_xfer` D's answer carries parameters, in these dialects streamed ones too."""
    async with world(prefill=1, decode=1, pod={"bidirectional": True}) as w:
        for stream in (False, True):
            reply = await w.post(dialect.path, dialect.body([user()], stream=stream))
            assert b"remote_" not in reply.body


@each_dialect
async def test_a_stream_that_breaks_ends_with_an_error_event_of_the_dialect(dialect: Dialect) -> None:
    async with world(prefill=1, decode=1) as w:
        w.decode[0].fault("reset_after_events", events=5)
        reply = await w.post(dialect.path, dialect.body([user()], stream=True))
        assert reply.status == 200
        last = reply.body.rstrip().rpartition(b"\n\n")[2]
        assert last.startswith(b'event: error\ndata: {"type":"error",')
        assert msgspec.json.decode(last.partition(b"data: ")[2])["error"]["type"] == "upstream_error"
        assert (await w.record(1)).outcome == "broken"


@each_dialect
async def test_an_engine_that_fails_at_once_is_given_up_for_another(dialect: Dialect) -> None:
    async with world(prefill=1, decode=2) as w:
        for pod in w.decode:
            pod.fault("finish_error", events=0, times=1)
        reply = await w.post(dialect.path, dialect.body([user()], stream=True))
        assert reply.status == 200
        assert "answer_error_event" in w.watcher.fault_kinds


@each_dialect
async def test_a_pods_own_errors_pass(dialect: Dialect) -> None:
    async with world(prefill=1, decode=1) as w, SimulatedPod() as alone:
        for body in ({**dialect.body([user()]), "model": "nobody"}, {"model": "sim"}):
            expected = await w.post(dialect.path, body, url=alone.url)
            got = await w.post(dialect.path, body)
            assert (got.status, _uncounted(got.body)) == (expected.status, _uncounted(expected.body))
            assert got.status in (400, 404)


def _uncounted(body: bytes) -> bytes:
    """P counts the fields of its own leg."""
    return re.sub(rb"<dict of \d+ items>", b"<dict>", body)


async def test_the_gateways_own_errors_are_anthropics_for_messages() -> None:
    async with world(prefill=1, decode=1) as w:
        reply = await w.post(MESSAGES, b"{")
        assert reply.status == 400
        assert reply.json["type"] == "error"
        assert reply.json["error"]["type"] == "invalid_request_error"
        assert "message" in reply.json["error"]
        reply = await w.post(RESPONSES, b"{")
        assert reply.json["error"]["code"] == 400


async def test_messages_keep_their_query_and_count_tokens_is_a_pods() -> None:
    async with world(prefill=1, decode=1) as w:
        body = {"model": "sim", "messages": [user("one two three")], "max_tokens": 4}
        assert (await w.post(f"{MESSAGES}?beta=true", body)).status == 200
        record = await w.record(1)
        assert (record.route, record.path) == ("pd", MESSAGES)
        counted = await w.post(f"{MESSAGES}/count_tokens?beta=true", {"model": "sim", "messages": body["messages"]})
        assert counted.json["input_tokens"] == record.prompt_tokens


async def test_claude_code_s_probe_is_answered() -> None:
    async with world(prefill=1, decode=1) as w:
        assert (await w.get("/", "HEAD")).status == 200


# previous_response_id


@pytest.fixture
def remembering() -> dict[str, Any]:
    return {"response_store": True}


async def ask(w: World, words: str, previous: str | None = None, **fields: Any) -> Reply:
    more = {} if previous is None else {"previous_response_id": previous}
    return await w.post(RESPONSES, {"model": "sim", "input": words, "max_output_tokens": 8, **more, **fields})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_gone_on_from_on_the_pod_that_remembers_it(
    remembering: dict[str, Any], stream: bool
) -> None:
    async with world(prefill=1, decode=3, pod=remembering) as w:
        for number in range(4):
            first = await ask(w, f"{LONG} {number}", stream=stream)
            made = _whole(first.body) if stream else first.json
            second = await ask(w, "and then?", made["id"])
            assert second.status == 200, second.body
            third = await ask(w, "and then?", second.json["id"])
            assert third.status == 200, third.body
            records = w.watcher.records[-3:]
            assert [record.route for record in records] == ["pd", "local", "local"]
            assert [record.turn for record in records] == [1, 2, 3]
            assert len({record.answering for record in records}) == 1
            assert third.json["usage"]["input_tokens"] > second.json["usage"]["input_tokens"]


async def test_a_response_nobody_knows_is_vllms_own_404(remembering: dict[str, Any]) -> None:
    async with world(prefill=1, decode=2, pod=remembering) as w:
        reply = await ask(w, "and then?", "resp_nobody")
        assert reply.status == 404
        assert reply.json["error"]["message"] == "Response with id 'resp_nobody' not found."


async def test_when_the_pod_is_gone_so_is_the_response(remembering: dict[str, Any]) -> None:
    async with world(prefill=1, decode=2, pod=remembering) as w:
        made = (await ask(w, LONG)).json
        pod = w.pod(w.watcher.records[0].answering)
        await w.kill(pod)
        await w.watcher.until(lambda: not w.watcher.pods[pod.url])
        reply = await ask(w, "and then?", made["id"])
        assert reply.status == 404
        assert "not found" in reply.json["error"]["message"]


async def test_a_response_is_fetched_and_cancelled_where_it_is(remembering: dict[str, Any]) -> None:
    async with world(prefill=1, decode=3, pod=remembering) as w:
        for number in range(4):
            made = (await ask(w, f"{LONG} {number}")).json
            got = await w.get(f"{RESPONSES}/{made['id']}")
            assert {**got.json, "usage": made["usage"]} == made
            assert (await w.record(len(w.watcher.records))).answering == w.watcher.records[-2].answering
        reply = await w.post(f"{RESPONSES}/{made['id']}/cancel", b"{}")
        assert reply.status == 400
        assert reply.json["error"]["message"] == "Cannot cancel a synchronous response."
        assert (await w.get(f"{RESPONSES}/resp_nobody")).status == 404
        assert {record.path for record in w.watcher.records[-2:]} == {
            f"{RESPONSES}/{{id}}",
            f"{RESPONSES}/{{id}}/cancel",
        }


async def test_a_background_response_runs_whole_and_can_be_asked_for(remembering: dict[str, Any]) -> None:
    async with world(prefill=1, decode=2, pod=remembering) as w:
        made = (await ask(w, LONG, background=True)).json
        assert made["status"] == "queued"
        record = await w.record(1)
        assert record.route == "local"
        statuses = [(await w.get(f"{RESPONSES}/{made['id']}")).json["status"] for _ in range(50)]
        assert statuses[-1] == "incomplete"
        assert not w.prefill[0].requests


async def test_with_isolated_tenants_an_id_is_only_good_for_who_got_it(remembering: dict[str, Any]) -> None:
    async with world(prefill=1, decode=1, pod=remembering, isolate_tenants=True) as w:
        hers, his = {"Authorization": "Bearer hers"}, {"Authorization": "Bearer his"}
        body = {"model": "sim", "input": LONG, "max_output_tokens": 8}
        made = (await w.post(RESPONSES, body, hers)).json
        body["previous_response_id"] = made["id"]
        assert (await w.post(RESPONSES, body, his)).status == 404
        assert (await w.post(RESPONSES, body, hers)).status == 200


@needs_server
async def test_another_gateway_finds_the_pod_of_a_response(remembering: dict[str, Any]) -> None:
    async with RedisServer() as server, cluster(2, server.url, prefill=1, decode=3, pod=remembering) as both:
        first, second = both.members
        for number in range(3):
            body = {"model": "sim", "input": f"{LONG} {number}", "max_output_tokens": 8}
            made = (await both.world.post(RESPONSES, body, url=first.running.url)).json
            await both.settled()
            body = {"model": "sim", "input": "and then?", "previous_response_id": made["id"], "max_output_tokens": 8}
            reply = await both.world.post(RESPONSES, body, url=second.running.url)
            assert reply.status == 200, reply.body
            assert second.watcher.records[-1].turn == 2
            assert second.watcher.records[-1].answering == first.watcher.records[-1].answering
            async with both.world.session.get(f"{second.running.url}{RESPONSES}/{made['id']}") as got:
                assert (await got.json())["output"] == made["output"]
