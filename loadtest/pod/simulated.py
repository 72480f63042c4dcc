"""A whole simulated pod in this process.

Rule of this room: everything a pod opens (socket, engine task, client session) is closed when the `async with` ends.
"""

import asyncio
import dataclasses
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp import web

from loadtest.engine import profile as profiles
from loadtest.engine.core import Engine
from loadtest.engine.kv_connector import KvConfig
from loadtest.engine.profile import Profile
from loadtest.engine.realtime import RealtimeEngine
from loadtest.engine.request import PullOrder
from loadtest.engine.transfer import Links
from loadtest.pod.adapters import AdapterEndpoints
from loadtest.pod.agents import MessagesEndpoints, ResponsesEndpoints
from loadtest.pod.control import ControlEndpoints
from loadtest.pod.event_publisher import EventOptions, EventPublisher
from loadtest.pod.extras import ExtraEndpoints
from loadtest.pod.faults import Fault
from loadtest.pod.generate import GenerateEndpoints
from loadtest.pod.generation import PodModel
from loadtest.pod.info import InfoEndpoints, answer
from loadtest.pod.journal import Record
from loadtest.pod.language import WordLanguage
from loadtest.pod.render import RenderEndpoints
from loadtest.pod.reply import ConnectionReset
from loadtest.pod.side import SideClient, SideServer
from loadtest.pod.state import PodState, Role, Transfer


@dataclass(frozen=True, slots=True)
class PodOptions:
    """How a pod is started. `profile` is a name, a TOML file or a `Profile`."""

    role: Role = "replica"
    host: str = "127.0.0.1"
    port: int = 0
    """0: the kernel chooses."""
    profile: str | Profile = "instant"
    time_scale: float = 1.0
    block_size: int | None = None
    num_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    model: str = "sim"
    lease_s: float = 30.0
    decoder_lease_s: float = 480.0
    bidirectional: bool = False
    recompute_threshold_tokens: int = 64
    recompute_on_failure: bool = False
    transfer_mode: str = "pull"
    """"push": hand-overs are offered as NixlPushConnector words them."""
    handshake_timeout_s: float = 0.0
    """How long a reader waits for a pod it has never met and that does not answer. Real pods: 5 s."""
    bandwidth_gbps: float | None = None
    """Gigabits per second of each pod-to-pod link."""
    tool_parser: bool = True
    prefix_caching: bool = True
    """False: `--no-enable-prefix-caching`; then there are no KV events either."""
    prompt_tokens_details: bool = True
    """`--enable-prompt-tokens-details`."""
    response_store: bool = False
    """`VLLM_ENABLE_RESPONSES_API_STORE=1`: answers of `/v1/responses` can be gone on from by their id."""
    extras: bool = False
    """Embeddings and transcriptions, too."""
    scale_out: bool = False
    """`--enable-scale-out`: the render endpoints answer."""
    lora_updates: bool = False
    """`VLLM_ALLOW_RUNTIME_LORA_UPDATING`: adapters can be loaded over HTTP."""
    name: str | None = None
    """In the topic of the events, `kv@<name>`; the HTTP port where there is none."""
    kv_events: bool = False
    """`--kv-events-config`: KV events on a ZMQ socket."""
    event_port: int = 0
    replay_port: int = 0
    """0: the kernel chooses. A pod that is to come back on the same endpoints needs them fixed."""
    replay: bool = True
    buffer_steps: int = 10_000
    """Batches kept for the replay."""

    def resolved(self) -> Profile:
        found = self.profile if isinstance(self.profile, Profile) else profiles.load(self.profile)
        found = found.with_cache(block_size=self.block_size, num_blocks=self.num_blocks)
        found = found.with_limits(max_num_batched_tokens=self.max_num_batched_tokens, max_num_seqs=self.max_num_seqs)
        if self.bandwidth_gbps is not None:
            found = found.with_bandwidth(self.bandwidth_gbps * 1e9 / 8)
        if self.max_model_len is not None:
            found = dataclasses.replace(found, max_model_len=self.max_model_len)
        return found


