"""Pods from a file that others write.

Rule of this room: a file that is not wholly good changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.core.pods import Role
from gateway.core.settling import Found, Standing
from gateway.ops.checks import url as checked_url
from gateway.ops.watch import WATCH_S, WatchedFiles, reason_of

if TYPE_CHECKING:
    from gateway.ops.discovery.keeper import Ear

KEYS = ("url", "role", "drain", "labels")


def read_pods(path: Path) -> list[Found]:
    """The pods that a file names. Raises OSError, and ValueError with the reason in one line."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from None
    entries = document.get("pods") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ValueError("must be a list of pods, or hold one under the key pods")
    found = [_pod(number, entry) for number, entry in enumerate(entries, 1)]
    urls: set[str] = set()
    for number, each in enumerate(found, 1):
        if each.url in urls:
            raise ValueError(f"pod {number}: {each.url} is named twice")
        urls.add(each.url)
    return found


def _pod(number: int, entry: Any) -> Found:
    if not isinstance(entry, dict):
        raise ValueError(f"pod {number}: must be a table with url and role")
    if unknown := sorted(entry.keys() - set(KEYS)):
        raise ValueError(f"pod {number}: unknown key {unknown[0]!r}")
    labels = entry.get("labels", {})
    if not isinstance(labels, dict):
        raise ValueError(f"pod {number}: labels must be a table")
    role = entry.get("role", labels.get("ppd.role"))
    if role not in tuple(Role):
        raise ValueError(f"pod {number}: role must be one of {', '.join(Role)}")
    drain = entry.get("drain", False)
    if not isinstance(drain, bool):
        raise ValueError(f"pod {number}: drain must be true or false")
    try:
        address = checked_url(entry.get("url"))
    except ValueError as error:
        raise ValueError(f"pod {number}: url: {error}") from None
    return Found(address, Role(role), Standing.UNREADY if drain else Standing.READY)


class FileSource:
    """A JSON or TOML file. It is read when it changes, be it written or put in place by rename."""

    sure_of_absence = True

    def __init__(self, path: Path, watch_s: float = WATCH_S) -> None:
        self.name = f"file:{path}"
        self._path = path
        self._watch_s = watch_s
        self._files: WatchedFiles | None = None

    async def run(self, ear: Ear) -> None:
        """Tell the pods now and after each change."""

        def take() -> str:
            found = read_pods(self._path)
            ear.answer(found)
            return _counted(found)

        self._files = WatchedFiles(self.name, [self._path], take, self._watch_s)
        try:
            take()
        except (OSError, ValueError) as error:
            ear.failed(reason_of(error))
        self._files.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self._files.stop()

    def reload(self) -> None:
        """Read it now."""
        if self._files is not None:
            self._files.reload()


def _counted(found: Iterable[Found]) -> str:
    roles = [each.role for each in found]
    return ", ".join(f"{roles.count(role)} {role}" for role in Role)
