"""The Kubernetes source against an API that behaves: what it makes of lists, watches and everything that breaks."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.core.settling import Found, Standing
from gateway.ops.discovery.kubernetes import KubernetesSource
from gateway.ops.discovery.plan import KubernetesPlan
from tests.net.fake_kubernetes import NAMESPACE, TOKEN, FakeKubernetes, fake_kubernetes, kube_pod

MARKS = {Standing.READY: "", Standing.UNREADY: "?", Standing.LEAVING: "!"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KubernetesSource, "back_off_s", (0.01,))


class Notes:
    """Who listens: remembers what it was told, and can be waited for."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.failures: list[str] = []
        self.remarks: list[str] = []
        self._changed = asyncio.Event()

    def answer(self, found: Iterable[Found]) -> None:
        shown = [f"{each.role[0]}{each.url.rpartition(':')[2]}{MARKS[each.standing]}" for each in found]
        self.answers.append(" ".join(shown))
        self._changed.set()

    def failed(self, why: str) -> None:
        self.failures.append(why)
        self._changed.set()

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    async def until(self, answer: str) -> None:
        """Wait until that is the last answer."""
        try:
            async with asyncio.timeout(30):
                while not self.answers or self.answers[-1] != answer:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"never {answer!r}: {self.answers}, {self.failures}") from None

    async def until_failed(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.failures) < count:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def watched(
    folder: Path, *pods: dict[str, Any], **options: Any
) -> AsyncIterator[tuple[FakeKubernetes, Notes, KubernetesSource]]:
    """A source that watches a fake API with these pods in it, and who listens to it."""
    token = folder / "token"
    token.write_text(TOKEN + "\n", encoding="utf-8")
    async with fake_kubernetes() as fake:
        for pod in pods:
            fake.put(pod)
        plan = KubernetesPlan("app=vllm", NAMESPACE, fake.url, token_file=token, **options)
        source, notes = KubernetesSource(plan), Notes()
        task = asyncio.ensure_future(source.run(notes))
        try:
            yield fake, notes, source
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


P, D, E = kube_pod("p", 1, "prefill"), kube_pod("d", 2), kube_pod("e", 3)


async def test_pods_are_listed_then_watched(tmp_path: Path) -> None:
    async with watched(tmp_path, P, D) as (fake, notes, _):
        await notes.until("p1 d2")
        fake.put(E)
        await notes.until("p1 d2 d3")
        fake.set_ready("d", False)
        await notes.until("p1 d3 d2?")
        fake.set_ready("d", True)
        fake.terminate("e")
        await notes.until("p1 d2 d3!")
        fake.delete("e")
        await notes.until("p1 d2")
        assert fake.lists == [{"labelSelector": "app=vllm", "limit": "100"}]
        assert fake.watches[0]["resourceVersion"] == "1002"
        assert fake.watches[0]["allowWatchBookmarks"] == "true"
        assert 225 <= int(fake.watches[0]["timeoutSeconds"]) <= 300
        assert (notes.failures, notes.remarks) == ([], [])


async def test_a_list_comes_in_pages(tmp_path: Path) -> None:
    async with fake_kubernetes() as fake:
        fake.page, fake.token = 2, None
        for number in range(1, 6):
            fake.put(kube_pod(f"pod{number}", number))
        notes = Notes()
        source = KubernetesSource(KubernetesPlan("app=vllm", NAMESPACE, fake.url, token_file=tmp_path / "none"))
        task = asyncio.ensure_future(source.run(notes))
        await notes.until("d1 d2 d3 d4 d5")
        assert [each.get("continue") for each in fake.lists] == [None, "2", "4"]
        assert fake.tokens[0] is None
        assert notes.answers == ["d1 d2 d3 d4 d5"], "half a list is no answer"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("size", [1, 7, 100, 1009])
