"""SIGHUP: the configuration is read again, and what can change in a running gateway changes.

Rule of this room: a configuration that is not wholly good changes nothing. What cannot change at run time is named in
one line and keeps the value it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gateway.core.pods import Role
from gateway.core.policies import MeasuredTable, Threshold
from gateway.net.parts import Parts
from gateway.net.roster import CONFIG, Roster
from gateway.net.server import HttpServer
from gateway.ops.admission import take_targets
from gateway.ops.canary import CanaryKeeper
from gateway.ops.config import Config
from gateway.ops.discovery.keeper import Discovery
from gateway.ops.drift import take_rules
from gateway.ops.layers import ConfigError
from gateway.ops.logs import MAIN
from gateway.ops.settings_admission import ADMISSION_SETTINGS

PODS = tuple(role.value for role in Role)
AT_RUN_TIME = frozenset(
    {
        *PODS,
        "weights",
        "w_ttft",
        "w_tpot",
        "tenant_weights",
        "allow_request_weights",
        "threshold_tokens",
        "decode_max_in_flight",
        "min_resident_share",
        "expose_decisions",
        "prefill_keep_fields",
        "retry_timed_out_prefill",
        "queue_s",
        "default_class",
        "admission.max_tokens",
        "admission.prefill_tokens",
        "admission.decode_tokens",
        "admission.queue",
        "admission.predict",
        "max_body_bytes",
        "limits.head_s",
        "limits.body_s",
        "limits.idle_s",
        "limits.stall_s",
        "conversations.max",
        "conversations.ttl_s",
        "log_level",
        "drain_timeout_s",
        "timeouts.prefill_s",
        "timeouts.first_byte_s",
        "timeouts.unstreamed_s",
        "timeouts.token_gap_s",
        "timeouts.handover_grace_s",
        "timeouts.recall_s",
        "health.interval_s",
        "health.failures",
        "health.facts_interval_s",
        "breaker.failures",
        "breaker.window_s",
        "breaker.open_s",
        *(row.key for row in ADMISSION_SETTINGS if row.key.startswith("slo.")),
        "drift.mode",
        "drift.tolerance",
        "drift.false_alarms",
        "drift.half_life_s",
        "drift.explore",
        "canary.percent",
        "canary.guard",
        "canary.window_s",
        "canary.look_s",
        "canary.min_samples",
        "canary.quantile",
        "canary.latency_margin",
        "canary.error_margin",
        "canary.false_alarms",
    }
)
"""The settings that a reload changes."""


@dataclass
class Reloader:
    """Holds the configuration in use. again: reads it anew, None where it cannot be read anew."""

    config: Config
    again: Callable[[], Config] | None
    parts: Parts
    roster: Roster
    discovery: Discovery
    server: HttpServer
    canary: CanaryKeeper

    def reload(self) -> None:
        """Read the configuration and take over what can be."""
        if self.again is None:
            return
        try:
            wanted = self.again()
        except ConfigError as error:
            MAIN.error("reload refused, the old configuration stays: %s", error)
            return
        changed = [key for key, value in wanted.values.items() if value != self.config.values[key]]
        taken = [key for key in changed if key in AT_RUN_TIME]
        left = [key for key in changed if key not in AT_RUN_TIME]
        self._take(_mixed(self.config, wanted, taken), set(taken))
        MAIN.info("configuration read again: %s", ", ".join(taken) if taken else "nothing in it that changes")
        if left:
            MAIN.warning("these take effect at the next start only: %s", ", ".join(left))

    def _take(self, config: Config, changed: set[str]) -> None:
        parts, before = self.parts, self.config
        self.config = config
        set_meanwhile = before.net.weights == config.net.weights
        weights = parts.settings.weights if set_meanwhile else config.net.weights
        parts.settings = replace(config.net, weights=weights)
        parts.admission.set_rules(config.net.admission)
        parts.store.max_conversations, parts.store.ttl_s = config.max_conversations, config.conversation_ttl_s
        if before.slo != config.slo:
            take_targets(parts, config.slo)
        if isinstance(parts.policy, Threshold):
            parts.policy.max_new_tokens = config.threshold_tokens
        if isinstance(parts.policy, MeasuredTable) and before.drift.rules != config.drift.rules:
            take_rules(parts.policy, config.drift.rules)
        self.server.limits = config.limits
        if "log_level" in changed:
            logging.getLogger().setLevel(config.log_level.upper())
        if before.canary != config.canary:
            self.canary.reconfigure(config.canary)
        if changed.intersection(PODS):
            self._take_pods({url: role for role, url in config.pods})
            self.discovery.take_names(config.discovery.names)

    def _take_pods(self, wanted: dict[str, Role]) -> None:
        known = self.roster.of(CONFIG)
        for url, role in wanted.items():
            if known.get(url) is not role:
                self.roster.add(url, role, source=CONFIG)
        for url in known.keys() - wanted.keys():
            self.roster.remove(url, source=CONFIG)


def _mixed(old: Config, new: Config, taken: Sequence[str]) -> Config:
    """The new configuration in what can change at run time, the old one in the rest."""
    net = replace(
        old.net,
        weights=new.net.weights,
        decode_max_in_flight=new.net.decode_max_in_flight,
        min_resident_share=new.net.min_resident_share,
        expose_decisions=new.net.expose_decisions,
        prefill_keep_fields=new.net.prefill_keep_fields,
        retry_timed_out_prefill=new.net.retry_timed_out_prefill,
        admission=replace(new.net.admission, priority=old.net.admission.priority),
        classes=new.net.classes,
        max_body_bytes=new.net.max_body_bytes,
        timeouts=replace(new.net.timeouts, connect_s=old.net.timeouts.connect_s),
        health=replace(new.net.health, timeout_s=old.net.health.timeout_s),
        breaker=new.net.breaker,
    )
    return replace(
        old,
        pods=new.pods,
        discovery=replace(old.discovery, names=new.discovery.names),
        threshold_tokens=new.threshold_tokens,
        max_conversations=new.max_conversations,
        conversation_ttl_s=new.conversation_ttl_s,
        log_level=new.log_level,
        drain_timeout_s=new.drain_timeout_s,
        limits=new.limits,
        slo=new.slo,
        drift=replace(old.drift, rules=new.drift.rules),
        canary=replace(old.canary, percent=new.canary.percent, guard=new.canary.guard),
        net=net,
        values={**old.values, **{key: new.values[key] for key in taken}},
    )
