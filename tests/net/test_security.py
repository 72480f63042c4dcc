"""What crosses the gateway and what does not: the pods' key, headers, other tenants' ids, other servers' addresses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.core.pods import Role
from gateway.net import upstream
from tests.net.raw import status, talk
from tests.net.readback_world import Talk, allow, last, on_one_pod, pods, reading
from tests.net.test_keys import ALICE, BOB, bearer, body, guarded
from tests.net.world import CHAT, COMPLETIONS, LONG, assistant, user, world

RESPONSES = "/v1/responses"
POD_KEY = "pods-own-key"
SECRET = "CLIENTS-SECRET"


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The head of every request to a pod, as it goes out."""
    sent: list[str] = []
    make = upstream.head_of

    def head_of(*arguments: Any) -> bytes:
        head = make(*arguments)
        sent.append(head.decode("latin-1"))
        return head

    monkeypatch.setattr(upstream, "head_of", head_of)
    return sent


def credentials(head: str) -> list[str]:
    names = ("authorization:", "x-api-key:", "proxy-authorization:")
    return [line for line in head.split("\r\n") if line.lower().startswith(names)]


def targets(heads: list[str]) -> set[str]:
    return {head.split(" ")[1] for head in heads}


def replace(file: str, text: str) -> None:
    Path(file).write_text(text)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    file = tmp_path / "pods-key"
    file.write_text(f"{POD_KEY}\n")
    return str(file)


async def test_every_call_to_a_pod_has_the_pods_key_and_no_other(heads: list[str], key_file: str) -> None:
    """Both legs, the release after a refusal, the three questions of a readback, pass-through, health, facts, the
    self-test, and where KV events come from."""
    headers = {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET}
    async with reading(upstream_api_key_file=key_file, selftest=True, kv_events="auto") as w:
        first = Talk(w, headers=headers)
        holder = await on_one_pod(w, first)
        allow(w, Role.DECODE, False, holder.url)
        await first.say("And the river?")
        assert last(w).route == "readback", last(w)
        refused = await w.post(CHAT, body(user(), top_p=7), headers)
        assert refused.status == 400
        assert (await w.post(CHAT, body(user("anew " + LONG)), headers)).status == 200
        assert (await w.post("/tokenize", {"model": "sim", "prompt": "hi"}, headers)).status == 200
        await w.settled()
        tests = w.gateway.health.selftests
        await asyncio.gather(*(task for pod in pods(w, Role.DECODE) if (task := tests.consider(pod))))
    assert {"/health", "/metrics", "/v1/models", "/version", "/kv_event_sources"} <= targets(heads)
    assert {CHAT, COMPLETIONS, "/tokenize"} <= targets(heads)
    assert any("ppd-selftest-" in head for head in heads)
    assert any("-recall\r\n" in head for head in heads)
    for head in heads:
        assert credentials(head) == [f"Authorization: Bearer {POD_KEY}"], head
        assert SECRET not in head


async def test_a_release_has_the_pods_key_too(heads: list[str], key_file: str) -> None:
    async with world(policy="pd", decode=1, upstream_api_key_file=key_file) as w:
        w.decode[0].fault("refuse_5xx", status=422, times=1)
        reply = await w.post(CHAT, body(user()), bearer(SECRET))
        await w.settled()
        assert reply.status == 422
        assert w.decode[0].requests[-1].path == COMPLETIONS
    for head in heads:
        assert credentials(head) == [f"Authorization: Bearer {POD_KEY}"], head


async def test_without_keys_the_clients_own_goes_on_with_its_own_requests_only(heads: list[str]) -> None:
    async with world(policy="pd", decode=1, selftest=True) as w:
        assert (await w.post(CHAT, body(user()), bearer(SECRET))).status == 200
    for head in heads:
        own = head.startswith(f"POST {CHAT} ")
        assert credentials(head) == ([f"Authorization: Bearer {SECRET}"] if own else []), head


async def test_a_pod_that_does_not_take_the_gateways_key_is_at_fault_and_not_the_client(key_file: str) -> None:
    async with world(prefill=0, decode=1, upstream_api_key_file=key_file) as w:
        w.decode[0].fault("refuse_5xx", status=401, times=10)
        reply = await w.post(CHAT, body(user()))
    assert reply.status == 502
    assert reply.json["error"]["type"] == "upstream_error"
    assert w.watcher.faults[0][0] == "answer_status"
    assert w.watcher.faults[0][2] == "401: the pod does not take the gateway's key"


