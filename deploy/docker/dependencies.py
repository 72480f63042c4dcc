"""Writes what the project and some of its extras need, without the project itself: `dependencies.py IN OUT EXTRA…`.

Rule of this room: standard library only; it runs before anything is installed.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def dependencies(pyproject: str, extras: Sequence[str]) -> list[str]:
    """The requirements, one a line. Raises KeyError for an extra that there is not."""
    project = tomllib.loads(pyproject)["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


if __name__ == "__main__":
    source, target, *extras = sys.argv[1:]
    lines = dependencies(Path(source).read_text(encoding="utf-8"), extras)
    Path(target).write_text("\n".join(lines) + "\n", encoding="utf-8")
