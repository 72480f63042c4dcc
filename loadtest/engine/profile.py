"""The numbers of one (GPU, model) pair.

Rule of this room: every timing constant of the engine is a field here, in seconds, tokens or bytes, and is read from a
TOML file in `profiles/` which names its source. No other module holds a constant that a GPU could change.
"""

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROFILES = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What one forward step costs: a sum of one fixed and four linear parts (all seconds)."""

    fixed_s: float
    """Weights read once, launch overhead."""
    prefill_token_s: float
    """Per prompt token computed in this step."""
    attended_token_s: float
    """Per token already in the KV cache that a prefilling sequence attends to."""
    decode_sequence_s: float
    """Per sequence that decodes one token."""
    decode_context_token_s: float
    """Per KV token read by a decoding sequence."""

    def duration_s(
        self, *, prefill_tokens: int, attended_tokens: int, decode_sequences: int, decode_context_tokens: int
    ) -> float:
        return (
            self.fixed_s
            + self.prefill_token_s * prefill_tokens
            + self.attended_token_s * attended_tokens
            + self.decode_sequence_s * decode_sequences
            + self.decode_context_token_s * decode_context_tokens
        )


@dataclass(frozen=True, slots=True)
class RequestCosts:
    """What the host does before a request can be scheduled (HTTP, tokenising): delays it, not the batch."""

    fixed_s: float
    prompt_token_s: float

    def duration_s(self, prompt_tokens: int) -> float:
        return self.fixed_s + self.prompt_token_s * prompt_tokens


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """`--max-num-batched-tokens` and `--max-num-seqs`."""

    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The paged KV cache."""

    block_size: int
    num_blocks: int
    bytes_per_token: int


@dataclass(frozen=True, slots=True)
class TransferCosts:
    """One pod-to-pod KV link."""

    bandwidth_bytes_per_s: float
    latency_s: float
    """Per transfer, on the wire."""
    handover_s: float
    """Constant of a hand-over besides the bytes: scheduling the read, posting it, noticing that it is done."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One (GPU, model) pair as the engine sees it."""

    name: str
    max_model_len: int
    step: StepCosts
    request: RequestCosts
    scheduler: SchedulerLimits
    cache: CacheSize
    transfer: TransferCosts

    def with_cache(self, *, block_size: int | None = None, num_blocks: int | None = None) -> "Profile":
        cache = self.cache
        if block_size is not None:
            cache = dataclasses.replace(cache, block_size=block_size)
        if num_blocks is not None:
            cache = dataclasses.replace(cache, num_blocks=num_blocks)
        return dataclasses.replace(self, cache=cache)

    def with_bandwidth(self, bytes_per_s: float) -> "Profile":
        return dataclasses.replace(self, transfer=dataclasses.replace(self.transfer, bandwidth_bytes_per_s=bytes_per_s))

    def with_limits(self, *, max_num_batched_tokens: int | None = None, max_num_seqs: int | None = None) -> "Profile":
        limits = self.scheduler
        if max_num_batched_tokens is not None:
            limits = dataclasses.replace(limits, max_num_batched_tokens=max_num_batched_tokens)
        if max_num_seqs is not None:
            limits = dataclasses.replace(limits, max_num_seqs=max_num_seqs)
        return dataclasses.replace(self, scheduler=limits)


def from_toml(text: str) -> Profile:
    """Build a profile from TOML text. Raises TypeError on a missing or unknown field."""
    data: dict[str, Any] = tomllib.loads(text)
    return Profile(
        name=data["name"],
        max_model_len=data["max_model_len"],
        step=StepCosts(**data["step"]),
        request=RequestCosts(**data["request"]),
        scheduler=SchedulerLimits(**data["scheduler"]),
        cache=CacheSize(**data["cache"]),
        transfer=TransferCosts(**data["transfer"]),
    )


def names() -> list[str]:
    """The profiles that come with the package."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


def load(name_or_path: str | Path) -> Profile:
    """Load a profile by name (`h100-llama3.1-8b`) or from a TOML file of one's own."""
    path = PROFILES / f"{name_or_path}.toml"
    if not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        raise FileNotFoundError(f"no engine profile {str(name_or_path)!r}; known: {', '.join(names())}")
    return from_toml(path.read_text())
