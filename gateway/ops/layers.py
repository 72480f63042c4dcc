"""Where settings come from: the file, the PPD_… variables, the flags; each gives (key, value, where it was set).

Rule of this room: an unknown key ends here, in one line that names it and its source.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from gateway.ops.settings import BY_KEY, SETTINGS

_SERVICE_LINK = re.compile(r"PPD_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP).*)?)")
"""Variables that Kubernetes makes up for a Service called "ppd" or "ppd-…"; they are not ours."""


RENAMED = {"shutdown_grace_s": "drain_timeout_s", "PPD_SHUTDOWN_GRACE_S": "PPD_DRAIN_TIMEOUT_S"}


class ConfigError(Exception):
    """One line for the operator: where, which key, what is wrong."""


Layer = Iterator[tuple[str, Any, str]]


def from_file(path: Path | None) -> Layer:
    if path is None:
        return
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for name, value in _flat(document, {table for key in BY_KEY for table in _tables_of(key)}):
        yield _known(name, str(path)), value, str(path)


def _flat(document: Mapping[str, Any], tables: Set[str], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots, out of tables in tables."""
    for name, value in document.items():
        if before + name in tables and isinstance(value, dict):
            yield from _flat(value, tables, f"{before}{name}.")
        else:
            yield before + name, value


def _tables_of(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def from_environment(environment: Mapping[str, str]) -> Layer:
    by_variable = {setting.variable: setting.key for setting in SETTINGS}
    for name, value in environment.items():
        if not name.startswith("PPD_"):
            continue
        if name in by_variable and not (_SERVICE_LINK.fullmatch(name) and value.startswith("tcp://")):
            yield by_variable[name], value, f"environment variable {name}"
        elif not _SERVICE_LINK.fullmatch(name):
            raise ConfigError(f"environment variable {name}: unknown key{_hint(name, by_variable)}")


def from_flags(flags: Mapping[str, Any]) -> Layer:
    for key, value in flags.items():
        if value is not None:
            yield key, value, f"flag {BY_KEY[key].flag}"


def _known(key: str, source: str) -> str:
    if key not in BY_KEY:
        raise ConfigError(f"{source}: {' '.join(key.split())}: unknown key{_hint(key, BY_KEY)}")
    return key


def _hint(name: str, known: Mapping[str, object]) -> str:
    if name in RENAMED:
        return f" (it is now called {RENAMED[name]})"
    import difflib  # for those who mistype only

    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def checked(key: str, value: Any, source: str) -> Any:
    try:
        return BY_KEY[key].check(value)
    except ValueError as error:
        raise ConfigError(f"{source}: {key}: {error}") from None
