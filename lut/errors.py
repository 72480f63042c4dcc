"""The one error of this package.

Rule of this room: whatever is wrong with a file or an argument becomes a `TableError` whose text is one line, begins
with the file and says what is wrong with it.
"""

from pathlib import Path


class TableError(Exception):
    """A table set, raw file or argument that is refused. `str(error)` is one line."""


def refuse(path: Path | str, reason: object) -> TableError:
    """The error that names `path` and, in one line, the reason."""
    return TableError(f"{path}: {' '.join(str(reason).split())}")
