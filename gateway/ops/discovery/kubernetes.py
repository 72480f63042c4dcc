"""Pods from the Kubernetes API: list, then watch from where the list ended.

Rule of this room: a watch that breaks goes on from the last version it saw; only when the API has forgotten that
version (410), or `resync_s` is over, everything is listed again. Between the two nothing is taken away.
"""

from __future__ import annotations

import asyncio
import math
import random
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import aiohttp
import msgspec

from gateway.core.settling import Found, Standing
from gateway.ops.discovery.kube_pods import KubePod, Metadata, Unfit, found_of
from gateway.ops.discovery.plan import KubernetesPlan

if TYPE_CHECKING:
    from gateway.ops.discovery.keeper import Ear

PAGE = 100
"""Pods per page of a list; one is read in a millisecond."""

ANSWER_S = 30.0
"""For the head of an answer, and for a page of a list."""

WATCH_S = 300
"""After which the API ends a watch by itself."""

SHORT_S = 1.0
"""A watch that ends sooner is not begun again at once."""

SILENCE_S = 120.0
"""Without a bookmark, which comes about every minute, the connection is taken for dead."""

BACK_OFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
MAX_LINE_BYTES = 16 << 20


_T = TypeVar("_T")
_ORDER = (Standing.READY, Standing.UNREADY, Standing.LEAVING)
_HINTS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: " (is the token file right?)",
    HTTPStatus.FORBIDDEN: " (may the service account list and watch pods there?)",
}


class ApiFault(Exception):
    """The API could not be asked, or said no.

    relist: what was known is not to be gone on from. routine: it happens every day, and nobody need hear of it.
    """

    def __init__(self, why: str, *, relist: bool = False, routine: bool = False) -> None:
        super().__init__(why)
        self.relist = relist
        self.routine = routine


class PodList(msgspec.Struct):
    class Meta(msgspec.Struct, rename="camel"):
        resource_version: str = ""
        continue_: str = msgspec.field(default="", name="continue")

    metadata: Meta
    items: list[KubePod] | None = None


class Event(msgspec.Struct):
    """A line of a watch. object: a pod; of a BOOKMARK only its version, of an ERROR a Status."""

    type: str
    object: msgspec.Raw


class Bookmark(msgspec.Struct):
    metadata: Metadata


class Status(msgspec.Struct):
    code: int = 0
    reason: str = ""


