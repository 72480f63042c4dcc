"""The numbers of one (GPU, model) pair.

Rule of this room: every timing constant of the engine is a field here, in seconds, tokens or bytes, and is read from a
TOML file in `profiles/`. No other module holds a constant that a GPU could change, and no number comes without its
source: in the file each is `{ value = 0.0078, source = "grid" }`, and `[sources]` says in words what `grid` is.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

PROFILES = Path(__file__).parent / "profiles"
_SECTIONS = ("step", "request", "scheduler", "cache", "transfer")
_Costs = TypeVar("_Costs")


class ProfileFileError(ValueError):
    """A profile that cannot be used; the message names the file and the key."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What one forward step costs: a sum of one fixed and six linear parts (all seconds)."""

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
    attended_pair_s: float = 0.0
    """Per (computed prompt token, token it attends to) pair: the part of attention that grows with the square."""
    handover_s: float = 0.0
    """Per prompt that ends its prefill in this step and whose KV goes to another pod (in the sender's thread)."""

    def duration_s(
        self,
        *,
        prefill_tokens: int,
        attended_tokens: int,
        decode_sequences: int,
        decode_context_tokens: int,
        attended_pairs: float = 0,
        handovers: int = 0,
    ) -> float:
        return (
            self.fixed_s
            + self.prefill_token_s * prefill_tokens
            + self.attended_token_s * attended_tokens
            + self.decode_sequence_s * decode_sequences
            + self.decode_context_token_s * decode_context_tokens
            + self.attended_pair_s * attended_pairs
            + self.handover_s * handovers
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
class Origin:
    """Where a number comes from, in words, and its standard error where a fit gave one."""

    source: str
    error: float | None = None


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
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    """By dotted name (`step.fixed_s`), as the file says; what code changes afterwards is not noted here."""

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


def from_toml(text: str, where: str = "profile") -> Profile:
    """Build a profile from TOML text. Raises ProfileFileError on a missing, unknown or sourceless field."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileFileError(f"{where}: is not TOML ({error})") from None
    reader = _Reader(where, data)
    profile = Profile(
        name=reader.name(),
        max_model_len=int(reader.number("max_model_len", data)),
        step=reader.section("step", StepCosts),
        request=reader.section("request", RequestCosts),
        scheduler=reader.section("scheduler", SchedulerLimits),
        cache=reader.section("cache", CacheSize),
        transfer=reader.section("transfer", TransferCosts),
        origins=reader.origins,
    )
    reader.finish()
    return profile


class _Reader:
    """Takes numbers out of a parsed file and notes where each comes from."""

    def __init__(self, where: str, data: dict[str, Any]) -> None:
        self._where = where
        self._data = data
        self._sources = data.get("sources", {})
        self._used: set[str] = set()
        self.origins: dict[str, Origin] = {}

    def name(self) -> str:
        name = self._data.get("name")
        if not isinstance(name, str) or not name:
            raise self._refuse("name", "is missing")
        return name

    def section(self, title: str, kind: type[_Costs]) -> _Costs:
        table = self._data.get(title)
        if not isinstance(table, dict):
            raise self._refuse(title, "is missing")
        assert dataclasses.is_dataclass(kind)
        fields = dataclasses.fields(kind)
        unknown = sorted(table.keys() - {each.name for each in fields})
        if unknown:
            raise self._refuse(f"{title}.{unknown[0]}", "is not a number of a profile")
        wanted = [each for each in fields if each.name in table or each.default is dataclasses.MISSING]
        values = {each.name: self.number(each.name, table, title) for each in wanted}
        whole = {each.name for each in fields if each.type is int}
        return kind(**{name: int(value) if name in whole else value for name, value in values.items()})

    def number(self, name: str, table: dict[str, Any], title: str | None = None) -> float:
        key = name if title is None else f"{title}.{name}"
        entry = table.get(name)
        if entry is None:
            raise self._refuse(key, "is missing")
        if not isinstance(entry, dict):
            raise self._refuse(key, 'has no source: write { value = …, source = "…" }')
        value, source, error = entry.get("value"), entry.get("source"), entry.get("error")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self._refuse(key, f"has the value {value!r}: a number from 0 up is wanted")
        if not isinstance(source, str) or source not in self._sources:
            raise self._refuse(key, f"names the source {source!r}, which [sources] does not have")
        self._used.add(source)
        self.origins[key] = Origin(self._sources[source], error)
        return float(value)

    def finish(self) -> None:
        known = {"name", "max_model_len", "sources", "measured", *_SECTIONS}
        unknown = sorted(self._data.keys() - known)
        if unknown:
            raise self._refuse(unknown[0], "is not part of a profile")
        unused = sorted(self._sources.keys() - self._used)
        if unused:
            raise self._refuse(f"sources.{unused[0]}", "is the source of no number")

    def _refuse(self, key: str, what: str) -> ProfileFileError:
        return ProfileFileError(f"{self._where}: {key} {what}")


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
    return from_toml(path.read_text(), str(path))
