"""What goes into an engine and what comes out.

Rule of this room: plain data, no behaviour that needs a clock. Token ids only; text is the pod's business.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadtest.engine import tokens
from loadtest.engine.blocks import Block
from loadtest.engine.tokens import TokenChain

if TYPE_CHECKING:
    from loadtest.engine.kv_events import KvEvent


class Finish(enum.StrEnum):
    """Why a request ended, spelled as `finish_reason` spells it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class KvSource:
    """Where KV lies that may be read: the coordinates that `kv_transfer_params` carries."""

    engine_id: str
    request_id: str
    host: str
    port: int
    block_ids: tuple[int, ...]
    num_tokens: int
    expires_s: float | None = None
    cached_tokens: int | None = None
    """P's own prefix cache hit, which D reports as its `cached_tokens` (`remote_prefill_cached_tokens`)."""


@dataclass(frozen=True, slots=True)
class KvIntent:
    """What a request asks of the KV connector (`kv_transfer_params` on the way in)."""

    do_remote_decode: bool = False
    """Keep the blocks for another pod to read when done (leg 1, to P)."""
    do_remote_prefill: bool = False
    """Read the prompt's KV from `source` (leg 2, to D)."""
    source: KvSource | None = None


@dataclass(frozen=True, slots=True)
class KvOffer:
    """What a finished request leaves for another pod to read (`kv_transfer_params` on the way out)."""

    source: KvSource
    from_prefill: bool
    """True: P's offer to D. False: D's offer for the next turn's readback."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to compute.

    `forced` are output tokens a grammar leaves no choice about (then the end token). `branch` tells the n sequences
    of one API request apart. `salt` is the prefix cache's name space (`tokens.salt`).
    `session_id`, `cache_salt` and `report_hits` (`kv_cache_report_mode: "full"`) only matter to KV events.
    """

    request_id: str
    prompt: Sequence[int]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    forced: Sequence[int] | None = None
    branch: int = 0
    salt: int = 0
    kv: KvIntent | None = None
    session_id: str | None = None
    cache_salt: str | None = None
    report_hits: bool = False


@dataclass(frozen=True, slots=True)
class PrefillStats:
    """How the prompt was come by; reported once, with the first token."""

    prompt_tokens: int
    cached_local: int
    cached_remote: int

    @property
    def cached_tokens(self) -> int:
        return self.cached_local + self.cached_remote


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one step gave one request."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish: Finish | None = None
    stop_token: int | None = None
    prefill: PrefillStats | None = None
    offer: KvOffer | None = None


@dataclass(frozen=True, slots=True)
class PullOrder:
    """Blocks to read from another pod. `counts[i]` tokens of `block_ids[i]` are wanted.

    An order without blocks only tells the source that nothing more is needed (`awaited` is then False).
    """

    request_id: str
    source: KvSource
    block_ids: tuple[int, ...]
    counts: tuple[int, ...]
    num_bytes: int
    awaited: bool


@dataclass(frozen=True, slots=True)
class StepResult:
    """One forward step: how long it takes, what it gives when that time is over, which reads to start now.

    `duration_s` None means there was nothing to compute; look again at `wake_s` (None: only when told something).
    """

    duration_s: float | None
    outputs: tuple[EngineOutput, ...] = ()
    pulls: tuple[PullOrder, ...] = ()
    wake_s: float | None = None
    events: "tuple[KvEvent, ...]" = ()
    """Published when the time is over, before the outputs."""
    prefill_tokens: int = 0
    decode_sequences: int = 0


class Phase(enum.Enum):
    WAITING = "waiting"
    WAITING_FOR_REMOTE_KV = "waiting_for_remote_kv"
    RUNNING = "running"


@dataclass(slots=True)
class Job:
    """A request inside the engine."""

    request: EngineRequest
    chain: TokenChain
    arrival_s: float
    phase: Phase = Phase.WAITING
    blocks: list[Block] = field(default_factory=list)
    num_computed: int = 0
    num_written: int = 0
    """Blocks whose content is final."""
    num_output: int = 0
    taint: int = 0
    """Not 0 once any KV this sequence attends to is not what it should be."""
    state: int | None = None
    """Seed of the continuation, fixed when the whole prompt is there."""
    pulled_from: int = 0
    """First token that comes from a remote pod, while waiting for it."""
    kv_done: bool = False
    prefill: PrefillStats | None = None
    preemptions: int = 0

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    def key(self, index: int) -> int:
        """The cache key of block `index`."""
        return tokens.salted(self.chain.digests[index], self.request.salt)
