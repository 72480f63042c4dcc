"""`ppd-gateway doctor` in front of simulated pods, each with one fault."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gateway.ops.doctor import try_out
from gateway.ops.doctor.findings import exit_status
from gateway.ops.doctor.options import Options
from loadtest.pod.simulated import SimulatedPod
from tests.ops.doctor_world import changes, troubles, ward


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated pods count at once, and hang for certain."""
    monkeypatch.setattr(try_out, "COUNTED_WITHIN_S", 0.05)
    monkeypatch.setattr(try_out, "PROOF_S", 0.2)


def pinned(pod: SimulatedPod) -> Any:
    return pod.summary["pinned_blocks"]


async def test_good_pods_are_found_good_and_nothing_stays_pinned_there() -> None:
    async with ward([{"bidirectional": True}], [{}, {}]) as w:
        findings = await w.examine(readback="true")
        assert troubles(findings) == []
        assert exit_status(findings) == 0
        p, (d, e) = w.prefill[0].url, [pod.url for pod in w.decode]
        seen = {(f.check, f.about): f.seen for f in findings}
        assert seen["reachable", p] == "prefill pod, healthy"
        assert seen["model", d] == "sim, 8192 tokens"
        assert seen["prefix caching", e] == "on: 48 of 49 tokens were kept"
        assert seen["block size", "pods together"] == "16 everywhere"
        assert {("hand-over", f"{p} > {d}"), ("hand-over", f"{p} > {e}")} <= seen.keys()
        assert seen["readback", f"{d} > {p}"] == "80 tokens read"
        for pod in (*w.prefill, *w.decode):
            await pod.until(lambda pod=pod: pinned(pod) == 0)


EVENTS = """--kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","""


@pytest.mark.parametrize(
    ("role", "options", "settings", "level", "check", "change"),
    [
        ("decode", {"prefix_caching": False}, {}, "fail", "prefix caching", "--enable-prefix-caching"),
        ("prefill", {"prefix_caching": False}, {}, "warn", "prefix caching", "--enable-prefix-caching"),
        (
            "decode",
            {"prompt_tokens_details": False},
            {},
            "fail",
            "prompt token details",
            "--enable-prompt-tokens-details",
        ),
        (
            "decode",
            {"prompt_tokens_details": False},
            {"direct_without_proof": "true"},
            "warn",
            "prompt token details",
            "--enable-prompt-tokens-details",
        ),
        (
            "prefill",
            {"prompt_tokens_details": False},
            {},
            "warn",
            "prompt token details",
            "--enable-prompt-tokens-details",
        ),
        ("decode", {"kv_events": False}, {}, "warn", "kv events", EVENTS),
        ("decode", {"replay": False}, {}, "warn", "kv events replay", '"replay_endpoint":"tcp://*:5558"'),
        ("prefill", {"scale_out": False}, {"readback": "true"}, "warn", "readback", "--enable-scale-out"),
    ],
)
async def test_a_fault_of_one_pod_is_found_there_and_the_flag_is_named(
    role: str, options: dict[str, Any], settings: dict[str, Any], level: str, check: str, change: str
) -> None:
    both = {"bidirectional": True} if "readback" in settings else {}
    pods: dict[str, Any] = {"prefill": [both], "decode": [{}]}
    pods[role] = [{**both, **options}]
    async with ward(**pods) as w:
        findings = await w.examine(**settings)
        about = (w.prefill if role == "prefill" else w.decode)[0].url
        assert troubles(findings) == [(level, check, about)]
        assert change in changes(findings)[0]
        assert exit_status(findings) == {"warn": 1, "fail": 2}[level]


async def test_a_prefill_pod_without_a_connector_hands_nothing_over() -> None:
    async with ward([{"role": "replica"}]) as w:
        findings = await w.examine()
        assert troubles(findings) == [("fail", "hand-over", f"{w.prefill[0].url} > {w.decode[0].url}")]
        assert changes(findings) == [
            f"on {w.prefill[0].url}: --kv-transfer-config "
            """'{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'"""
        ]


async def test_a_decode_pod_without_a_connector_computes_everything_again() -> None:
    async with ward(decode=[{}, {"role": "replica"}]) as w:
        findings = await w.examine()
        assert troubles(findings) == [("fail", "hand-over", f"{w.prefill[0].url} > {w.decode[1].url}")]
        assert '"kv_role":"kv_consumer"' in changes(findings)[0]


async def test_a_prefill_pod_without_bidirectional_transfer_hangs_on_a_readback() -> None:
    async with ward() as w:
        findings = await w.examine(Options(streams=10, limit_s=1.0), readback="true")
        assert troubles(findings) == [("fail", "readback", f"{w.decode[0].url} > {w.prefill[0].url}")]
        assert '"bidirectional_kv_xfer":true' in changes(findings)[0]


async def test_a_decode_pod_with_bidirectional_transfer_pins_what_it_has_and_the_probe_gives_it_back() -> None:
    async with ward([{"bidirectional": True}], [{"bidirectional": True}]) as w:
        findings = await w.examine()
        assert troubles(findings) == [("warn", "readback", w.decode[0].url)]
        assert '"bidirectional_kv_xfer"' in changes(findings)[0]
        for pod in (*w.prefill, *w.decode):
            await pod.until(lambda pod=pod: pinned(pod) == 0)


async def test_pods_that_do_not_fit_each_other() -> None:
    odd = {"block_size": 32, "max_model_len": 4096}
    async with ward(decode=[{}, {}, odd]) as w:
        url = w.decode[2].url
        found = troubles(await w.examine())
        assert ("fail", "block size", url) in found
        assert ("fail", "max model len", url) in found
        assert {about for _, check, about in found if check != "hand-over"} == {url}


