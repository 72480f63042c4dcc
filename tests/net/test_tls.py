"""TLS on both sides, with certificates made here."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.ops.config import load
from gateway.ops.layers import ConfigError
from gateway.ops.serve import running
from tests.net.raw import hang_up
from tests.net.world import Watcher, World, world

CA, OTHER_CA = trustme.CA(), trustme.CA()
ASK = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"


def write_pair(folder: Path, ca: trustme.CA = CA, name: str = "127.0.0.1", stem: str = "server") -> dict[str, str]:
    """A certificate and its key as files."""
    made = ca.issue_cert(name)
    files = {"cert": folder / f"{stem}.pem", "key": folder / f"{stem}.key"}
    files["cert"].write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    files["key"].touch(0o600)
    files["key"].write_bytes(made.private_key_pem.bytes())
    return {part: str(path) for part, path in files.items()}


def client_of(ca: trustme.CA = CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


@asynccontextmanager
async def secured(folder: Path, **options: Any) -> AsyncIterator[World]:
    pair = write_pair(folder)
    async with world(prefill=0, decode=1, tls_cert=pair["cert"], tls_key=pair["key"], **options) as made:
        yield made


async def connect(w: World, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(w.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(ASK)
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return head + await reader.readexactly(length)


async def said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(30):
        while not any(words in message for message in caplog.messages):  # noqa: ASYNC110 - nothing announces a line
            await asyncio.sleep(0.005)


async def test_clients_are_served_over_tls(tmp_path: Path) -> None:
    async with secured(tmp_path) as w:
        assert w.url.startswith("https://")
        reader, writer = await connect(w, client_of())
        for _ in range(2):
            assert (await ask(reader, writer)).startswith(b"HTTP/1.1 200 OK")
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        await hang_up(writer)


async def test_who_does_not_know_the_ca_or_speaks_no_tls_gets_nothing(tmp_path: Path) -> None:
    async with secured(tmp_path) as w:
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(w, client_of(OTHER_CA))
        reader, writer = await asyncio.open_connection("127.0.0.1", int(w.url.rpartition(":")[2]))
        writer.write(ASK)
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                assert not (await reader.read()).startswith(b"HTTP")
        await hang_up(writer)
        old = client_of()
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):  # the alert, or the close right behind it
            await connect(w, old)
        assert not w.watcher.records


async def test_a_renewed_certificate_is_shown_from_sighup_on_and_open_connections_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ppd_gateway")
    async with secured(tmp_path) as w:
        before = await connect(w, client_of())
        write_pair(tmp_path, OTHER_CA)
        w.running.reload()
        await said(caplog, "read again: in use for new connections")
        after = await connect(w, client_of(OTHER_CA))
        assert (await ask(*before)).startswith(b"HTTP/1.1 200 OK")
        assert (await ask(*after)).startswith(b"HTTP/1.1 200 OK")
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(w, client_of())
        await hang_up(before[1])
        await hang_up(after[1])


@pytest.mark.parametrize("what", ["the key of another", "garbage", "nothing"])
async def test_a_bad_new_certificate_is_refused_in_one_line_and_the_old_one_stays(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ppd_gateway")
    async with secured(tmp_path) as w:
        old_key = (tmp_path / "server.key").read_bytes()
        write_pair(tmp_path, OTHER_CA)
        if what == "the key of another":
            (tmp_path / "server.key").write_bytes(old_key)
        elif what == "garbage":
            (tmp_path / "server.pem").write_bytes(b"SECRET-GARBAGE")
        else:
            (tmp_path / "server.pem").unlink()
        w.running.reload()
        await said(caplog, "refused, the old ones stay in use: ")
        pair = await connect(w, client_of())
        assert (await ask(*pair)).startswith(b"HTTP/1.1 200 OK")
        await hang_up(pair[1])
    assert sum("refused" in message for message in caplog.messages) == 1
    assert "SECRET" not in caplog.text
    assert "PRIVATE" not in caplog.text


def config_with(**settings: Any) -> Any:
    return load(None, {}, {"decode": ["http://127.0.0.1:1"], "policy": "local", "port": 0, **settings})


async def complaint(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        async with running(config_with(**settings)):
            raise AssertionError("it started")
    line = str(caught.value)
    assert "\n" not in line
    return line


async def test_what_is_no_certificate_is_refused_at_the_start_in_one_line(tmp_path: Path) -> None:
    pair, other = write_pair(tmp_path), write_pair(tmp_path, stem="other")
    bad = "the certificate and its key are no good: key values mismatch"
    assert await complaint(tls_cert=pair["cert"], tls_key=other["key"]) == f"{pair['cert']}: tls_cert: {bad}"
    gone = str(tmp_path / "gone")
    line = await complaint(tls_cert=gone, tls_key=pair["key"])
    assert line == f"{gone}: tls_cert: {gone}: No such file or directory"
    line = await complaint(upstream_ca_file=pair["key"])
    assert line.startswith(f"{pair['key']}: upstream_ca_file: ")
    line = await complaint(upstream_cert=pair["cert"], upstream_cert_key=other["key"])
    assert line == f"{pair['cert']}: upstream_cert: {bad}"


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ("tls_cert", "tls_key"),
        ("tls_key", "tls_cert"),
        ("upstream_cert", "upstream_cert_key"),
        ("upstream_cert_key", "upstream_cert"),
    ],
)
def test_a_certificate_and_its_key_come_together(given: str, needs: str) -> None:
    with pytest.raises(ConfigError, match=f"{given}: it needs {needs} too"):
        config_with(**{given: "x"})


# Pods behind TLS


class Pod:
    """Something behind TLS that says 200 to everything. seen: the names in its clients' certificates."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Any] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.seen.append(writer.get_extra_info("peercert"))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def secured_pod(want: trustme.CA | None = None, name: str = "127.0.0.1") -> AsyncIterator[Pod]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CA.issue_cert(name).configure_cert(context)
    if want is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        want.configure_trust(context)
    pod = Pod()
    server = await asyncio.start_server(pod.serve, "127.0.0.1", 0, ssl=context)
    async with server:
        pod.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield pod


