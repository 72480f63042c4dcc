"""What goes into an engine and what comes out.

Rule of this room: plain data, no behaviour that needs a clock. Token ids, or names of them (`segments`); text is the
pod's business.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadtest.engine.blocks import Block
from loadtest.engine.segments import Segments
from loadtest.engine.text import NamedText, TokenText

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
    block_ids: Sequence[int]
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

    A prompt of `Segments` makes an answer of exactly `max_tokens` tokens (fewer only where the context ends) which is
    the segment `answer`; of such a request only the first token and the end are told, and `min_tokens`, `ignore_eos`,
    `stop_token_ids`, `forced` and `branch` say nothing.

    `forced` are output tokens a grammar leaves no choice about (then the end token). `branch` tells the n sequences
    of one API request apart. `salt` is the prefix cache's name space (`tokens.salt`).
    `session_id`, `cache_salt` and `report_hits` (`kv_cache_report_mode: "full"`) only matter to KV events.
    """

    request_id: str
    prompt: Sequence[int] | Segments
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
    answer: int = 0


@dataclass(frozen=True, slots=True)
class PrefillStats:
    """How the prompt was come by; reported once, with the first token."""

    prompt_tokens: int
    cached_local: int
    cached_remote: int

    @property
    def cached_tokens(self) -> int:
        return self.cached_local + self.cached_remote


@dataclass(slots=True)
class EngineOutput:
    """What one step gave one request. `num_tokens` and `preemptions` count from its begin."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish: Finish | None = None
    stop_token: int | None = None
    prefill: PrefillStats | None = None
    offer: KvOffer | None = None
    num_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class PullOrder:
    """Blocks to read from another pod. `counts[i]` tokens of `block_ids[i]` are wanted.

    An order without blocks only tells the source that nothing more is needed (`awaited` is then False).
    """

    request_id: str
    source: KvSource
    block_ids: Sequence[int]
    counts: tuple[int, ...]
    num_bytes: int
    awaited: bool
    named: bool = False
    """Nobody will look at what was read."""


@dataclass(slots=True)
class StepResult:
    """One forward step: how long it takes, what it gives when that time is over, which reads to start now.

    `duration_s` None means there was nothing to compute; look again at `wake_s` (None: only when told something).
    """

    duration_s: float | None
    outputs: Sequence[EngineOutput] = ()
    pulls: Sequence[PullOrder] = ()
    wake_s: float | None = None
    events: "tuple[KvEvent, ...]" = ()
    """Published when the time is over, before the outputs."""
    prefill_tokens: int = 0
    decode_sequences: int = 0
    leaps: bool = False
    """More than this one step: `Engine.land` says what it gave."""


class Phase(enum.Enum):
    WAITING = "waiting"
    WAITING_FOR_REMOTE_KV = "waiting_for_remote_kv"
    RUNNING = "running"


ALWAYS = 0
"""A `Job.quiet_until` that every length is beyond."""


@dataclass(slots=True, eq=False)
class Job:
    """A request inside the engine."""

    request: EngineRequest
    text: TokenText | NamedText
    num_prompt: int
    length: int
    """Tokens there are: the prompt and the answer so far."""
    end: int
    """The length at which it ends at the latest."""
    phase: Phase = Phase.WAITING
    blocks: list[Block] = field(default_factory=list)
    room: int = 0
    """Tokens that `blocks` can hold."""
    num_computed: int = 0
    num_written: int = 0
    """Blocks whose content is final."""
    count: int = 0
    """Tokens that the step being planned computes."""
    quiet_until: int = ALWAYS
    """No length below this one is worth an output."""
    kv_done: bool = False
    pulled_from: int = 0
    """First token that comes from a remote pod, while waiting for it."""
    prefill: PrefillStats | None = None
    preemptions: int = 0
    lost: int = 0
    """Tokens that were computed when it was preempted."""

    @property
    def request_id(self) -> str:
        return self.request.request_id
