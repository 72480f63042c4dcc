"""One prefill pod, three decode pods and a gateway in front of them, each a process.

Rule of this room: every port is the kernel's choice (the gateway's may be the user's); a cluster is ready when its
gateway has seen all its pods healthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from loadtest.demo.access_log import GatewayLog
from loadtest.demo.children import Child, Children

PROFILE = "h100-llama3.1-8b"
MODEL = "sim-llama-3.1-8b"
HOST = "127.0.0.1"
PODS = {"P1": "prefill", "D1": "decode", "D2": "decode", "D3": "decode"}
START_S = 60.0
"""Far more than it takes, for busy machines."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that serves. `pods` are URLs by name."""

    policy: str
    url: str
    pods: Mapping[str, str]
    log: GatewayLog
    gateway: Child

    def name_of(self, url: str) -> str:
        """A pod's short name."""
        return next((name for name, pod_url in self.pods.items() if pod_url == url), url)

    def request_id(self, conversation: str, turn: int) -> str:
        """The id that the client gives to a request, to find it in the gateway's log."""
        return f"demo-{self.policy}-c{conversation}-t{turn}"

    def urls(self, role: str) -> list[str]:
        """The pods of a role."""
        return [url for name, url in self.pods.items() if PODS[name] == role]


async def start(children: Children, policy: str, port: int = 0) -> Cluster:
    """Start a cluster. Raises DemoError when a part of it dies or is not ready in time."""
    announcements = {name: _Announcement() for name in PODS}
    for name, role in PODS.items():
        arguments = ["--role", role, "--port", "0", "--profile", PROFILE, "--model", MODEL]
        await children.start(f"pod {name} ({role})", "loadtest.pod", arguments, announcements[name])
    pods = {name: await children.guard(heard.url(), START_S) for name, heard in announcements.items()}

    log = GatewayLog()
    arguments = ["serve", "--policy", policy, "--host", HOST, "--port", str(port), "--drain-timeout-s", "1"]
    arguments += ["--admin-port", "0"]
    for name, url in pods.items():
        arguments += [f"--{PODS[name]}", url]
    gateway = await children.start(f"gateway (policy {policy})", "gateway.ops.cli", arguments, log.feed)
    url = await children.guard(log.ready(len(pods)), START_S)
    return Cluster(policy, url, pods, log, gateway)


class _Announcement:
    """Listens for a pod's first line, which is its URL."""

    def __init__(self) -> None:
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def __call__(self, line: str) -> None:
        if line.startswith("http://") and not self._url.done():
            self._url.set_result(line)

    async def url(self) -> str:
        return await self._url
