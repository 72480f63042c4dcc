"""How far an examination goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """How far to go. streams: at once, that this machine is to be fit for. pairs: to try at most. compute: let pods
    compute anything. limit_s: of each question to a pod."""

    streams: int = 1000
    pairs: int = 64
    compute: bool = True
    limit_s: float = 5.0