@asynccontextmanager
async def before(pod: Pod, **settings: Any) -> AsyncIterator[Watcher]:
    watcher = Watcher()
    wanted = {"health.interval_s": 0.05, "health.failures": 1, "selftest": False, "kv_events": "off", **settings}
    async with running(config_with(decode=[pod.url], **wanted), watcher):
        yield watcher


async def test_a_pods_certificate_is_checked_against_the_ca_file(tmp_path: Path) -> None:
    CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with secured_pod() as pod, before(pod, upstream_ca_file=str(tmp_path / "ca.pem")) as watcher:
        await watcher.until(lambda: pod.url in watcher.pods)
        assert watcher.pods[pod.url] is True


@pytest.mark.parametrize(("ca", "name"), [(None, "127.0.0.1"), (OTHER_CA, "127.0.0.1"), (CA, "127.0.0.2")])
async def test_a_pod_that_is_not_who_it_should_be_is_never_asked_anything(
    ca: trustme.CA | None, name: str, tmp_path: Path
) -> None:
    settings = {}
    if ca is not None:
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        settings["upstream_ca_file"] = str(tmp_path / "ca.pem")
    async with secured_pod(name=name) as pod:
        async with running(config_with(decode=[pod.url], **settings)) as made:
            health = made.gateway.health
            target = next(iter(made.gateway.parts.fleet))
            for _ in range(2):
                await health.look(target)
            assert not target.up
    assert pod.seen == []


async def test_the_gateway_shows_a_certificate_to_pods_that_want_one(tmp_path: Path) -> None:
    CA.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    pair = write_pair(tmp_path, OTHER_CA, "gateway.example", "gateway")
    ours = {"upstream_cert": pair["cert"], "upstream_cert_key": pair["key"]}
    async with secured_pod(want=OTHER_CA) as pod:
        async with before(pod, upstream_ca_file=str(tmp_path / "ca.pem"), **ours) as watcher:
            await watcher.until(lambda: pod.url in watcher.pods)
            assert watcher.pods[pod.url] is True
        assert pod.seen[0]["subjectAltName"] == (("DNS", "gateway.example"),)
    async with secured_pod(want=OTHER_CA) as pod:
        async with running(config_with(decode=[pod.url], upstream_ca_file=str(tmp_path / "ca.pem"))) as made:
            target = next(iter(made.gateway.parts.fleet))
            await made.gateway.health.look(target)
            assert not target.up
        assert pod.seen == []
