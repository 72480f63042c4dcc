"""What was found, and how it is shown.

Rule of this room: a finding says what was seen; one that is not ok also says what to change, with the flag.
"""

from __future__ import annotations

import enum
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

NIXL = '{{"kv_connector":"{connector}","kv_role":"{role}"}}'


class Level(enum.StrEnum):
    """OK; WARN: it works, but not as well as it could, or not for sure; FAIL: conversations will not be served as
    configured."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """about: a pod's URL, two of them with an arrow, or what else was looked at. change: what to do; None when ok."""

    level: Level
    check: str
    about: str
    seen: str
    change: str | None = None


def ok(check: str, about: str, seen: str) -> Finding:
    return Finding(Level.OK, check, about, seen)


def warn(check: str, about: str, seen: str, change: str) -> Finding:
    return Finding(Level.WARN, check, about, seen, change)


def fail(check: str, about: str, seen: str, change: str) -> Finding:
    return Finding(Level.FAIL, check, about, seen, change)


def connector_flag(connector: str, role: str) -> str:
    """The flag that gives a pod a connector, fit for a shell."""
    return "--kv-transfer-config " + shlex.quote(NIXL.format(connector=connector, role=role))


def exit_status(findings: Iterable[Finding]) -> int:
    """0 all is well, 1 there are warnings, 2 something fails."""
    levels = {finding.level for finding in findings}
    return 2 if Level.FAIL in levels else 1 if Level.WARN in levels else 0


def as_json(findings: Sequence[Finding]) -> str:
    """One object: the worst level, and all findings."""
    worst = (Level.OK, Level.WARN, Level.FAIL)[exit_status(findings)]
    return msgspec.json.format(msgspec.json.encode({"result": worst, "findings": findings}), indent=2).decode()


def as_text(findings: Sequence[Finding], *, quiet: bool = False) -> str:
    """For people, by what it is about; quiet: without what is ok."""
    lines = []
    width = max((len(finding.check) for finding in findings), default=0)
    for about in dict.fromkeys(finding.about for finding in findings):
        shown = [f for f in findings if f.about == about and not (quiet and f.level is Level.OK)]
        if not shown:
            continue
        lines.append(about)
        for finding in shown:
            lines.append(f"  {finding.level.upper():4}  {finding.check:{width}}  {finding.seen}")
            if finding.change is not None:
                lines.append(f"  {'':4}  {'':{width}}  -> {finding.change}")
    count = Counter(finding.level for finding in findings)
    lines.append(f"{count[Level.OK]} ok, {count[Level.WARN]} to look at, {count[Level.FAIL]} to change")
    return "\n".join(lines)
