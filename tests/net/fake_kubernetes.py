"""The Kubernetes API as far as a watcher of pods meets it, with everything that goes wrong there.

Rule of this room: it behaves as the real one does (versions only grow, a watch replays what came after its version, a
version from before the last compaction is gone, an object that no longer matches the selector is a DELETED event), and
trouble comes when a test says so.
"""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

NAMESPACE = "inference"
PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
TOKEN = "first-token"


def kube_pod(
    name: str,
    port: int,
    role: str = "decode",
    *,
    ip: str = "127.0.0.1",
    ready: bool = True,
    label: str = "ppd.role",
    **metadata: Any,
) -> dict[str, Any]:
    """A pod object like the API's, with fields that nobody reads."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-of-{name}",
            "labels": {"app": "vllm", label: role},
            "annotations": {"ppd.port": str(port)},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
            **metadata,
        },
        "spec": {"containers": [{"name": "vllm", "image": "vllm", "ports": [{"containerPort": port, "name": "http"}]}]},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False", "lastProbeTime": None}],
        },
    }


@dataclass(eq=False)
class Watch:
    """One open watch."""

    response: web.StreamResponse
    request: web.Request
    selector: dict[str, str]
    position: int
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    extra: list[dict[str, Any]] = field(default_factory=list)
    end: bool = False


class FakeKubernetes:
    """token: what it wants. page: the most pods in a page of a list. cut: bytes per write of a watch, 0 for whole
    lines. refuse: statuses of the next answers. hold_lists: lists wait while it is cleared.

    lists, watches: the queries that came. tokens: what came with them.
    """

    def __init__(self) -> None:
        self.url = ""
        self.token: str | None = TOKEN
        self.page = 500
        self.cut = 0
        self.refuse: list[int] = []
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        self.hold_lists = asyncio.Event()
        self.hold_lists.set()
        self._version = 1000
        self._compacted = 0
        self._pods: dict[str, dict[str, Any]] = {}
        self._history: list[tuple[int, dict[str, Any] | None, dict[str, Any]]] = []
        self._open: list[Watch] = []
        self._changed = asyncio.Event()

    # What happens to pods

    def put(self, pod: dict[str, Any]) -> None:
        """Create or change a pod."""
        name = pod["metadata"]["name"]
        before = self._pods.get(name)
        self._version += 1
        now = copy.deepcopy(pod)
        now["metadata"]["resourceVersion"] = str(self._version)
        self._pods[name] = now
        self._happened(before, now, deleted=False)

    def set_ready(self, name: str, ready: bool) -> None:
        """Its readiness probe changed its mind."""
        pod = copy.deepcopy(self._pods[name])
        pod["status"]["conditions"][0]["status"] = "True" if ready else "False"
        self.put(pod)

    def terminate(self, name: str) -> None:
        """`kubectl delete`: from now on it is on its way out."""
        pod = copy.deepcopy(self._pods[name])
        pod["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
        self.put(pod)

    def delete(self, name: str) -> None:
        """It is gone."""
        self._version += 1
        pod = self._pods.pop(name)
        last = copy.deepcopy(pod)
        last["metadata"]["resourceVersion"] = str(self._version)
        self._happened(pod, last, deleted=True)

    # What happens to watches

    @property
    def open(self) -> int:
        """Watches that are open now."""
        return len(self._open)

    def bookmark(self) -> None:
        """Tell all watches the present version, as the API does about every minute."""
        self._version += 1
        metadata = {"resourceVersion": str(self._version), "creationTimestamp": None}
        self._tell({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}})

    def compact(self) -> None:
        """Forget all versions up to now."""
        self._version += 1
        self._compacted = self._version

    def error(self, code: int, reason: str) -> None:
        """An error object in the streams, which then end."""
        self._tell({"type": "ERROR", "object": _status(code, reason)})
        self.finish()

    def tell_raw(self, data: bytes) -> None:
        """Bytes that are no event."""
        self._tell({"raw": data.decode()})

    def finish(self) -> None:
        """End all watches properly, as after timeoutSeconds."""
        for watch in self._open:
            watch.end = True
            watch.wake.set()

    def drop(self) -> None:
        """Break all connections of watches off."""
        for watch in self._open:
            if watch.request.transport is not None:
                watch.request.transport.abort()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for something that shows in the questions asked."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    # The API

    async def handle(self, request: web.Request) -> web.StreamResponse:
        watching = request.query.get("watch") == "true"
        (self.watches if watching else self.lists).append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", "").removeprefix("Bearer ") or None)
        self._changed.set()
        if self.refuse:
            return _refusal(self.refuse.pop(0))
        if self.token is not None and self.tokens[-1] != self.token:
            return _refusal(401)
        if watching:
            return await self._watch(request)
        await self.hold_lists.wait()
        return self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        selector = _selector(request.query.get("labelSelector", ""))
        pods = [pod for _, pod in sorted(self._pods.items()) if _matches(pod, selector)]
        start = int(request.query.get("continue") or 0)
        end = start + min(self.page, int(request.query.get("limit") or self.page))
        metadata: dict[str, Any] = {"resourceVersion": str(self._version)}
        if end < len(pods):
            metadata |= {"continue": str(end), "remainingItemCount": len(pods) - end}
        return web.json_response(
            {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods[start:end]}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        position = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        watch = Watch(response, request, _selector(request.query.get("labelSelector", "")), position)
        if position < self._compacted:
            await self._write(watch, {"type": "ERROR", "object": _status(410, "Expired")})
            return response
        self._open.append(watch)
        self._changed.set()
        try:
            while True:
                for version, before, event in self._history:
                    if version > watch.position:
                        watch.position = version
                        await self._write(watch, _seen_through(event, before, watch.selector))
                while watch.extra:
                    await self._write(watch, watch.extra.pop(0))
                if watch.end:
                    return response
                watch.wake.clear()
                await watch.wake.wait()
        finally:
            self._open.remove(watch)
            self._changed.set()

    async def _write(self, watch: Watch, event: dict[str, Any] | None) -> None:
        if event is None:
            return
        line = event["raw"].encode() if "raw" in event else json.dumps(event).encode() + b"\n"
        size = self.cut or len(line)
        for start in range(0, len(line), size):
            await watch.response.write(line[start : start + size])
            await asyncio.sleep(0)

    def _happened(self, before: dict[str, Any] | None, now: dict[str, Any], *, deleted: bool) -> None:
        kind = "DELETED" if deleted else "ADDED" if before is None else "MODIFIED"
        self._history.append((self._version, before, {"type": kind, "object": now}))
        for watch in self._open:
            watch.wake.set()

    def _tell(self, event: dict[str, Any]) -> None:
        for watch in self._open:
            watch.extra.append(event)
            watch.wake.set()


def _seen_through(event: dict[str, Any], before: dict[str, Any] | None, selector: dict[str, str]) -> Any:
    """What a watch with a selector sees of an event."""
    was, matches = before is not None and _matches(before, selector), _matches(event["object"], selector)
    if event["type"] == "DELETED" or (was and not matches):
        return {"type": "DELETED", "object": event["object"]} if was else None
    return {"type": "MODIFIED" if was else "ADDED", "object": event["object"]} if matches else None


def _selector(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if part)


def _matches(pod: dict[str, Any], selector: dict[str, str]) -> bool:
    labels = pod["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in selector.items())


def _status(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": reason,
        "reason": reason,
        "code": code,
    }


def _refusal(code: int) -> web.Response:
    return web.json_response(_status(code, {401: "Unauthorized", 403: "Forbidden"}.get(code, "Expired")), status=code)


@asynccontextmanager
async def fake_kubernetes(tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeKubernetes]:
    """One that listens on a port of loopback."""
    fake = FakeKubernetes()
    application = web.Application()
    application.router.add_get(PATH, fake.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    fake.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    try:
        yield fake
    finally:
        fake.hold_lists.set()
        fake.finish()
        await runner.cleanup()
