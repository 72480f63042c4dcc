"""Every setting the gateway has, in one table.

Rule of this room: a row here gives a key its TOML name, its flag (`timeouts.connect_s` → `--timeouts-connect-s`),
its environment variable (`PPD_TIMEOUTS_CONNECT_S`), its check and its help. Nothing about a setting elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.core.policies import POLICIES
from gateway.ops.checks import (
    Check,
    boolean,
    event_endpoint,
    integer,
    namespace,
    number,
    one_of,
    seconds,
    several,
    share,
    state,
    tenant_weights,
    text,
    url,
    weights,
)
from gateway.wire.contract import KEEPABLE


@dataclass(frozen=True, slots=True)
class Setting:
    """One row. `repeatable` settings are lists: the flag may come several times, the variable is comma-separated
    (unless its help says otherwise)."""

    key: str
    check: Check
    default: Any
    help: str
    metavar: str
    repeatable: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def variable(self) -> str:
        return "PPD_" + self.key.replace(".", "_").upper()


SETTINGS = (
    Setting("prefill", several(url), (), "a prefill pod; may be given several times", "URL", True),
    Setting("decode", several(url), (), "a decode pod; may be given several times", "URL", True),
    Setting(
        "replica", several(url), (), "a pod that serves conversations whole; may be given several times", "URL", True
    ),
    Setting(
        "policy",
        one_of(*POLICIES),
        "ppd",
        "how turn 2 and later are routed: ppd (by the table), pd (through P), local (straight to D), threshold, "
        "readback (through P, which reads from D; needs readback = true)",
        "NAME",
    ),
    Setting("table", text, None, "table set for policy ppd (default: the simulated one that comes along)", "DIR"),
    Setting(
        "table_lookup",
        one_of("nearest", "interpolated"),
        "nearest",
        "how the table is read: nearest, interpolated",
        "HOW",
    ),
    Setting("weights", weights, "balanced", "interactive, balanced, throughput, or ttft=2,tpot=1", "WEIGHTS"),
    Setting("w_ttft", number, None, "weight of the first token's time, in place of that in weights", "W"),
    Setting("w_tpot", number, None, "weight of the time per token, in place of that in weights", "W"),
    Setting("allow_request_weights", boolean, False, "let clients say X-PPD-Weights: ttft=2,tpot=1", "BOOL"),
    Setting(
        "tenant_weights",
        several(tenant_weights, ";"),
        (),
        "WHO:WEIGHTS for a tenant: its name in api_keys, or the SHA-256 of its key; repeatable (variable: ;-separated)",
        "SPEC",
        True,
    ),
    Setting("threshold_tokens", integer(0, 1 << 40), 512, "policy threshold: local up to so many new tokens", "N"),
    Setting(
        "decode_max_in_flight",
        integer(0, 1 << 40),
        0,
        "a decode pod with so many requests takes no append-prefill; 0 is no limit",
        "N",
    ),
    Setting(
        "min_resident_share",
        share,
        0.5,
        "a later turn with less than this share of its context left on D goes through P",
        "SHARE",
    ),
    Setting(
        "readback",
        boolean,
        False,
        "let P read a history back from D; P must run with bidirectional_kv_xfer, or it hangs on the first one",
        "BOOL",
    ),
    Setting("kv_events", one_of("auto", "off"), "auto", "listen to the pods' KV events: auto, off", "HOW"),
    Setting(
        "kv_event_endpoints",
        several(event_endpoint, ";"),
        (),
        "POD=tcp://host:port[|REPLAY] for a pod whose /kv_event_sources is not to be asked (variable: ;-separated)",
        "SPEC",
        True,
    ),
    Setting("isolate_tenants", boolean, False, "give every API key its own prefix cache (cache_salt)", "BOOL"),
    Setting("expose_decisions", boolean, False, "tell clients in X-PPD-Route and X-PPD-Reason", "BOOL"),
    Setting("selftest", boolean, True, "ask each decode and replica pod twice, to see that it keeps KV", "BOOL"),
    Setting(
        "direct_without_proof",
        boolean,
        False,
        "send later turns straight to pods that do not tell cached tokens (--enable-prompt-tokens-details)",
        "BOOL",
    ),
    Setting("lease_s", seconds, 30.0, "how long P keeps a prompt's KV for D (its kv_lease_duration)", "S"),
    Setting(
        "queue_s",
        seconds,
        None,
        "when all decode pods have decode_max_in_flight: wait so long before P begins, then 503 (default: take one)",
        "S",
    ),
    Setting(
        "retry_timed_out_prefill",
        boolean,
        False,
        "after timeouts.prefill_s try another pod rather than answer 504; the prompt may then be computed twice",
        "BOOL",
    ),
    Setting("host", text, "127.0.0.1", "address to listen on", "HOST"),
    Setting("api_keys", text, None, "file of the keys that clients need: lines of `SHA-256 tenant comment`", "FILE"),
    Setting("insecure", boolean, False, "listen on an address that others reach without api_keys", "BOOL"),
    Setting(
        "allow_client_priority",
        boolean,
        False,
        "pass X-Vllm-Priority and priority on: clients may then overtake each other in the pods' queues",
        "BOOL",
    ),
    Setting("upstream_api_key_file", text, None, "file with the API key that the pods want (vLLM's --api-key)", "FILE"),
    Setting(
        "upstream_api_key_env", text, None, "the same, as the name of an environment variable that holds it", "NAME"
    ),
    Setting(
        "tls_cert",
        text,
        None,
        "PEM file with the certificate for clients and its chain; read again when renewed",
        "FILE",
    ),
    Setting("tls_key", text, None, "PEM file with the private key of tls_cert", "FILE"),
    Setting("upstream_ca_file", text, None, "PEM file of the CAs of https:// pods (default: the system's)", "FILE"),
    Setting(
        "upstream_cert", text, None, "PEM file with the certificate that the gateway shows to https:// pods", "FILE"
    ),
    Setting("upstream_cert_key", text, None, "PEM file with the private key of upstream_cert", "FILE"),
    Setting("port", integer(0, 65535), 8000, "port to listen on; 0 lets the kernel choose", "PORT"),
    Setting("max_body_bytes", integer(1, 1 << 40), 32 << 20, "largest request body", "BYTES"),
    Setting(
        "prefill_keep_fields",
        several(one_of(*KEEPABLE)),
        (),
        "body fields to leave alone on the prefill leg, for models whose template shows them",
        "FIELD",
        True,
    ),
    Setting("log_level", one_of("debug", "info", "warning", "error"), "info", "least severe level to log", "LEVEL"),
    Setting("shutdown_grace_s", seconds, 30.0, "how long requests in flight may go on after SIGTERM", "S"),
    Setting("conversations.max", integer(1, 1 << 40), 200_000, "conversations to remember", "N"),
    Setting("conversations.ttl_s", seconds, 3600.0, "forget a conversation after so long without a request", "S"),
    Setting("state", state, None, "redis://host:port/db or rediss://…, shared by all gateways of the cluster", "URL"),
    Setting("state_namespace", namespace, "default", "keeps clusters on one server apart", "NAME"),
    Setting("state_timeout_s", seconds, 0.005, "longest wait of a request for the shared state", "S"),
    Setting("state_file", text, None, "file to keep the conversations in over a restart", "FILE"),
    Setting("state_interval_s", seconds, 30.0, "between two writes of state_file", "S"),
    Setting("workers", integer(1, 256), 1, "processes on one port; more than one needs state", "N"),
    Setting("timeouts.connect_s", seconds, 5.0, "connecting to a pod", "S"),
    Setting("timeouts.prefill_s", seconds, 300.0, "the whole prefill leg", "S"),
    Setting("timeouts.first_byte_s", seconds, 120.0, "first event of a stream from the answering pod", "S"),
    Setting("timeouts.unstreamed_s", seconds, 3600.0, "an unstreamed answer as a whole", "S"),
    Setting("timeouts.token_gap_s", seconds, 60.0, "silence within a stream", "S"),
    Setting("timeouts.handover_grace_s", seconds, 2.0, "an abandoned hand-over on its way to D's scheduler", "S"),
    Setting("timeouts.recall_s", seconds, 5.0, "each question to a pod before a readback", "S"),
    Setting("health.interval_s", seconds, 2.0, "between two health probes of a pod", "S"),
    Setting("health.timeout_s", seconds, 5.0, "one health probe", "S"),
    Setting("health.failures", integer(1, 1000), 3, "failed probes in a row after which a pod is down", "N"),
    Setting("health.facts_interval_s", seconds, 5.0, "between two readings of a pod's /metrics", "S"),
    Setting("breaker.failures", integer(0, 1000), 5, "failures in a row that open a pod's breaker; 0: never", "N"),
    Setting("breaker.window_s", seconds, 30.0, "within which they count", "S"),
    Setting("breaker.open_s", seconds, 5.0, "before one request may try an open pod (up to half longer)", "S"),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}
