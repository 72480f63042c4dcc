"""How KV gets from the prefill pod to the decode pod: one small class per connector, behind one protocol.

Rule of this room: what a hand-over puts on either leg, and how P's answer to it is read, is here and nowhere else.

Read in vLLM 0.32 `distributed/kv_transfer/kv_connector/v1/`: `nixl/pull_scheduler.py`, `nixl/push_scheduler.py`,
`nixl/push_worker.py` (matching by request id), `mooncake/mooncake_connector.py`, `mooncake/mooncake_utils.py`.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.wire.answers import PrefillAnswer
from gateway.wire.contract import ASK_P_TO_KEEP_BLOCKS
from gateway.wire.fields import raw


class Way(enum.StrEnum):
    """The setting `handover`. AUTO: pull or push, as P's own answers say."""

    AUTO = "auto"
    NIXL = "nixl"
    NIXL_PUSH = "nixl-push"
    MOONCAKE = "mooncake"


class Handover(Protocol):
    """One hand-over, made anew for every prefill leg.

    ask: `kv_transfer_params` of the leg to P. tell: those of the leg to D where they are known before P has answered,
    so that both legs start at once; else None. mark: goes behind the request's id on both legs. rank: the DP rank of
    P that is asked, None where any may answer.
    """

    ask: msgspec.Raw
    tell: msgspec.Raw | None
    mark: str
    rank: int | None

    def answered(self, answer: PrefillAnswer) -> msgspec.Raw | None:
        """What D is to be sent, now that P has answered; None where P keeps nothing for it."""

    def release(self, handover: msgspec.Raw) -> msgspec.Raw | None:
        """What a D that refuses it makes P free the blocks with; None where only time does."""


class NixlPull:
    """D reads the blocks that P's answer names."""

    ask = ASK_P_TO_KEEP_BLOCKS
    tell: msgspec.Raw | None = None
    rank: int | None = None

    def __init__(self, mark: str = "") -> None:
        self.mark = mark

    def answered(self, answer: PrefillAnswer) -> msgspec.Raw | None:
        return answer.handover if answer.finish_reason in ("length", "stop") else None

    def release(self, handover: msgspec.Raw) -> msgspec.Raw | None:
        return handover


class NixlPush(NixlPull):
    """D tells P where to write to. P finds the blocks by the request's id, so no two hand-overs may share one.

    mark: makes the id unique. Without it a client that sends one id twice could get the KV of the other request.
    """

    def __init__(self, mark: str) -> None:
        super().__init__(f"-{mark}")

    def release(self, handover: msgspec.Raw) -> msgspec.Raw | None:
        """A refusing D sends P no word (seen with vLLM 0.32): the blocks are P's again when the lease has ended."""
        return None if pushes(handover) else handover


@dataclass(frozen=True, slots=True)
class Origin:
    """A Mooncake engine of a prefill pod. address: of its bootstrap server, as D is to ask it."""

    address: str
    engine: str
    rank: int | None = None


class Mooncake:
    """The gateway makes up the id by which both pods know the hand-over; D waits for P to have the blocks."""

    mark = ""

    def __init__(self, transfer_id: str, origin: Origin) -> None:
        self.rank = origin.rank
        self.ask = raw({"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id})
        self.tell: msgspec.Raw | None = raw(
            {
                "do_remote_decode": False,
                "do_remote_prefill": True,
                "remote_bootstrap_addr": origin.address,
                "remote_engine_id": origin.engine,
                "transfer_id": transfer_id,
            }
        )

    def answered(self, answer: PrefillAnswer) -> msgspec.Raw | None:
        """P says nothing of its blocks; it keeps them only where it was stopped by its one token."""
        return self.tell if answer.finish_reason == "length" else None

    def release(self, handover: msgspec.Raw) -> msgspec.Raw | None:
        return handover


_PUSH = re.compile(rb'"transfer_mode"\s*:\s*"push"')


def pushes(handover: bytes) -> bool:
    """Whether a hand-over that P offers is one of push; a pod of older vLLM says nothing and is pull."""
    return _PUSH.search(handover) is not None


class _Engine(msgspec.Struct):
    engine_id: str


_engines = msgspec.json.Decoder(dict[int, _Engine])


def read_bootstrap(body: bytes) -> dict[int, str]:
    """The engine ids by DP rank that a bootstrap server has (`GET /query`). Raises ValueError for anything else."""
    try:
        return {rank: engine.engine_id for rank, engine in sorted(_engines.decode(body).items())}
    except msgspec.DecodeError as error:
        raise ValueError(f"no answer of a bootstrap server: {error}") from None
