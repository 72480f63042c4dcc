"""Writes a profile with the source of every number, as `loadtest.engine.profile` reads it.

Rule of this room: a file that is written can be read: it is parsed before it replaces another.
"""

from __future__ import annotations

import json
import os
import platform
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from loadtest.engine.profile import Profile, from_toml

_SECTIONS = ("step", "request", "scheduler", "cache", "transfer")


@dataclass(frozen=True, slots=True)
class Provenance:
    """sources: key → words. of: dotted name of a number → key (`default` for the others). errors: standard errors."""

    sources: Mapping[str, str]
    of: Mapping[str, str]
    default: str
    errors: Mapping[str, float] = field(default_factory=dict)


def to_toml(profile: Profile, provenance: Provenance, measured: Mapping[str, object], heading: str) -> str:
    """The text of a profile file; `heading` becomes its first comment."""
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    lines += [f"name = {json.dumps(profile.name)}", _line("max_model_len", profile.max_model_len, None, provenance)]
    for title in _SECTIONS:
        lines += ["", f"[{title}]"]
        values = asdict(getattr(profile, title))
        lines += [_line(name, value, title, provenance) for name, value in values.items()]
    used = {provenance.of.get(name, provenance.default) for name in _names(profile)}
    lines += ["", "[sources]"]
    lines += [f"{key} = {json.dumps(provenance.sources[key])}" for key in sorted(used)]
    if measured:
        lines += ["", "[measured]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in measured.items()]
    text = "\n".join(lines) + "\n"
    from_toml(text, "what was to be written")
    return text


def save(path: Path, text: str) -> None:
    """Replace a file whole."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def machine() -> dict[str, object]:
    """When and where: what a reader needs to judge a measurement."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory_gib()} GiB, {platform.system()}",
    }


def _names(profile: Profile) -> list[str]:
    return ["max_model_len", *(f"{title}.{name}" for title in _SECTIONS for name in asdict(getattr(profile, title)))]


def _line(name: str, value: float, title: str | None, provenance: Provenance) -> str:
    key = name if title is None else f"{title}.{name}"
    error = provenance.errors.get(key)
    said = "" if error is None else f", error = {_number(error)}"
    source = json.dumps(provenance.of.get(key, provenance.default))
    return f"{name} = {{ value = {_number(value)}{said}, source = {source} }}"


def _number(value: float) -> str:
    """Four digits are more than any of these numbers is worth."""
    return str(value) if isinstance(value, int) else repr(float(f"{value:.4g}"))


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def measured_of(path: Path) -> dict[str, object]:
    """The `[measured]` table of a profile file: when, where and how it came about, and how well it fits."""
    found: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8")).get("measured", {})
    return found


def sources_of(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """(words by source, source by number) of a profile file."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    of = {"max_model_len": data["max_model_len"]["source"]}
    of |= {f"{title}.{name}": entry["source"] for title in _SECTIONS for name, entry in data[title].items()}
    return dict(data["sources"]), of