async def test_a_new_key_for_the_pods_counts_from_sighup_on(
    heads: list[str], key_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ppd_gateway")
    async with world(prefill=0, decode=1, upstream_api_key_file=key_file) as w:
        for text, said in (("new-key", "read again: in use"), ("", "refused, the old ones stay in use: a key is")):
            replace(key_file, text)
            w.running.reload()
            async with asyncio.timeout(30):
                while not any(said in message for message in caplog.messages):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            heads.clear()
            assert (await w.post(CHAT, body(user()))).status == 200
            assert all(credentials(head) == ["Authorization: Bearer new-key"] for head in heads)
            assert heads


# Headers


INTERNAL = {
    "X-data-parallel-rank": "7",
    "X-Vllm-Priority": "-9",
    "X-PPD-Weights": "ttft=1",
    "X-PPD-Route": "local",
    "X-PPD-Reason": "because",
    "Proxy-Authorization": "Basic eA==",
    "Connection": "keep-alive, X-Mine",
    "X-Mine": "1",
    "TE": "trailers",
    "Keep-Alive": "timeout=99",
}


async def test_what_is_internal_or_for_the_hop_does_not_reach_a_pod() -> None:
    async with world(policy="pd", decode=1, allow_request_weights=True) as w:
        mine = {**INTERNAL, "X-Session-ID": "mine", "traceparent": "00-1-2-01"}
        assert (await w.post(CHAT, body(user(), session_id="mine", priority=-9), mine)).status == 200
        await w.settled()
        for pod in (*w.prefill, *w.decode):
            seen = pod.requests[0]
            assert not {name.lower() for name in INTERNAL} & set(seen.headers), seen.headers
            assert seen.headers["traceparent"] == "00-1-2-01"
            assert seen.headers["x-session-id"] == w.watcher.records[0].conversation
            assert "mine" not in seen.raw.decode()
            assert "priority" not in seen.body


async def test_a_priority_does_not_reach_a_pod_on_the_way_past_the_routes_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[bytes] = []
    call = upstream.PodClient.call

    async def seen(self: upstream.PodClient, *arguments: Any) -> upstream.PodAnswer:
        if arguments[2] == "/v1/embeddings":
            sent.append(arguments[4])
        return await call(self, *arguments)

    monkeypatch.setattr(upstream.PodClient, "call", seen)
    async with world(prefill=0, decode=1) as w:
        await w.post("/v1/embeddings", {"model": "sim", "input": "x", "priority": -9})
    assert sent == [b'{"model":"sim","input":"x"}']


async def test_clients_may_set_priorities_where_that_is_allowed() -> None:
    async with world(prefill=0, decode=1, allow_client_priority=True) as w:
        reply = await w.post(CHAT, body(user(), priority=0), {"X-Vllm-Priority": "-9"})
        assert reply.status == 200
        seen = w.decode[0].requests[0]
        assert seen.headers["x-vllm-priority"] == "-9"
        assert seen.body["priority"] == 0


async def test_what_is_internal_does_not_reach_a_client() -> None:
    from gateway.net.headers import raw, to_client

    answered = [(name, value) for name, value in INTERNAL.items() if name != "X-Vllm-Priority"]
    kept = to_client(raw([*answered, ("X-Session-ID", "key"), ("X-Request-Id", "p"), ("Server", "uvicorn")]), "mine")
    assert kept == [(b"Server", b"uvicorn"), (b"X-Request-Id", b"mine")]


def test_the_legs_of_a_request_share_what_they_begin_with_and_nothing_else() -> None:
    from gateway.net.headers import of_leg, to_pods

    begun = to_pods([("Host", "h"), ("X-One", "1"), ("X-Request-Id", "mine"), ("Accept-Encoding", "br")])
    shared = [("X-One", "1"), ("Accept-Encoding", "identity")]
    assert of_leg(begun, "p", "key", 3, -1) == [
        *shared,
        ("X-Request-Id", "p"),
        ("X-Session-ID", "key"),
        ("X-data-parallel-rank", "3"),
        ("X-Vllm-Priority", "-1"),
    ]
    assert of_leg(begun, "d", None) == [*shared, ("X-Request-Id", "d")]


@pytest.mark.parametrize("word", ["close", "Keep-Alive", "X-HOP", "close, x-hop", "keep-alive,X-Hop ,", ""])
def test_what_a_pods_connection_names_ends_at_the_gateway_and_the_rest_goes_on_byte_for_byte(word: str) -> None:
    from gateway.net.headers import from_outside, raw, to_client

    odd = (b"X-Odd", b"caf\xe9 \xff")
    answered = [(b"X-Hop", b"1"), odd, (b"CONNECTION", word.encode()), (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")]
    kept = [odd, (b"Set-Cookie", b"a"), (b"Set-Cookie", b"b")]
    if "hop" not in word.lower():
        kept.insert(0, (b"X-Hop", b"1"))
    assert from_outside(answered) == kept
    assert to_client(answered, "r") == [*kept, (b"X-Request-Id", b"r")]
    assert raw([("X-Odd", "caf\u00e9 \u03c0")]) == [(b"X-Odd", b"caf\xe9 ?")]


# Other tenants' ids


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({}, {"X-Session-ID": "conversation-7"}),
        ({}, {"X-Conversation-ID": "conversation-7"}),
        ({"session_id": "conversation-7"}, {}),
        ({"conversation_id": "conversation-7"}, {}),
    ],
    ids=["session header", "conversation header", "session field", "conversation field"],
)
async def test_another_tenants_conversation_id_leads_to_a_conversation_of_ones_own(
    fields: dict[str, Any], headers: dict[str, str], tmp_path: Path
) -> None:
    async with guarded(tmp_path) as w:
        first = await w.post(CHAT, body(user(), **fields), {**headers, **bearer(ALICE)})
        later = body(user(), assistant(first.text), user("And then?"), **fields)
        await w.post(CHAT, later, {**headers, **bearer(BOB)})
        await w.post(CHAT, later, {**headers, **bearer(ALICE)})
        alice, bob, again = [await w.record(number) for number in (1, 2, 3)]
        await w.settled()
        told = [request.headers["x-session-id"] for pod in w.decode for request in pod.requests]
    assert (alice.turn, bob.turn, again.turn) == (1, 1, 2)
    assert alice.conversation == again.conversation != bob.conversation
    assert sorted(told) == sorted([alice.conversation, bob.conversation, again.conversation])


async def test_the_internal_key_of_a_conversation_opens_nothing(tmp_path: Path) -> None:
    """It is told to pods only; who learns it all the same gets a conversation of their own."""
    async with guarded(tmp_path, prefill=0, decode=1) as w:
        await w.post(CHAT, body(user()), bearer(ALICE))
        key = (await w.record(1)).conversation
        assert key is not None
        await w.post(CHAT, body(user()), {"X-Session-ID": key, **bearer(BOB)})
        assert (await w.record(2)).conversation != key


async def test_another_tenants_response_cannot_be_gone_on_from_read_or_cancelled(tmp_path: Path) -> None:
    async with guarded(tmp_path, prefill=0, decode=2, pod={"response_store": True}) as w:
        made = (await w.post(RESPONSES, {"model": "sim", "input": "Hello"}, bearer(ALICE))).json
        on = {"model": "sim", "input": "And then?", "previous_response_id": made["id"]}
        for key, code in ((BOB, 404), (ALICE, 200)):
            assert (await w.post(RESPONSES, on, bearer(key))).status == code
            assert (await w.get(f"{RESPONSES}/{made['id']}", headers=bearer(key))).status == code
        assert (await w.post(f"{RESPONSES}/{made['id']}/cancel", b"{}", bearer(BOB))).status == 404


# Other servers


EVIL = {
    "an absolute URL": b"http://{evil}/v1/models",
    "an absolute URL of a path of ours": b"http://{evil}/tokenize",
    "https": b"https://{evil}/v1/models",
    "another scheme": b"ftp://{evil}/",
    "two slashes": b"//{evil}/v1/models",
    "three slashes": b"///{evil}/v1/models",
    "a user name": b"http://u:p@{evil}/v1/models",
    "an at sign": b"/@{evil}/v1/models",
    "upwards": b"/v1/../../{evil}",
    "upwards at the end": b"/v1/models/..",
    "upwards, encoded": b"/v1/%2e%2e/%2E%2e/admin",
    "a slash, encoded": b"/v1%2fmodels",
    "backslashes": b"/\\\\{evil}\\v1",
    "a backslash, encoded": b"/%5c%5c{evil}",
    "a dot": b"/./v1/models",
    "upwards from a response": b"/v1/responses/..",
    "upwards from a response, encoded": b"/v1/responses/%2E%2e",
    "a response with a fragment": b"/v1/responses/a#b",
    "a response with a backslash": b"/v1/responses/a\\b",
    "a fragment": b"/v1/models#@{evil}",
    "the asterisk": b"*",
    "only a host": b"{evil}",
}


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("what", EVIL)
async def test_no_target_chooses_the_server_it_is_sent_to(what: str, method: bytes, heads: list[str]) -> None:
    met = asyncio.Event()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.set()
        writer.close()

    evil = await asyncio.start_server(meet, "127.0.0.1", 0)
    address = b"127.0.0.1:%d" % evil.sockets[0].getsockname()[1]
    async with evil, world(prefill=0, decode=1) as w:
        heads.clear()
        target = EVIL[what].replace(b"{evil}", address)
        lines = [method + b" " + target + b" HTTP/1.1", b"Host: " + address, b"Content-Length: 0", b"Connection: close"]
        answer = await talk(w.port, b"\r\n".join(lines) + b"\r\n\r\n")
        assert status(answer) == (404 if what == "an at sign" else 400), answer
        assert b'"error"' in answer
        assert not [head for head in heads if address.decode() in head or target.decode() in head]
        assert not met.is_set()
        hosts = {line for head in heads for line in head.split("\r\n") if line.startswith("Host:")}
        assert hosts <= {f"Host: 127.0.0.1:{w.decode[0].port}"}


async def test_host_and_forwarding_headers_choose_nothing(heads: list[str]) -> None:
    async with world(prefill=0, decode=1) as w:
        heads.clear()
        sent = [b"Host: evil", b"X-Forwarded-Host: evil", b"Forwarded: host=evil", b"X-Original-URL: http://evil/x"]
        raw = b"GET /version?u=http://evil/ HTTP/1.1\r\n" + b"\r\n".join(sent) + b"\r\nConnection: close\r\n\r\n"
        assert status(await talk(w.port, raw)) == 200
        ours = [head for head in heads if head.startswith("GET /version?u=")]
        assert len(ours) == 1
        assert ours[0].startswith(f"GET /version?u=http://evil/ HTTP/1.1\r\nHost: 127.0.0.1:{w.decode[0].port}\r\n")