class SimulatedPod:
    """`async with SimulatedPod(role="decode") as pod: pod.url`. Keywords are `PodOptions`."""

    def __init__(self, options: PodOptions | None = None, **keywords: Any) -> None:
        self.options = dataclasses.replace(options or PodOptions(), **keywords)
        self._stack = AsyncExitStack()
        self._side: SideClient | None = None

    async def __aenter__(self) -> Self:
        options = self.options
        listener = socket.create_server((options.host, options.port), backlog=1024)
        self._port: int = listener.getsockname()[1]
        engine_id = str(uuid.uuid4())
        kv = None
        if options.role != "replica":
            kv = KvConfig(
                engine_id,
                options.host,
                self._port,
                options.lease_s,
                options.decoder_lease_s,
                options.bidirectional,
                options.recompute_threshold_tokens,
                options.recompute_on_failure,
            )
        profile = options.resolved()
        engine = Engine(
            profile, WordLanguage(), kv=kv, kv_events=options.kv_events, prefix_caching=options.prefix_caching
        )
        publisher = await self._publisher()
        running = RealtimeEngine(
            engine,
            self._pull,
            time_scale=options.time_scale,
            on_progress=lambda: self.state.pulse.fire(),
            on_events=publisher.publish if publisher else lambda _: None,
        )
        self.state = PodState(
            role=options.role,
            engine_id=engine_id,
            model=PodModel(options.model, engine.max_model_len, options.tool_parser),
            running=running,
            links=Links(profile.transfer),
            events=publisher,
            scale_out=options.scale_out,
            prompt_tokens_details=options.prompt_tokens_details,
            transfer_mode=options.transfer_mode,
        )
        session = await self._stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)))
        self._side = SideClient(self.state, session, handshake_timeout_s=options.handshake_timeout_s)
        await self._stack.enter_async_context(running)
        runner = web.AppRunner(
            self._app(self._side),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=5.0,
            shutdown_timeout=0.1,
        )
        self._stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # ---- what tests look at

    @property
    def url(self) -> str:
        return f"http://{self.options.host}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def requests(self) -> Sequence[Record]:
        """Requests to the generate endpoints so far, oldest first."""
        return self.state.journal.records

    @property
    def transfers(self) -> Sequence[Transfer]:
        """KV reads this pod has done."""
        return self.state.transfers

    @property
    def summary(self) -> Mapping[str, Any]:
        """Running, waiting, free and pinned blocks, as `GET /sim/state`."""
        return self.state.summary()

    def fault(self, kind: str, **fields: Any) -> None:
        """Order a fault: `pod.fault("refuse_5xx", status=503, times=2)`."""
        self.state.faults.add(msgspec.convert({"kind": kind, **fields}, Fault))

    def slow_down(self, factor: float) -> None:
        """From its next step on, everything takes so many times as long as its profile says."""
        self.state.running.engine.slowdown = factor

    def clear_faults(self) -> None:
        self.state.faults.clear()

    def reset_prefix_cache(self) -> bool:
        """False, and nothing done, while any block is held. Subscribers hear of it with the next step."""
        return self.state.running.engine.reset_prefix_cache()

    @property
    def events(self) -> EventPublisher:
        """The publisher of a pod with `kv_events`: endpoints, `subscribers`, `batches`, `drop`."""
        assert self.state.events is not None, "this pod has no KV events"
        return self.state.events

    async def until(self, happened: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until something is so in this pod: `await pod.until(lambda: pod.summary["running"] == 1)`."""
        async with asyncio.timeout(timeout_s):
            while not happened():
                await self.state.pulse.wait()

    # ---- parts

    async def _publisher(self) -> EventPublisher | None:
        options = self.options
        if not options.kv_events:
            return None
        wanted = EventOptions(
            host=options.host,
            topic=f"kv@{options.name or self._port}",
            port=options.event_port,
            replay=options.replay,
            replay_port=options.replay_port,
            buffer_steps=options.buffer_steps,
        )
        return await self._stack.enter_async_context(EventPublisher(wanted, lambda: self.state.pulse.fire()))

    async def _pull(self, order: PullOrder) -> tuple[int, ...] | None:
        assert self._side is not None
        return await self._side.pull(order)

    def _app(self, side: SideClient) -> web.Application:
        app = web.Application(client_max_size=1 << 28, middlewares=[_unknown_paths])
        app.add_routes(
            [
                *GenerateEndpoints(self.state, side).routes(),
                *MessagesEndpoints(self.state, side).routes(),
                *ResponsesEndpoints(self.state, side, remembers=self.options.response_store).routes(),
                *(ExtraEndpoints(self.state).routes() if self.options.extras else ()),
                *RenderEndpoints(self.state).routes(),
                *(AdapterEndpoints(self.state).routes() if self.options.lora_updates else ()),
                *InfoEndpoints(self.state).routes(),
                *ControlEndpoints(self.state).routes(),
                *SideServer(self.state).routes(),
            ]
        )
        return app


@web.middleware
async def _unknown_paths(request: web.Request, handler: Any) -> web.StreamResponse:
    """404 and 405 as FastAPI words them (not in vLLM's error shape)."""
    try:
        response: web.StreamResponse = await handler(request)
    except ConnectionReset:
        raise web.HTTPServiceUnavailable from None  # never seen: the connection is gone
    except web.HTTPException as error:
        if error.status not in (404, 405):
            raise
        return answer({"detail": error.reason}, error.status)
    return response
