"""What is said of pods together: whether they fit each other, the hand-overs, and the table.

Rule of this room: reports in, findings out; nothing here asks anybody anything.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gateway.core.pods import Pod, Role
from gateway.ops.config import Config
from gateway.ops.doctor.findings import Finding, connector_flag, fail, ok, warn
from gateway.ops.doctor.look import PodReport
from gateway.ops.doctor.try_out import ReadBack, Tried
from gateway.wire.handovers import Way
from lut.table import TableSet

MakeFinding = Callable[[str, str, str, str], Finding]

FLEET = "pods together"
CONNECTORS = {
    Way.AUTO: "NixlConnector",
    Way.NIXL: "NixlConnector",
    Way.NIXL_PUSH: "NixlPushConnector",
    Way.MOONCAKE: "MooncakeConnector",
}
READBACK_FLAG = (
    '--kv-transfer-config with "kv_connector_extra_config":{"bidirectional_kv_xfer":true} on the prefill pod'
)
OLD_DAYS = 90
"""A table older than this has most likely outlived a change of the cluster."""


def judge(reports: Sequence[PodReport]) -> Iterator[Finding]:
    """Whether the pods fit each other."""
    pods = [report.pod for report in reports if report.usable]
    by_models: dict[tuple[str, ...], list[Pod]] = {}
    for pod in pods:
        if pod.role is not Role.REPLICA:
            by_models.setdefault(pod.facts.models, []).append(pod)
    for models, alike in by_models.items():
        about = FLEET if len(by_models) == 1 else f"pods of {', '.join(models) or 'no model'}"
        yield from _equal("block size", about, alike, lambda pod: pod.facts.block_size, fail, "--block-size {}")
    yield from _equal("version", FLEET, pods, lambda pod: pod.facts.version, warn, "run vLLM {} there too")
    yield from _models(reports)


def _equal(
    check: str, about: str, pods: Sequence[Pod], of: Callable[[Pod], object], level: MakeFinding, change: str
) -> Iterator[Finding]:
    """Pods whose value differs from that of most. change: with a place for the usual value."""
    values = {pod.url: of(pod) for pod in pods if of(pod)}
    if not values:
        return
    (usual, _), *others = Counter(values.values()).most_common()
    if not others:
        yield ok(check, about, f"{usual} everywhere")
    for url, value in values.items():
        if value != usual:
            yield level(check, url, f"{value}, on most pods {usual}", change.format(usual))


def _models(reports: Sequence[PodReport]) -> Iterator[Finding]:
    usable = [report for report in reports if report.usable and report.max_model_lens]
    all_known = len(usable) == len(reports)
    serving: dict[str, list[PodReport]] = {}
    for report in usable:
        for model in report.max_model_lens:
            serving.setdefault(model, []).append(report)
    for model, by in serving.items():
        roles = {report.pod.role for report in by}
        if roles == {Role.PREFILL} and all_known:
            change = f"--served-model-name {model} on a decode pod, or take the prefill pod out"
            yield fail("model", by[0].pod.url, f"no decode or replica pod serves {model}", change)
        elif Role.DECODE in roles and Role.PREFILL not in roles and all_known and _any(usable, Role.PREFILL):
            change = f"--served-model-name {model} on a prefill pod, if that is the same model"
            decode = next(report for report in by if report.pod.role is Role.DECODE)
            yield warn("model", decode.pod.url, f"no prefill pod serves {model}: its turns run whole", change)
        most = max(report.max_model_lens[model] for report in by)
        for report in by:
            if 0 < (length := report.max_model_lens[model]) < most:
                seen = f"{length} tokens of {model}, another pod takes {most}: what fits there fails here"
                yield fail("max model len", report.pod.url, seen, f"--max-model-len {most}")
    if len(serving) == 1:
        yield ok("model", FLEET, f"{next(iter(serving))} everywhere")


def _any(reports: Sequence[PodReport], role: Role) -> bool:
    return any(report.pod.role is role for report in reports)


def judge_pairs(tried: Sequence[Tried], shown: dict[str, str | None], config: Config) -> Iterator[Finding]:
    """shown: how each prefill pod hands over, where that is known by now (`Origins.shown`)."""
    way = config.net.handover
    connector = CONNECTORS[way]
    for one in tried:
        about = f"{one.prefill} > {one.decode}"
        fault = one.fault
        if fault is None and one.fetched is not False:
            doubt = "" if one.fetched else "; whether the decode pod read its KV cannot be seen"
            yield ok("hand-over", about, f"{shown.get(one.prefill) or way}, {one.seconds:.2f} s{doubt}")
        elif fault is None:
            seen = "the decode pod answered but read no KV from the prefill pod: it computed the prompt anew"
            yield fail("hand-over", about, seen, f"on {one.decode}: {connector_flag(connector, 'kv_consumer')}")
        elif fault.word == "no_handover":
            change = f"on {one.prefill}: {connector_flag(connector, 'kv_producer')}"
            yield fail("hand-over", about, "the prefill pod keeps nothing for the decode pod", change)
        elif fault.word == "timeout":
            change = (
                "open the pods' ports to each other (VLLM_NIXL_SIDE_CHANNEL_HOST must be an address that the other pod "
                "reaches, and VLLM_NIXL_SIDE_CHANNEL_PORT free), and use one connector on both"
            )
            yield fail("hand-over", about, str(fault), change)
        else:
            change = f"see the pods' logs; on {one.decode}: {connector_flag(connector, 'kv_consumer')}"
            yield fail("hand-over", about, str(fault), change)
    for url in dict.fromkeys(one.decode for one in tried if one.offers):
        seen = "it keeps the blocks of every conversation for a readback, 480 s long; a gateway asks for them itself"
        change = 'leave "bidirectional_kv_xfer" out of the --kv-transfer-config of decode pods'
        yield warn("readback", url, seen, change)
    for url, found in shown.items():
        if way in (Way.NIXL, Way.NIXL_PUSH) and found not in (None, way):
            yield fail("dialect", url, f"it hands over as {found}, the configuration says {way}", f"handover = {found}")


def judge_readbacks(found: Sequence[ReadBack]) -> Iterator[Finding]:
    """Readbacks that were tried because the configuration wants them."""
    for one in found:
        about = f"{one.holder} > {one.prefill}"
        if not one.word:
            yield ok("readback", about, f"{one.tokens} tokens read" if one.tokens else "works")
        elif one.word in ("timeout", "computed"):
            seen = "the prefill pod hangs on it" if one.word == "timeout" else one.detail
            yield fail("readback", about, seen, f"{READBACK_FLAG}, or readback = false")
        elif one.word == "no_offer":
            change = f"on {one.holder}: {connector_flag('NixlConnector', 'kv_consumer')}, or readback = false"
            yield fail("readback", about, one.detail, change)
        else:
            yield fail("readback", about, one.detail, "see the pods' logs, or readback = false")


def judge_table(tables: TableSet, reports: Sequence[PodReport], config: Config, now: float) -> Iterator[Finding]:
    """Whether the table speaks of these pods. now: seconds since the epoch."""
    about, manifest = f"table {tables.directory}", tables.manifest
    pods = [report.pod for report in reports if report.usable]
    measure = "ppd-gateway profile (docs/table.md), then table = DIR"
    count = Counter(pod.role for pod in pods)
    assignment = f"{count[Role.PREFILL]}P_{count[Role.DECODE]}D"
    _, used, exact = tables.nearest_assignment(assignment)
    if manifest.simulated:
        yield warn("measured on", about, "simulated pods, not yours", measure)
    if exact:
        yield ok("node assignment", about, assignment)
    else:
        yield warn("node assignment", about, f"none for {assignment}; {used} is used", measure)
    models = {model for pod in pods for model in pod.facts.models}
    if models and manifest.model not in models:
        yield warn("model", about, f"measured on {manifest.model}, the pods serve {', '.join(sorted(models))}", measure)
    elif models:
        yield ok("model", about, manifest.model)
    sizes = {pod.facts.block_size for pod in pods if pod.facts.block_size}
    if manifest.block_size is not None and sizes and sizes != {manifest.block_size}:
        change = f"--block-size {manifest.block_size} on the pods, or {measure}"
        seen = f"measured with {manifest.block_size}, the pods have {', '.join(map(str, sorted(sizes)))}"
        yield warn("block size", about, seen, change)
    if config.net.readback and not any("readback" in record.arms for record in manifest.tables.values()):
        change = "ppd-gateway profile --arms pd,local,readback, or readback = false"
        yield warn("readback", about, "the table has no readback arm: only moves read back", change)
    yield from _age(about, manifest.created, now, measure)


def _age(about: str, created: str, now: float, measure: str) -> Iterator[Finding]:
    try:
        made = datetime.datetime.fromisoformat(created)
    except ValueError:
        yield warn("age", about, f"made at {created!r}, which is no time", measure)
        return
    if made.tzinfo is None:
        made = made.replace(tzinfo=datetime.UTC)
    days = (now - made.timestamp()) / 86400
    if days > OLD_DAYS:
        yield warn("age", about, f"{days:.0f} days", measure)
    else:
        yield ok("age", about, f"{max(0.0, days):.0f} days")