class KubernetesSource:
    """The pods of one namespace that a label selector picks. back_off_s: waits after failures in a row."""

    sure_of_absence = True
    back_off_s = BACK_OFF_S

    def __init__(self, plan: KubernetesPlan) -> None:
        self.name = "kubernetes"
        self._plan = plan
        self._pods: dict[str, Found | None] = {}
        self._told: list[Found] | None = None
        self._version = ""
        self._listed_at = 0.0
        self._failures = 0
        self._watching: aiohttp.ClientResponse | None = None

    async def run(self, ear: Ear) -> None:
        """List and watch for ever."""
        tls = await self._trust(ear) if self._plan.api.startswith("https:") else True
        timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), timeout=timeout) as session:
            while True:
                try:
                    if not self._version or self._resync_due:
                        await self._list(session, ear)
                    await self._watch(session, ear)
                except ApiFault as fault:
                    if fault.relist:
                        self._version = ""
                    if not fault.routine:
                        self._told = None
                        ear.failed(str(fault))
                    self._failures += 1
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self._told = None
                    ear.failed(f"no answer from {self._plan.api} ({type(error).__name__})")
                    self._failures += 1
                await self._back_off()

    async def _trust(self, ear: Ear) -> ssl.SSLContext:
        while True:
            try:
                return _tls(self._plan.ca_file)
            except OSError as error:
                ear.failed(f"{self._plan.ca_file} holds no CA ({type(error).__name__})")
                self._failures += 1
                await self._back_off()

    def reload(self) -> None:
        """List everything anew."""
        self._listed_at = -math.inf
        if self._watching is not None:
            self._watching.close()

    @property
    def _resync_due(self) -> bool:
        return time.monotonic() >= self._listed_at + self._plan.resync_s

    async def _list(self, session: aiohttp.ClientSession, ear: Ear) -> None:
        pods: dict[str, Found | None] = {}
        more = ""
        while True:
            asked = {"limit": str(PAGE), **({"continue": more} if more else {})}
            async with asyncio.timeout(ANSWER_S), self._get(session, asked) as answer:
                page = _read(await answer.read(), PodList)
            pods |= {pod.metadata.uid: self._understood(pod, ear) for pod in page.items or ()}
            more = page.metadata.continue_
            if not more:
                break
        self._pods = pods
        self._version, self._listed_at = page.metadata.resource_version, time.monotonic()
        self._tell(ear)

    async def _watch(self, session: aiohttp.ClientSession, ear: Ear) -> None:
        """Until the API ends it, or the connection breaks, both of which is routine. Raises ApiFault."""
        asked = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(WATCH_S * 3 // 4, WATCH_S)),
        }
        began = time.monotonic()
        async with self._get(session, asked) as answer:
            self._watching = answer
            self._tell(ear)
            if self._resync_due:
                return
            try:
                async for lines in _lines(answer.content):
                    for line in lines:
                        self._apply(_read(line, Event), ear)
                    self._failures = 0
                    self._tell(ear)
            except (aiohttp.ClientError, TimeoutError, OSError):
                raise ApiFault("the watch broke off", routine=True) from None
            finally:
                self._watching = None
        if time.monotonic() - began < SHORT_S:
            raise ApiFault("the watch was ended at once", routine=True)
        self._failures = 0

    def _apply(self, event: Event, ear: Ear) -> None:
        if event.type == "ERROR":
            status = _read(event.object, Status)
            gone = status.code == HTTPStatus.GONE
            raise ApiFault(f"the watch ended with {status.code} {status.reason}", relist=True, routine=gone)
        if event.type == "BOOKMARK":
            self._version = _read(event.object, Bookmark).metadata.resource_version
            return
        pod = _read(event.object, KubePod)
        self._version = pod.metadata.resource_version
        if event.type == "DELETED":
            self._pods.pop(pod.metadata.uid, None)
        else:
            self._pods[pod.metadata.uid] = self._understood(pod, ear)

    def _understood(self, pod: KubePod, ear: Ear) -> Found | None:
        try:
            return found_of(pod, self._plan.role_labels, self._plan.port)
        except Unfit as unfit:
            ear.remark(f"pod {pod.metadata.name} is left out: {unfit}")
            return None

    def _tell(self, ear: Ear) -> None:
        """All pods, if that is any news. Where two have one address, the one that may get traffic comes first."""
        found = [each for each in self._pods.values() if each is not None]
        found.sort(key=lambda each: (_ORDER.index(each.standing), each.url))
        if found != self._told:
            self._told = found
            ear.answer(found)

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, asked: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask for pods. The token is read every time: Kubernetes exchanges it every hour. Raises ApiFault."""
        namespace = self._plan.namespace
        url = f"{self._plan.api}/api/v1/namespaces/{namespace}/pods"
        parameters = {"labelSelector": self._plan.selector, **asked}
        headers = {"Accept": "application/json"}
        if (token := _token(self._plan.token_file)) is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with asyncio.timeout(ANSWER_S):
            answer = await session.get(url, params=parameters, headers=headers, allow_redirects=False)
        try:
            if answer.status == HTTPStatus.GONE:
                raise ApiFault("the version was forgotten", relist=True, routine=True)
            if answer.status != HTTPStatus.OK:
                hint = _HINTS.get(answer.status, "")
                raise ApiFault(f"{self._plan.api} said {answer.status} to {_verb(asked)} of pods in {namespace}{hint}")
            yield answer
        finally:
            answer.close()

    async def _back_off(self) -> None:
        if self._failures:
            wait_s = self.back_off_s[min(self._failures, len(self.back_off_s)) - 1]
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """The whole lines of a stream, as they come, however it is cut. Raises ApiFault for one that does not end."""
    rest = bytearray()
    async for data in content.iter_any():
        *whole, last = data.split(b"\n")
        if whole:
            whole[0] = bytes(rest) + whole[0]
            rest.clear()
        rest += last
        if len(rest) > MAX_LINE_BYTES:
            raise ApiFault("a line without end", relist=True)
        lines = [line for line in whole if line.strip()]
        if lines:
            yield lines


def _read(data: bytes | msgspec.Raw, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ApiFault(f"an answer that is no {kind.__name__} ({error})", relist=True) from None


def _token(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _tls(ca_file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_file) if ca_file.exists() else None)


def _verb(asked: dict[str, str]) -> str:
    return "watch" if "watch" in asked else "list"
