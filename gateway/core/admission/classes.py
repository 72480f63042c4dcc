"""Three classes of service.

Rule of this room: a class is an order of service and of shedding, nothing else; what a class is promised are its
targets (`core.slo`).
"""

from __future__ import annotations

import enum


class ServiceClass(enum.StrEnum):
    """The first is served first and shed last."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """0 is served first."""
        return _RANKS[self]

    def lowered(self, wanted: str | None) -> ServiceClass:
        """What a client gets that asks for a class: a later one than its own, never an earlier one. Raises
        ValueError."""
        if wanted is None:
            return self
        return max(self, ServiceClass(wanted), key=lambda each: each.rank)


_RANKS = {name: rank for rank, name in enumerate(ServiceClass)}


def vllm_priority(service: ServiceClass, *, live: bool) -> int:
    """For pods with `--scheduling-policy priority`, where the lowest number is scheduled first.

    live: a later turn of a conversation, which goes before new ones of its class.
    """
    return 2 * service.rank + (0 if live else 1)
