"""How each prefill pod hands over, as far as is known: from its own answers, or from its Mooncake bootstrap server.

Rule of this room: asked beside the traffic, never by a request. A pod of which nothing is known yet is treated so
that either NIXL way is right.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from itertools import count
from urllib.parse import urlsplit

from gateway.core.pods import Pod, Role
from gateway.net.fault import PodFault
from gateway.net.upstream import PodClient
from gateway.wire.handovers import Handover, Mooncake, NixlPull, NixlPush, Origin, Way, pushes, read_bootstrap

BOOTSTRAP_PORT = 8998
"""vLLM's `VLLM_MOONCAKE_BOOTSTRAP_PORT`, where no other is configured."""


class Origins:
    """bootstraps: per pod URL the address of its bootstrap server, where it is not the pod's host and port 8998. asks:
    whether prefill pods have something to be asked for."""

    def __init__(self, way: Way = Way.AUTO, bootstraps: Mapping[str, str] | None = None) -> None:
        self.asks = way is Way.MOONCAKE
        self._may_push = way is not Way.NIXL
        self._bootstraps = bootstraps or {}
        self._push: dict[str, bool] = {}
        self._engines: dict[str, dict[int, str]] = {}
        self._turn = count()

    def begin(self, pod: Pod) -> Handover:
        """A new hand-over from this pod. Raises PodFault where it is not known how."""
        if self.asks:
            return Mooncake(secrets.token_hex(16), self._origin(pod))
        push = self._push.get(pod.url, self._may_push)
        return NixlPush(secrets.token_hex(6)) if push else NixlPull()

    def learn(self, pod: Pod, handover: bytes) -> None:
        """The pod offered this. One that pushes cannot read back (vLLM refuses to start with both)."""
        if self.asks or pod.url in self._push:
            return
        self._push[pod.url] = pushes(handover)
        if self._push[pod.url]:
            pod.reads_back = False

    def forget(self, url: str) -> None:
        """Its process is another one, or it is gone for good."""
        self._push.pop(url, None)
        self._engines.pop(url, None)

    def shown(self, pod: Pod) -> str | None:
        """How this pod hands over, for people; None where that is not known."""
        if pod.role is not Role.PREFILL:
            return None
        if self.asks:
            return Way.MOONCAKE if pod.url in self._engines else None
        push = self._push.get(pod.url)
        return None if push is None else (Way.NIXL_PUSH if push else Way.NIXL)

    async def ask(self, client: PodClient, pod: Pod, timeout_s: float) -> dict[int, str]:
        """Ask a prefill pod's bootstrap server for its engine ids by DP rank. Raises PodFault."""
        answer = await client.call("GET", self.address(pod.url), "/query", [], b"", timeout_s)
        try:
            body = await answer.read(timeout_s)
        finally:
            answer.close()
        if answer.status != 200:
            raise PodFault("status", str(answer.status))
        try:
            engines = read_bootstrap(body)
        except ValueError as error:
            raise PodFault("malformed", str(error)) from None
        if not engines:
            raise PodFault("no_handover", "its bootstrap server knows no engine yet")
        return engines

    def met(self, pod: Pod, engines: dict[int, str]) -> None:
        """The pod's bootstrap server said so."""
        self._engines[pod.url] = engines

    def address(self, url: str) -> str:
        """Where a prefill pod's bootstrap server listens."""
        known = self._bootstraps.get(url)
        if known is not None:
            return known
        host = urlsplit(url).hostname or ""
        return f"http://[{host}]:{BOOTSTRAP_PORT}" if ":" in host else f"http://{host}:{BOOTSTRAP_PORT}"

    def _origin(self, pod: Pod) -> Origin:
        engines = self._engines.get(pod.url)
        if not engines:
            raise PodFault("no_handover", f"{self.address(pod.url)} has not told the pod's engine id", reached=False)
        ranks = list(engines)
        rank = ranks[next(self._turn) % len(ranks)]
        return Origin(self.address(pod.url), engines[rank], rank if len(ranks) > 1 else None)