async def test_lines_may_be_cut_anywhere(tmp_path: Path, size: int) -> None:
    async with watched(tmp_path, D) as (fake, notes, _):
        await fake.until(lambda: fake.open == 1)
        fake.cut = size
        fake.put(E)
        fake.bookmark()
        fake.put(P)
        await notes.until("p1 d2 d3")


async def test_a_watch_that_is_dropped_goes_on_from_the_last_version(tmp_path: Path) -> None:
    async with watched(tmp_path, D) as (fake, notes, _):
        await fake.until(lambda: fake.open == 1)
        fake.put(E)
        await notes.until("d2 d3")
        fake.drop()
        await fake.until(lambda: fake.open == 0)
        fake.delete("e")
        await notes.until("d2")
        assert [each["resourceVersion"] for each in fake.watches] == ["1001", "1002"]
        assert len(fake.lists) == 1
        assert notes.failures == [], "it happens every day"


async def test_a_bookmark_moves_the_version_on(tmp_path: Path) -> None:
    async with watched(tmp_path, D) as (fake, notes, source):
        await fake.until(lambda: fake.open == 1)
        fake.bookmark()
        fake.finish()
        await fake.until(lambda: len(fake.watches) == 2)
        assert fake.watches[1]["resourceVersion"] == "1002"
        assert len(notes.answers) == 1, "no news"
        assert source.name == "kubernetes"


@pytest.mark.parametrize("how", ["stream", "status"])
async def test_a_version_that_is_gone_lists_again(tmp_path: Path, how: str) -> None:
    async with watched(tmp_path, D, E) as (fake, notes, _):
        await fake.until(lambda: fake.open == 1)
        fake.drop()
        await fake.until(lambda: fake.open == 0)
        fake.delete("e")
        if how == "stream":
            fake.compact()
        else:
            fake.refuse = [410]
        await notes.until("d2")
        await fake.until(lambda: fake.open == 1)
        fake.put(P)
        await notes.until("p1 d2")
        assert len(fake.lists) == 2
        assert notes.failures == []


async def test_an_error_in_the_stream_lists_again_and_is_said(tmp_path: Path) -> None:
    async with watched(tmp_path, D) as (fake, notes, _):
        await fake.until(lambda: fake.open == 1)
        fake.error(500, "InternalError")
        await fake.until(lambda: len(fake.watches) == 2)
        assert notes.failures == ["the watch ended with 500 InternalError"]
        assert len(fake.lists) == 2
        assert notes.answers == ["d2", "d2"], "the second tells that it answers again"


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"type": "ADDED", "object": {"metadata": {"name": 7}}}\n', b"{}\n"])
async def test_a_line_that_is_no_event_lists_again(tmp_path: Path, line: bytes) -> None:
    async with watched(tmp_path, D) as (fake, notes, _):
        await fake.until(lambda: fake.open == 1)
        fake.tell_raw(line)
        await fake.until(lambda: len(fake.lists) == 2)
        await notes.until("d2")
        assert len(notes.failures) == 1
        assert notes.failures[0].startswith("an answer that is no ")


async def test_a_token_that_was_exchanged_is_read_anew(tmp_path: Path) -> None:
    async with watched(tmp_path, D) as (fake, notes, _):
        await fake.until(lambda: fake.open == 1)
        fake.token = "second-token"
        fake.finish()
        await notes.until_failed(1)
        assert "said 401 to watch of pods in inference" in notes.failures[0]
        assert "token" in notes.failures[0]
        assert "second" not in notes.failures[0]
        (tmp_path / "token").write_text("second-token", encoding="utf-8")
        await fake.until(lambda: fake.open == 1)
        fake.put(E)
        await notes.until("d2 d3")
        assert fake.tokens[0] == TOKEN
        assert fake.tokens[-1] == "second-token"


