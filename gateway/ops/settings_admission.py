"""The settings of tenants, of admission and of targets.

Rule of this room: rows only; what they mean together is in `ops.admission`.
"""

from __future__ import annotations

from gateway.core.admission.classes import ServiceClass
from gateway.ops.checks import between, boolean, integer, one_of, seconds, text
from gateway.ops.setting import Setting

_TOKENS = integer(0, 1 << 40)
_TARGETS = (
    ("ttft_p99_ms", "MS", "the first token", "ms; with admission.… also their deadline"),
    ("tpot_p99_ms", "MS", "the time per token after the first", "ms"),
    ("e2e_p99_s", "S", "a whole answer", "s"),
)

ADMISSION_SETTINGS = (
    Setting(
        "tenants_file",
        text,
        None,
        "TOML file of the tenants' classes, shares, quotas, models, weights; needs api_keys; or state:tenants",
        "FILE",
    ),
    Setting(
        "default_class",
        one_of(*ServiceClass),
        "standard",
        "class of requests whose tenant has none: interactive, standard, batch (the first is served first)",
        "CLASS",
    ),
    Setting(
        "admission.max_tokens",
        _TOKENS,
        0,
        "tokens of prompts and expected answers in flight at this gateway; more wait; 0 is no limit",
        "N",
    ),
    Setting(
        "admission.prefill_tokens",
        _TOKENS,
        0,
        "tokens of prompts in flight at one prefill pod; more wait; 0 is no limit",
        "N",
    ),
    Setting(
        "admission.decode_tokens",
        _TOKENS,
        0,
        "tokens of prompts in flight at one decode or replica pod; more wait or go to another; 0 is no limit",
        "N",
    ),
    Setting(
        "admission.queue", integer(1, 1_000_000), 1000, "requests that may wait; of more, the last are refused", "N"
    ),
    Setting(
        "admission.predict", boolean, True, "refuse at once (429) what would wait beyond its deadline anyway", "BOOL"
    ),
    Setting(
        "admission.vllm_priority",
        boolean,
        False,
        "send X-Vllm-Priority by class and turn; pods must run with --scheduling-policy priority, or refuse it",
        "BOOL",
    ),
    Setting("slo.window_s", seconds, 30.0, "how far back targets look, and the least time between two changes", "S"),
    Setting("slo.min_samples", integer(1, 1_000_000), 50, "requests of a class before its P99 counts", "N"),
    Setting(
        "slo.max_factor",
        between(1, 1e6),
        16.0,
        "by how much w_ttft/w_tpot may be moved, either way, to meet the targets",
        "FACTOR",
    ),
    *(
        Setting(
            f"slo.{service}.{name}",
            seconds if name.endswith("_s") else between(1e-3, 1e9),
            None,
            f"99 % of class {service} are to have {what} within so many {unit}",
            metavar,
        )
        for service in ServiceClass
        for name, metavar, what, unit in _TARGETS
    ),
)
