"""`python -m loadtest.demo`: signals and errors become an exit status.

Rule of this room: 0 for a demo that was told to its end, 1 for one that failed, 2 for a wrong command line,
128 + n for one that signal n cut short.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys

from loadtest.demo.options import Options, parse

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the demo; returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        return asyncio.run(run(parse(None, os.environ)))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


async def run(options: Options) -> int:
    """Tell the story until it ends or a signal comes."""
    # Imported late, so that Ctrl-C during the slow imports is as quiet as later.
    from rich.console import Console

    from loadtest.demo.children import DemoError
    from loadtest.demo.story import Story

    story = Story(options, Console())
    telling = asyncio.ensure_future(story.tell())
    got: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not got:
            telling.cancel()
        got.append(number)

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        await telling
    except asyncio.CancelledError:
        if not got:
            raise
        return 0 if story.told else 128 + got[0]
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        for line in error.lines:
            print(f"  | {line}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Nobody reads any more; keep the interpreter from trying once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
