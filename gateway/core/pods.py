"""The pods as the decision sees them: role, health, load.

Rule of this room: facts are put in by others (probes, the relay); nothing here asks a pod anything.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec


class Role(enum.StrEnum):
    """What the operator uses a pod for. vLLM's NixlConnector ignores roles; the gateway's word counts."""

    PREFILL = "prefill"
    DECODE = "decode"
    REPLICA = "replica"


class Pod(msgspec.Struct, eq=False):
    """One vLLM server.

    url: base URL without a trailing slash; also its name.
    up: it answered its last health probe and nothing has failed to connect since.
    epoch: counts the times it came back after its process was gone; KV of an earlier epoch is lost.
    in_flight: requests the gateway has there now.
    load_tokens: those requests, each weighted by its tokens.
    """

    url: str
    role: Role
    up: bool = False
    epoch: int = 0
    in_flight: int = 0
    load_tokens: int = 0

    def take(self, tokens: int) -> None:
        """A request of so many tokens begins here."""
        self.in_flight += 1
        self.load_tokens += max(1, tokens)

    def give_back(self, tokens: int) -> None:
        """That request is over; `tokens` as they were taken."""
        self.in_flight -= 1
        self.load_tokens -= max(1, tokens)


class Seat:
    """A request's place at a pod, taken from the moment it is planned there, so that others see it is taken.

    kept: someone else goes on with it and will leave it.
    """

    def __init__(self, pod: Pod, tokens: int) -> None:
        self.pod = pod
        self.kept = False
        self._tokens = tokens
        pod.take(tokens)

    def leave(self) -> None:
        """Give the place back."""
        self.pod.give_back(self._tokens)

    def leave_unless_kept(self) -> None:
        """Give the place back, if it is still ours."""
        if not self.kept:
            self.leave()


class Fleet:
    """All pods, by role and by URL. Change a pod's `up` through `set_up`, so that the lists below stay right."""

    def __init__(self, pods: Iterable[Pod]) -> None:
        self._by_url = {pod.url: pod for pod in pods}
        self._up: dict[Role, list[Pod]] = {}
        self._assignment = ""
        self._sort()

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._by_url.values())

    def get(self, url: str | None) -> Pod | None:
        """The pod of that URL, whatever its state."""
        return None if url is None else self._by_url.get(url)

    def set_up(self, pod: Pod, up: bool) -> None:
        """A pod went up or down."""
        pod.up = up
        self._sort()

    def up(self, role: Role) -> list[Pod]:
        """The pods of a role that may get traffic now. Do not change the list."""
        return self._up[role]

    @property
    def assignment(self) -> str:
        """The node assignment π of the pods that are up, as `1P_3D`."""
        return self._assignment

    def of(self, role: Role) -> list[Pod]:
        """The pods of a role, whatever their state."""
        return [pod for pod in self._by_url.values() if pod.role is role]

    def _sort(self) -> None:
        pods = self._by_url.values()
        self._up = {role: [pod for pod in pods if pod.up and pod.role is role] for role in Role}
        self._assignment = f"{len(self._up[Role.PREFILL])}P_{len(self._up[Role.DECODE])}D"