async def test_a_refusal_is_said_with_what_to_do_and_tried_again(tmp_path: Path) -> None:
    async with fake_kubernetes() as fake:
        fake.token, fake.refuse = None, [403, 503]
        fake.put(D)
        notes = Notes()
        plan = KubernetesPlan("app=vllm", NAMESPACE, fake.url, token_file=tmp_path / "none")
        task = asyncio.ensure_future(KubernetesSource(plan).run(notes))
        await notes.until("d2")
        assert notes.failures == [
            f"{fake.url} said 403 to list of pods in inference (may the service account list and watch pods there?)",
            f"{fake.url} said 503 to list of pods in inference",
        ]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_api_that_is_not_there_is_asked_again(tmp_path: Path) -> None:
    notes = Notes()
    plan = KubernetesPlan("app=vllm", NAMESPACE, "http://127.0.0.1:1", token_file=tmp_path / "none")
    task = asyncio.ensure_future(KubernetesSource(plan).run(notes))
    await notes.until_failed(3)
    assert set(notes.failures) == {"no answer from http://127.0.0.1:1 (ClientConnectorError)"}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_api_is_trusted_by_the_ca_of_the_cluster(tmp_path: Path) -> None:
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.crt")
    async with fake_kubernetes(tls) as fake:
        fake.token = None
        fake.put(D)
        for ca, heard in (("ca.crt", True), ("other.crt", False), ("none.crt", False)):
            notes = Notes()
            plan = KubernetesPlan("app=vllm", NAMESPACE, fake.url, token_file=tmp_path / "none", ca_file=tmp_path / ca)
            task = asyncio.ensure_future(KubernetesSource(plan).run(notes))
            if heard:
                await notes.until("d2")
            else:
                await notes.until_failed(1)
                assert "ClientConnectorCertificateError" in notes.failures[0]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert len(fake.lists) == 1, "a token is not shown to a stranger"


async def test_a_file_that_holds_no_ca_is_read_until_it_does(tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_text("nonsense", encoding="utf-8")
    notes = Notes()
    plan = KubernetesPlan("app=vllm", NAMESPACE, "https://127.0.0.1:1", token_file=tmp_path / "none", ca_file=path)
    task = asyncio.ensure_future(KubernetesSource(plan).run(notes))
    await notes.until_failed(2)
    assert set(notes.failures) == {f"{path} holds no CA (SSLError)"}
    trustme.CA().cert_pem.write_to_path(path)
    await notes.until_failed(len(notes.failures) + 1)
    assert notes.failures[-1] == "no answer from https://127.0.0.1:1 (ClientConnectorError)"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_slow_list_takes_nothing_away(tmp_path: Path) -> None:
    async with watched(tmp_path, D) as (fake, notes, source):
        await fake.until(lambda: fake.open == 1)
        fake.hold_lists.clear()
        source.reload()
        await fake.until(lambda: len(fake.lists) == 2)
        fake.put(E)
        assert notes.answers == ["d2"]
        fake.hold_lists.set()
        await notes.until("d2 d3")


async def test_everything_is_listed_again_after_a_while(tmp_path: Path) -> None:
    async with watched(tmp_path, D, resync_s=0.5) as (fake, notes, _):
        await fake.until(lambda: fake.open == 1)
        fake.finish()
        await fake.until(lambda: len(fake.watches) == 2)
        assert len(fake.lists) == 1
        while len(fake.lists) == 1:
            fake.finish()
            await asyncio.sleep(0.01)
        assert notes.failures == []


async def test_a_pod_that_loses_the_label_is_gone(tmp_path: Path) -> None:
    async with watched(tmp_path, D, E) as (fake, notes, _):
        await fake.until(lambda: fake.open == 1)
        other = kube_pod("e", 3)
        other["metadata"]["labels"]["app"] = "other"
        fake.put(other)
        await notes.until("d2")


async def test_a_pod_that_cannot_be_used_is_named_once(tmp_path: Path) -> None:
    async with watched(tmp_path, D, kube_pod("odd", 9, "cook")) as (fake, notes, _):
        await notes.until("d2")
        fake.put(E)
        await notes.until("d2 d3")
        assert notes.remarks == ["pod odd is left out: label ppd.role=cook is no role"]