async def test_pods_of_two_models_need_not_be_alike() -> None:
    other = {"model": "other", "block_size": 32, "max_model_len": 4096}
    async with ward([{}, other], [{}, other]) as w:
        findings = await w.examine()
        assert troubles(findings) == []
        sizes = {(f.about, f.seen) for f in findings if f.check == "block size"}
        assert sizes == {("pods of sim", "16 everywhere"), ("pods of other", "32 everywhere")}
        assert {f.about for f in findings if f.check == "hand-over"} == {
            f"{p.url} > {d.url}" for p, d in zip(w.prefill, w.decode, strict=True)
        }


async def test_a_model_that_no_decode_pod_serves() -> None:
    async with ward([{"model": "other"}, {}], [{}]) as w:
        findings = await w.examine()
        assert troubles(findings) == [("fail", "model", w.prefill[0].url)]
        assert changes(findings) == ["--served-model-name other on a decode pod, or take the prefill pod out"]


async def test_a_pod_that_is_not_there_and_one_that_is_not_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with ward() as w:
        w.decode[0].fault("refuse_5xx", status=503, times=-1, path="/health")
        findings = await w.examine(prefill=[closed])
        assert troubles(findings) == [("fail", "reachable", closed), ("fail", "reachable", w.decode[0].url)]
        assert "503" in next(f.seen for f in findings if f.about == w.decode[0].url)
        assert f"`{'prefill'}`" in changes(findings)[0]


@pytest.mark.parametrize("given", [False, True])
async def test_a_pod_that_wants_a_key(given: bool, tmp_path: Any) -> None:
    key = tmp_path / "key"
    key.write_text("sk-not-this-one", encoding="utf-8")
    key.chmod(0o600)
    settings = {"upstream_api_key_file": str(key)} if given else {}
    async with ward() as w:
        w.decode[0].fault("refuse_5xx", status=401, times=-1, path="/v1/models")
        findings = await w.examine(**settings)
        assert troubles(findings) == [("fail", "api key", w.decode[0].url)]
        assert "upstream_api_key_file" in changes(findings)[0]
        assert all("sk-not-this-one" not in f.seen for f in findings)


async def test_events_that_cannot_be_heard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    async with ward() as w:
        url = w.decode[0].url
        endpoint = f"{url}={closed}|{closed}"
        findings = await w.examine(Options(streams=10, limit_s=0.5), kv_event_endpoints=[endpoint])
        assert troubles(findings) == [("fail", "kv events", url), ("fail", "kv events replay", url)]


@pytest.mark.parametrize(("way", "mode", "good"), [("nixl", "push", False), ("auto", "push", True)])
async def test_a_dialect_other_than_configured(way: str, mode: str, good: bool) -> None:
    async with ward([{"transfer_mode": mode}]) as w:
        findings = await w.examine(handover=way)
        dialects = [f for f in findings if f.check == "dialect"]
        assert [f.change for f in dialects] == ([] if good else ["handover = nixl-push"])


async def test_mooncake_with_and_without_its_bootstrap_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with ward() as w:
        p = w.prefill[0].url
        assert troubles(await w.examine(handover="mooncake", mooncake_bootstraps=[f"{p}={p}"])) == []
        findings = await w.examine(handover="mooncake", mooncake_bootstraps=[f"{p}={closed}"])
        assert troubles(findings) == [("fail", "mooncake bootstrap", p)]
        assert "VLLM_MOONCAKE_BOOTSTRAP_PORT" in changes(findings)[0]


async def test_nothing_is_computed_where_that_is_not_wanted() -> None:
    async with ward() as w:
        findings = await w.examine(Options(streams=10, compute=False, limit_s=3.0))
        assert troubles(findings) == []
        assert [*w.prefill[0].requests, *w.decode[0].requests] == []
        assert ("prefix caching", "on, says the pod") in {(f.check, f.seen) for f in findings}


async def test_of_many_pairs_as_many_are_tried_as_were_asked_for_and_every_pod_is_in_one() -> None:
    async with ward([{}, {}], [{}, {}, {}]) as w:
        findings = await w.examine(Options(streams=10, pairs=3, limit_s=3.0))
        tried = [f.about.split(" > ") for f in findings if f.check == "hand-over" and " > " in f.about]
        assert {p for p, _ in tried} == {pod.url for pod in w.prefill}
        assert {d for _, d in tried} == {pod.url for pod in w.decode}
        assert len(tried) == 3
        assert ("pods together", "3 of 6 pairs were tried (--pairs)") in {(f.about, f.seen) for f in findings}


async def test_pods_that_a_file_names_are_looked_at(tmp_path: Any) -> None:
    async with ward() as w:
        listed = [{"url": w.prefill[0].url, "role": "prefill"}, {"url": w.decode[0].url, "role": "decode"}]
        file = tmp_path / "pods.json"
        file.write_text(str({"pods": listed}).replace("'", '"'), encoding="utf-8")
        findings = await w.examine(**{"prefill": [], "decode": [], "discovery.file": str(file)})
        assert troubles(findings) == []
        assert f"{w.prefill[0].url} > {w.decode[0].url}" in {f.about for f in findings}
        file.write_text("{", encoding="utf-8")
        findings = await w.examine(**{"prefill": [], "decode": [], "discovery.file": str(file)})
        assert {check for _, check, _ in troubles(findings)} == {"discovery", "pods"}
