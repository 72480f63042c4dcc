"""The command line: `pods`, `paper`, `report`.

Rule of this room: words to calls, errors to one line and exit code 2; nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from loadtest.engine.profile import ProfileFileError
from loadtest.fit import paper_command, pods_command, report_command
from loadtest.fit.grid import GridError
from loadtest.fit.stream import PodAnswerError


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fit", description="Fit profiles of the engine model.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (pods_command, paper_command, report_command):
        command.add_command(commands)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except (GridError, ProfileFileError, PodAnswerError, ValueError, OSError) as error:
        print(f"loadtest.fit: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
