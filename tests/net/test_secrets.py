"""No key and no word of a message reaches logs, metrics, pages or error bodies."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.ops.serve import log_stray
from tests.net.raw import talk
from tests.net.test_keys import body
from tests.net.world import CHAT, COMPLETIONS, LONG, World, user, world

RESPONSES = "/v1/responses"
POD_KEY = "pods-own-key"
MARK = "MARKED-SECRET"


async def flood(w: World) -> list[bytes]:
    """Requests full of secrets, good ones and every kind of bad one; gives the answers that are the gateway's own."""
    headers = {
        "Authorization": f"Bearer {MARK}",
        "X-Api-Key": MARK,
        "Cookie": MARK,
        "X-Session-ID": MARK,
        "X-Any": MARK,
    }
    query = f"?key={MARK}&{MARK}"
    good = body(user(f"{MARK} {LONG}"), session_id=MARK, conversation_id=MARK, user=MARK, cache_salt=MARK)
    for stream in (False, True):
        assert (await w.post(f"{CHAT}{query}", {**good, "stream": stream}, headers)).status == 200
    bad: list[bytes | dict[str, Any]] = [
        f'{{"messages": "{MARK}'.encode(),
        f'["{MARK}"]'.encode(),
        f"{MARK}".encode(),
        MARK.encode() + b"\xff",
        {"model": MARK, "messages": [{"role": MARK, "content": MARK}]},
        {"model": "sim", "prompt": MARK, "messages": MARK},
        {"model": "sim", "messages": {MARK: MARK}, "kv_transfer_params": {MARK: MARK}, "vllm_xargs": {MARK: MARK}},
        {"model": "sim", "messages": [user(MARK)], "stream": MARK, "max_tokens": MARK, "n": MARK},
        b"[" * 100_000 + MARK.encode(),
    ]
    replies = []
    for path in (CHAT, COMPLETIONS, RESPONSES, "/v1/messages"):
        replies += [await w.post(f"{path}{query}", each, headers) for each in bad[:4]]
        for each in bad[4:]:
            await w.post(f"{path}{query}", each, headers)  # a pod's own words, which may quote
    replies += [
        await w.post(CHAT, good, {**headers, "Content-Type": f"text/{MARK}"}),
        await w.post(CHAT, good, {**headers, "X-PPD-Weights": MARK}),
        await w.post(CHAT, good, {**headers, "X-PPD-Weights": f"ttft={MARK}"}),
        await w.get(f"/{MARK}{query}", headers=headers),
        await w.get(f"{CHAT}{query}", headers=headers),
        await w.get(f"//{MARK}", headers=headers),
    ]
    pod = w.decode[0]
    for kind in ("refuse_5xx", "reset_before_headers", "malformed_head", "malformed_sse"):
        pod.fault(kind, times=3)
        reply = await w.post(f"{CHAT}{query}", good, headers)
        pod.clear_faults()
        if kind != "refuse_5xx":
            replies.append(reply)
    raw = f"GET /{MARK} HTTP/9.9\r\n{MARK}: {MARK}\r\n\r\n", f"{MARK}\r\n\r\n", f"GET / HTTP/1.1\r\n{MARK}\r\n\r\n"
    return [reply.body for reply in replies] + [await talk(w.port, each.encode()) for each in raw]


async def test_no_secret_reaches_logs_metrics_pages_or_error_bodies(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    key_file = tmp_path / "pods-key"
    key_file.write_text(f"{POD_KEY}\n")
    async with world(
        prefill=0,
        decode=1,
        policy="local",
        allow_request_weights=True,
        expose_decisions=True,
        upstream_api_key_file=str(key_file),
    ) as w:
        own = await flood(w)
        pages = [await w.get(path) for path in ("/metrics", "/admin/pods", "/admin/residency", "/v1/models")]
        shown = repr(w.running) + repr(w.gateway.parts.settings)
        faults = repr(w.watcher.faults) + repr([(r.reason, r.path, r.method) for r in w.watcher.records])
    assert len(own) > 25
    assert all(page.status == 200 for page in pages)
    logged = [f"{record.getMessage()} {record.exc_info} {record.stack_info}" for record in caplog.records]
    assert any("outcome=ok" in line for line in logged), "lines were looked at"
    printed = capfd.readouterr()
    for place, texts in {
        "logs": logged,
        "what was printed": [printed.out, printed.err],
        "pages": [page.body.decode() for page in pages],
        "the gateway's own errors": [text.decode() for text in own],
        "what a debugger shows": [shown],
        "faults": [faults],
    }.items():
        for text in texts:
            assert MARK not in text, place
            assert POD_KEY not in text, place
            assert "Traceback" not in text, place


async def test_a_bug_is_told_by_its_place_and_not_by_its_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(MARK)

    async with world(prefill=0, decode=1) as w:
        monkeypatch.setattr("gateway.net.intake.tenant_of", broken)
        reply = await w.post(CHAT, body(user(MARK)))
    assert (reply.status, reply.json["error"]["message"]) == (500, "Internal error in the gateway.")
    assert w.watcher.fault_kinds == ["bug"]
    assert w.watcher.faults[0][2].startswith("RuntimeError at ")
    assert not any(MARK in record.getMessage() or record.exc_info for record in caplog.records)


async def test_an_error_that_nobody_waited_for_is_told_the_same_way(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        raise RuntimeError(MARK)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_stray)
    task = asyncio.ensure_future(broken())
    await asyncio.wait([task])
    del task
    gc.collect()
    assert len(caplog.records) == 1
    assert "Task exception was never retrieved (RuntimeError at " in caplog.messages[0]
    assert MARK not in caplog.text
