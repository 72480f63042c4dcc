"""What is said of each pod by itself.

Rule of this room: reports in, findings out; nothing here asks anybody anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gateway.core.pods import Role
from gateway.net.selftest import Proof
from gateway.ops.config import Config
from gateway.ops.doctor.findings import Finding, fail, ok, warn
from gateway.ops.doctor.look import PodReport
from gateway.ops.doctor.versions import TRIED, tried
from gateway.wire.handovers import Way

EVENTS_FLAG = "--kv-events-config " + shlex.quote(
    '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'
)
SKEW_S = 2.0
"""Clocks further apart than this make the age and lag of KV events, and logs side by side, hard to read."""


def judge(report: PodReport, config: Config) -> Iterator[Finding]:
    """All findings about one pod."""
    pod, url = report.pod, report.pod.url
    if report.fault is not None:
        change = f"start the pod, open its port to this machine, or take it out of `{pod.role}`"
        yield fail("reachable", url, f"no {pod.role} pod answers here: {report.fault}", change)
        return
    yield ok("reachable", url, f"{pod.role} pod, healthy")
    if report.locked:
        change = "name a file with the pods' --api-key: upstream_api_key_file (or upstream_api_key_env)"
        given = config.upstream_api_key_file is not None or config.upstream_api_key is not None
        if given:
            change = "put the key that the pod was started with (--api-key) into upstream_api_key_file"
        yield fail("api key", url, "it wants a key, and not this one" if given else "it wants a key", change)
        return
    yield from _identity(report)
    yield from _caching(report, config)
    yield from _events(report, config)
    yield from _clock(report)
    if pod.role is Role.PREFILL:
        yield from _prefill(report, config)


def _identity(report: PodReport) -> Iterator[Finding]:
    facts, url = report.pod.facts, report.pod.url
    releases = ", ".join(dict.fromkeys(row.release for row in TRIED))
    if not facts.version:
        yield warn("version", url, "it does not tell a version", f"is that a vLLM pod? This gateway knows {releases}")
    elif tried(facts.version):
        yield ok("version", url, f"vLLM {facts.version}")
    else:
        change = f"tried with {releases} (docs/compatibility.md): use one of these, or test yours with care"
        yield warn("version", url, f"vLLM {facts.version}", change)
    if not facts.models:
        yield fail("model", url, "its /v1/models names no model", "see the pod's log: did it load its model?")
    else:
        yield ok("model", url, f"{', '.join(facts.models)}, {facts.max_model_len or '?'} tokens")
    if not facts.seen_at:
        yield warn(
            "metrics", url, "/metrics cannot be read", "leave --disable-log-stats and proxies before /metrics away"
        )


def _caching(report: PodReport, config: Config) -> Iterator[Finding]:
    pod, url, kept = report.pod, report.pod.url, report.kept
    worse = warn if pod.role is Role.PREFILL else fail
    if pod.facts.prefix_caching is False:
        yield worse("prefix caching", url, "off: nothing of a conversation is kept", "--enable-prefix-caching")
        return
    if kept is None:
        if pod.facts.prefix_caching:
            yield ok("prefix caching", url, "on, says the pod")
        return
    if kept.proof is Proof.OK:
        yield ok("prefix caching", url, f"on: {kept.reason}")
        yield ok("prompt token details", url, "on")
    elif kept.proof is Proof.CACHING_OFF:
        yield worse("prefix caching", url, kept.reason, "--enable-prefix-caching")
    elif kept.proof is Proof.DETAILS_OFF:
        lenient = pod.role is Role.PREFILL or config.net.direct_without_proof
        told = "it does not tell how many tokens of a prompt it had"
        yield (warn if lenient else fail)("prompt token details", url, told, "--enable-prompt-tokens-details")
    elif kept.proof is Proof.NOTHING_KEPT:
        yield worse("prefix caching", url, kept.reason, "--enable-prefix-caching, or more KV: --gpu-memory-utilization")
    elif kept.proof is Proof.BUSY:
        yield warn("prefix caching", url, f"not tried: {kept.reason}", "run this again when the pod is less busy")
    else:
        yield fail("completions", url, f"a completion of one token failed: {kept.reason}", "see the pod's log")


def _events(report: PodReport, config: Config) -> Iterator[Finding]:
    url = report.pod.url
    if not config.kv_events or report.pod.facts.prefix_caching is False:
        return
    if report.sources is None:
        change = f"kv_event_endpoints = ['{url}=tcp://HOST:5557|tcp://HOST:5558'], and on the pod {EVENTS_FLAG}"
        yield warn("kv events", url, "it does not tell where it publishes", change)
        return
    if not report.sources:
        seen = "off: what the pod holds is estimated from what it was sent"
        yield warn("kv events", url, seen, EVENTS_FLAG)
        return
    for rank, source in report.sources.items():
        heard, where = report.heard.get(rank), f"{source.endpoint} (rank {rank})"
        if source.replay_endpoint is None:
            change = 'in --kv-events-config: "replay_endpoint":"tcp://*:5558"'
            yield warn("kv events replay", url, "what a gateway missed cannot be had again", change)
        if heard is None:
            continue
        if heard.bad is not None:
            yield fail(
                "kv events", url, f"{where}: {heard.bad}", "another service is on that port: change the endpoint"
            )
        elif heard.live:
            yield ok("kv events", url, f"heard at {where}")
        else:
            change = 'open the port to this machine; the pod binds only with a wildcard: "endpoint":"tcp://*:5557"'
            yield fail("kv events", url, f"nothing is heard at {where}", change)
        if heard.replay is not None:
            yield (
                ok("kv events replay", url, f"answers at {source.replay_endpoint}")
                if heard.replay
                else fail(
                    "kv events replay",
                    url,
                    f"no answer at {source.replay_endpoint}",
                    'open the port to this machine: "replay_endpoint":"tcp://*:5558"',
                )
            )


def _clock(report: PodReport) -> Iterator[Finding]:
    url, skew_s = report.pod.url, report.skew_s
    if skew_s is None:
        return
    if abs(skew_s) <= SKEW_S:
        yield ok("clock", url, "as here")
    else:
        seen = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's"
        yield warn("clock", url, seen, "let both machines' clocks follow NTP (timedatectl set-ntp true)")


def _prefill(report: PodReport, config: Config) -> Iterator[Finding]:
    url = report.pod.url
    if report.bootstrap_fault is not None:
        change = (
            f"on the pod VLLM_MOONCAKE_BOOTSTRAP_PORT=8998 and MooncakeConnector; here "
            f"mooncake_bootstraps = ['{url}=http://HOST:8998'], or another `handover` than {Way.MOONCAKE}"
        )
        yield fail("mooncake bootstrap", url, report.bootstrap_fault, change)
    if config.net.readback and report.renders is False:
        seen = (
            "no render endpoint: /v1/messages, /v1/responses and prompts shaped by more than messages, tools and "
            "template are not read back"
        )
        yield warn("readback", url, seen, "--enable-scale-out")
