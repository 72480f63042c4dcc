"""Streams that are broken in themselves: the client keeps what came, and hears in its own dialect that it broke.

The pod is a script: it says byte for byte what a test wants, over a real socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from gateway.wire import framing
from tests.net.leftovers import clean_world
from tests.net.world import CHAT, COMPLETIONS, Reply, World, user

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
GARBAGE = b'data: {"choices": [{"index"\n\n'
GOOD = {
    CHAT: b'data: {"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}\n\n',
    COMPLETIONS: b'data: {"choices":[{"index":0,"text":"Hello","finish_reason":null}]}\n\n',
    MESSAGES: b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"Hello"}}\n\n',
    RESPONSES: b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Hello"}\n\n',
}
LAST = {
    CHAT: b"data: [DONE]\n\n",
    COMPLETIONS: b"data: [DONE]\n\n",
    MESSAGES: b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    RESPONSES: b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',
}
PATHS = pytest.mark.parametrize("path", list(GOOD))


@dataclass
class Script:
    """What a pod says to every request that generates: the first piece, and the others once the client has that.

    open_end: it says nothing more then, instead of ending. hung_up: the gateway has closed the connection.
    """

    pieces: Sequence[bytes]
    open_end: bool = False
    url: str = ""
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"GET ") and not head.startswith(b"GET /v1/responses/"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
                    continue
                lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
                await reader.readexactly(sum(int(value) for name, _, value in lines if name == b"content-length"))
                writer.write(HEAD)
                for piece in self.pieces:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    await self.heard.wait()
                if not self.open_end:
                    writer.write(b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        finally:
            writer.close()


@asynccontextmanager
async def before(script: Script) -> AsyncIterator[World]:
    """A gateway whose only pod is that script."""
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, clean_world(prefill=0, decode=0, elsewhere={"decode": [script.url]}, policy="local") as w:
        await w.watcher.until(lambda: w.watcher.pods.get(script.url, False))
        yield w


def request_for(path: str) -> dict[str, object]:
    body: dict[str, object] = {"model": "sim", "stream": True}
    if path == RESPONSES:
        return body | {"input": "hello"}
    return body | ({"prompt": "hello"} if path == COMPLETIONS else {"messages": [user("hello")]}) | {"max_tokens": 8}


async def say(w: World, script: Script, path: str) -> Reply:
    async with asyncio.timeout(10), w.session.post(w.url + path, json=request_for(path)) as response:
        first = await response.content.readany()
        script.heard.set()
        return Reply(response.status, {}, first + await response.content.read())


def what_broke(path: str, reply: Reply, came: bytes) -> str:
    """The message of the error event that ends the stream, behind what came before."""
    assert reply.status == 200
    assert reply.body.startswith(came), reply.body
    rest = reply.body.removeprefix(came)
    assert rest.endswith(b"\n\n")
    events = rest.removesuffix(b"\n\n").split(b"\n\n")
    if path in (CHAT, COMPLETIONS):
        (event,) = events
        error = msgspec.json.decode(event.removeprefix(b"data: "))["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == 502
    else:
        (event,) = events
        name, _, data = event.partition(b"\n")
        assert name == b"event: error"
        assert msgspec.json.decode(data.removeprefix(b"data: "))["type"] == "error"
        error = msgspec.json.decode(data.removeprefix(b"data: "))["error"]
    return str(error["message"])


@PATHS
@pytest.mark.parametrize("together", [True, False], ids=["in one read", "by itself"])
async def test_what_is_no_event_ends_the_stream_and_the_pods_request(path: str, together: bool) -> None:
    good = GOOD[path]
    pieces = [good, good + GARBAGE + good] if together else [good, good, GARBAGE, good]
    script = Script(pieces, open_end=True)
    async with before(script) as w:
        reply = await say(w, script, path)
        assert what_broke(path, reply, good * 2) == "The pod's stream broke (malformed)."
        async with asyncio.timeout(10):
            await script.hung_up.wait()
        record = await w.record(1)
        assert record.outcome == "broken"
        assert w.watcher.faults == [("stream_malformed", script.url, "an event is none")]


@PATHS
async def test_a_stream_that_ends_within_an_event_is_broken(path: str) -> None:
    good = GOOD[path]
    script = Script([good, good[:40]])
    async with before(script) as w:
        reply = await say(w, script, path)
        assert what_broke(path, reply, good) == "The pod's stream broke (reset)."
        assert (await w.record(1)).outcome == "broken"
        assert w.watcher.fault_kinds == ["stream_reset"]


@PATHS
async def test_a_stream_that_ends_well_but_without_its_last_word_is_broken(path: str) -> None:
    good = GOOD[path]
    script = Script([good, good])
    async with before(script) as w:
        assert what_broke(path, await say(w, script, path), good * 2) == "The pod's stream broke (reset)."
        assert w.watcher.faults == [("stream_reset", script.url, "the stream ended without its last word")]


async def test_lines_of_another_kind_break_it_at_once() -> None:
    script = Script([GOOD[CHAT], GOOD[CHAT].replace(b"\n", b"\r\n")], open_end=True)
    async with before(script) as w:
        assert what_broke(CHAT, await say(w, script, CHAT), GOOD[CHAT]) == "The pod's stream broke (malformed)."
        assert w.watcher.faults == [("stream_malformed", script.url, "its lines end in CR LF")]


@PATHS
async def test_the_error_is_an_event_of_its_own_where_the_client_has_half_of_another(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "MAX_EVENT_BYTES", 1000)
    good, half = GOOD[path], GOOD[path].partition(b"Hello")[0] + b"x" * 2000
    script = Script([good, half])
    async with before(script) as w:
        assert what_broke(path, await say(w, script, path), good + half + b"\n\n") == "The pod's stream broke (reset)."


@PATHS
async def test_garbage_as_the_first_word_is_an_answer_of_the_gateways(path: str) -> None:
    """No byte has reached the client, and there is no other pod."""
    script = Script([GARBAGE + GOOD[path] + LAST[path]])
    script.heard.set()
    async with before(script) as w:
        reply = await say(w, script, path)
        assert reply.status == 502
        assert "malformed" in reply.json["error"]["message"]
        assert set(w.watcher.fault_kinds) <= {"answer_malformed", "retry_denied"}
        assert "answer_malformed" in w.watcher.fault_kinds


@pytest.mark.parametrize(("more", "word"), [(GARBAGE, "malformed"), (b"", "reset")])
async def test_a_response_that_is_asked_for_again_ends_no_better(more: bytes, word: str) -> None:
    good = GOOD[RESPONSES]
    script = Script([good, good + more])
    async with before(script) as w:
        async with asyncio.timeout(10), w.session.get(f"{w.url}/v1/responses/resp_1?stream=true") as response:
            first = await response.content.readany()
            script.heard.set()
            reply = Reply(response.status, {}, first + await response.content.read())
        assert what_broke(RESPONSES, reply, good * 2) == f"The pod's stream broke ({word})."
        assert (await w.record(1)).outcome == "broken"
        assert w.watcher.fault_kinds == [f"pass_through_{word}"]


@PATHS
async def test_what_comes_behind_the_last_word_harms_nobody(path: str) -> None:
    good, last = GOOD[path], LAST[path]
    script = Script([good + last, GARBAGE])
    async with before(script) as w:
        reply = await say(w, script, path)
        assert reply.body.startswith(good + last)
        assert (await w.record(1)).outcome == "ok"
        assert w.watcher.faults == []
