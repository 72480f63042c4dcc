"""What the tests in front of real vLLM pods share: pods, a client, a gateway that says what it did, prompts.

Rule of this room: nothing here knows what a test wants to prove. Waiting is polling with a deadline, and a deadline
that passes says what it waited for.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from gateway.net.records import IdleObserver, RequestRecord
from gateway.ops.config import load
from gateway.ops.serve import Running, running
from gateway.wire.contract import Api
from gateway.wire.fields import parse
from gateway.wire.legs import prefill_body
from loadtest.vllm_cpu.pod import Pod

MODEL = "tiny"
BLOCK_TOKENS = 32
PATIENCE_S = 120.0
VLLM_LEASE_S = 30
JSON_CONTENT = {"Content-Type": "application/json"}
PATHS = {Api.CHAT: "/v1/chat/completions", Api.COMPLETIONS: "/v1/completions"}

Json = dict[str, Any]


@dataclass
class VllmCluster:
    """The pods of one test session. `plain` has no KV connector: what it says is right."""

    prefill: Pod
    decode: list[Pod]
    plain: Pod


class Reaches(Protocol):
    """Anything that can be asked: a pod, a running gateway."""

    @property
    def url(self) -> str: ...


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float, what: str, pause_s: float = 0.1) -> float:
    """Ask again and again until it holds; gives the seconds it took, fails after `timeout_s`."""
    began = time.monotonic()
    while True:
        if await condition():
            return time.monotonic() - began
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(pause_s)


@dataclass
class Answer:
    """An answer, streamed or not, brought into one form.

    chunks: the decoded JSON of the events of a stream, or the one body. raw: what came over the wire.
    """

    status: int
    headers: httpx.Headers
    raw: bytes
    streamed: bool
    chunks: list[Json]
    seconds: float

    @property
    def body(self) -> Json:
        """The body of an answer that was not streamed."""
        assert not self.streamed
        return self.chunks[0]

    @property
    def text(self) -> str:
        return self.text_of(0)

    def text_of(self, index: int) -> str:
        """All text of one choice."""
        return "".join(_text(choice) for choice in self._choices(index))

    @property
    def token_ids(self) -> list[int]:
        """The generated ids of choice 0; the request must have had `return_token_ids`."""
        return [token for choice in self._choices(0) for token in choice.get("token_ids") or []]

    @property
    def prompt_token_ids(self) -> list[int]:
        """The ids of the prompt as the pod saw it (`return_token_ids`)."""
        for chunk in self.chunks:
            for holder in (chunk, *chunk.get("choices", [])):
                if holder.get("prompt_token_ids"):
                    return list(holder["prompt_token_ids"])
        raise AssertionError(f"no prompt_token_ids in {self.raw[:300]!r}")

    @property
    def finish_reason(self) -> str | None:
        reasons = [choice["finish_reason"] for choice in self._choices(0) if choice.get("finish_reason")]
        assert len(reasons) <= 1
        return reasons[0] if reasons else None

    @property
    def usage(self) -> Json | None:
        said = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]
        assert len(said) <= 1
        return said[0] if said else None

    @property
    def cached_tokens(self) -> int:
        details = (self.usage or {}).get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)

    @property
    def handover(self) -> Json:
        handover = self.chunks[0].get("kv_transfer_params")
        assert isinstance(handover, dict), self.raw[:300]
        return handover

    def _choices(self, index: int) -> list[Json]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices", []) if choice["index"] == index]


def _text(choice: Json) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("delta") or choice.get("message") or {}).get("content") or "")


class Client:
    """Asks pods and gateways over HTTP, patiently, and never on a kept-alive connection."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def post(
        self, whom: Reaches, path: str, body: Json | bytes, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """POST JSON and read the answer to its end."""
        began = time.monotonic()
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        response = await self.http.post(whom.url + path, content=content, headers={**JSON_CONTENT, **(headers or {})})
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        chunks = stream_chunks(response.content) if streamed else [msgspec.json.decode(response.content)]
        seconds = time.monotonic() - began
        return Answer(response.status_code, response.headers, response.content, streamed, chunks, seconds)

    async def generate(
        self, whom: Reaches, api: Api, body: Json | bytes, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """POST to the endpoint of that API; the answer must be a 200."""
        answer = await self.post(whom, PATHS[api], body, headers)
        assert answer.status == 200, f"{whom.url}: {answer.status} {answer.raw[:600]!r}"
        return answer

    async def metric(self, whom: Reaches, name: str, **labels: str) -> float:
        """The sum of all samples of that name with these labels (`vllm:` may be left out)."""
        page = (await self.http.get(f"{whom.url}/metrics")).text
        wanted = name if name.startswith("ppd_") else f"vllm:{name}"
        samples = [
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == wanted and labels.items() <= sample.labels.items()
        ]
        assert samples, f"{whom.url} has no metric {wanted} {labels}"
        return sum(samples)

    async def requests_ended(self, whom: Reaches) -> int:
        """Requests that the engine of a pod has ended, however they ended."""
        return int(await self.metric(whom, "request_success_total"))


def stream_chunks(raw: bytes) -> list[Json]:
    """The JSON of all events but [DONE], which must be the last."""
    events = stream_events(raw)
    assert events[-1] == b"data: [DONE]", f"the stream ends with {events[-1][:300]!r}"
    return [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events[:-1]]


def stream_events(raw: bytes) -> list[bytes]:
    """The events of a stream as they came."""
    assert raw.endswith(b"\n\n"), raw[-100:]
    return raw.removesuffix(b"\n\n").split(b"\n\n")


_OWN = re.compile(
    rb'"(id)":"(?:chatcmpl-tool-|chatcmpl-|cmpl-|call_)[0-9a-zA-Z_-]+"'
    rb'|"(created)":\d+'
    rb'|"(system_fingerprint)":"[^"]+"'
)


def normalised(raw: bytes) -> bytes:
    """Ids, times and the fingerprint's value become `*`; everything else stays, byte for byte."""
    return _OWN.sub(lambda found: b'"%s":"*"' % next(group for group in found.groups() if group), raw)


@dataclass
class Watcher(IdleObserver):
    """An observer that remembers. `begun` holds the very records that the gateway still writes to."""

    begun: list[RequestRecord] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    up: set[str] = field(default_factory=set)
    pairs: list[tuple[str, str, bool]] = field(default_factory=list)

    def started(self, record: RequestRecord) -> None:
        self.begun.append(record)

    def finished(self, record: RequestRecord) -> None:
        self.records.append(record)

    def fault(self, kind: str, pod: str | None, request_id: str, detail: str) -> None:
        self.faults.append(f"{kind} {pod} {detail}")

    def pair_probed(self, prefill: str, decode: str, works: bool, detail: str) -> None:
        self.pairs.append((prefill, decode, works))

    def pod_changed(self, pod: str, role: str, up: bool, detail: str) -> None:
        (self.up.add if up else self.up.discard)(pod)

    @property
    def last(self) -> RequestRecord:
        return self.records[-1]


@dataclass
class WatchedGateway:
    """A gateway in this process, and what its observer saw."""

    running: Running
    saw: Watcher

    @property
    def url(self) -> str:
        return self.running.url


@asynccontextmanager
async def gateway_before(
    cluster: VllmCluster, policy: str, *, decode: Sequence[Pod] | None = None, **flags: Any
) -> AsyncIterator[WatchedGateway]:
    """Run a gateway in front of the cluster; it is handed out once it has found its pods up.

    decode: these decode pods instead of all. flags: further settings, dots written as double underscores.
    """
    pods = list(cluster.decode if decode is None else decode)
    settings: dict[str, Any] = {
        "prefill": [cluster.prefill.url],
        "decode": [pod.url for pod in pods],
        "policy": policy,
        "port": 0,
        "selftest": False,
        "pairs.probe": False,
        **{name.replace("__", "."): value for name, value in flags.items()},
    }
    watcher = Watcher()
    async with running(load(None, {}, settings), watcher) as gateway:
        expected = {*settings["prefill"], *settings["decode"]}

        async def all_up() -> bool:
            return watcher.up >= expected

        await until(all_up, PATIENCE_S, f"the gateway finds its pods up (has {watcher.up})", pause_s=0.02)
        yield WatchedGateway(gateway, watcher)


def warm_up(prefill: Pod, decode: Pod) -> None:
    """One hand-over between two pods, whatever it says: the first one pays for the NIXL handshake."""
    body = ask(Api.COMPLETIONS, f"warm up {decode.name}", max_tokens=1)
    with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
        leg = prefill_body(Api.COMPLETIONS, parse(msgspec.json.encode(body)))
        first = http.post(prefill.url + PATHS[Api.COMPLETIONS], content=leg, headers=JSON_CONTENT)
        body["kv_transfer_params"] = first.raise_for_status().json()["kv_transfer_params"]
        http.post(decode.url + PATHS[Api.COMPLETIONS], json=body).raise_for_status()


_TEXT = (
    "river engine cache window summer letter market doctor garden mountain student machine picture river question "
    "morning answer history company problem moment reason number school water people travel light paper music"
)
_WORDS = _TEXT.split()


def words(seed: str, count: int) -> str:
    """English words, another order for every seed; a little more than a token each."""
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


@dataclass
class Dialogue:
    """A conversation as a client keeps it, in either API."""

    api: Api
    messages: list[Json] = field(default_factory=list)
    prompt: str = ""

    def say(self, text: str) -> None:
        """The user's next words."""
        self.messages.append({"role": "user", "content": text})
        self.prompt += f"\nUser: {text}\nAssistant:"

    def hear(self, text: str) -> None:
        """The model's reply."""
        self.messages.append({"role": "assistant", "content": text})
        self.prompt += text

    def body(self, **fields: Any) -> Json:
        """The request for the next reply: greedy, 24 tokens, unless `fields` say otherwise."""
        prompt = {"messages": list(self.messages)} if self.api is Api.CHAT else {"prompt": self.prompt}
        return {"model": MODEL, **prompt, "temperature": 0, "max_tokens": 24, **fields}


def ask(api: Api, seed: str, count: int = 90, **fields: Any) -> Json:
    """A single request with a prompt of `count` words."""
    dialogue = Dialogue(api)
    dialogue.say(words(seed, count))
    return dialogue.body(**fields)


def lease_of(pod: Pod) -> float:
    """Seconds for which a prefill pod keeps blocks that nobody fetches."""
    return float(str(pod.spec.connector_options.get("kv_lease_duration", VLLM_LEASE_S)))


async def until_empty(client: Client, pod: Pod, timeout_s: float | None = None) -> None:
    """Wait until a pod holds no blocks for anybody; by default for as long as a lease may take."""

    async def empty() -> bool:
        return await client.metric(pod, "kv_cache_usage_perc") == 0

    await until(empty, lease_of(pod) + 5 if timeout_s is None else timeout_s, f"{pod.name} holds no blocks")
