"""`ppd-gateway loadtest URL …`.

Rule of this room: arguments in, checked wishes out; what is wrong is one line on stderr and exit status 2, before any
load. Keys come from files or the environment, never from the command line, which others can read.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import uvloop

from loadtest.experiments import sources
from loadtest.experiments.workloads import Workload
from loadtest.live import plots, results, scripts, talks, text
from loadtest.live.book import Book
from loadtest.live.client import Patience
from loadtest.live.endpoint import PATHS, Endpoint, Header, endpoint_of, header_of, key_of, trust
from loadtest.live.errors import LoadtestError
from loadtest.live.report import report
from loadtest.live.results import Result
from loadtest.live.run import Wishes, allow_files, carry_out
from loadtest.live.schedule import Arrivals, Window
from loadtest.live.slo import slo_of

EXIT_NOTHING_WORKED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
SPARE_FILES = 200
MOST_IN_FLIGHT = 20_000

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


def add_command(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `loadtest`; it sets `run`, which takes the options and returns the exit status."""
    parser = subparsers.add_parser(
        "loadtest", help="put load on a live deployment and measure it", allow_abbrev=False, description=_SAYS
    )
    parser.add_argument("url", metavar="URL", help="an OpenAI endpoint: a gateway, a vLLM server, another router")
    parser.add_argument("--against", metavar="URL", help="a second one, B, under the same traffic in the same minutes")
    parser.add_argument("--api", choices=list(PATHS), default="chat", help="(default chat)")
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME[=WEIGHT]", help="may be repeated; default: the only one"
    )
    _add_traffic(parser)
    _add_requests(parser)
    parser.add_argument("--slo", metavar="LIMITS", help="like ttft=500ms,tpot=30ms,e2e=10s: counts turns within it")
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of arrivals, words and assignment (default 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--records", type=Path, metavar="FILE", help="write a JSON line per turn, without text")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write report.md and plots")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run)


_SAYS = """Open-loop multi-turn load: turns are sent when they are due, however slow the answers are, and their latency
counts from then."""


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic")
    group.add_argument(
        "--workload",
        default="synthetic",
        metavar="NAME|FILE",
        help=f"synthetic (default; lengths below), demo, FILE.jsonl, or {sources.HELP}",
    )
    group.add_argument("--turns", type=_count, default=4, metavar="N", help="of a conversation (default 4)")
    group.add_argument("--first-tokens", type=_count, default=1024, metavar="N", help="of turn 1 (default 1024)")
    group.add_argument("--next-tokens", type=_count, default=128, metavar="N", help="of later turns (default 128)")
    group.add_argument(
        "--output-tokens", type=_count, default=128, metavar="N", help="of answers, at most (default 128)"
    )
    group.add_argument(
        "--think", type=_seconds, default=5.0, metavar="TIME", help="from an answer to the next turn (5s)"
    )
    group.add_argument("--same-lengths", action="store_true", help="exactly these lengths, not these on average")
    rate = group.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=_rate, metavar="Q", help="conversations that begin per second (default 1)")
    rate.add_argument("--turn-rate", type=_rate, metavar="Q", help="turns per second, each due at a fixed moment")
    group.add_argument("--open", type=_count, metavar="N", help="with --turn-rate: conversations held at a time")
    group.add_argument("--arrivals", choices=("poisson", "fixed"), default="poisson", help="(default poisson)")
    group.add_argument("--duration", type=_seconds, default=60.0, metavar="TIME", help="measured (default 60s)")
    group.add_argument("--warmup", type=_seconds, default=10.0, metavar="TIME", help="before it, not counted (10s)")
    group.add_argument("--assign", choices=("pairs", "coin"), default="pairs", help="of conversations to A and B")
    group.add_argument(
        "--reuse-prompts", action="store_true", help="same prompts as the run before: caches may be warm"
    )


def _add_requests(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--max-in-flight", type=_count, metavar="N", help="more wait, and their wait counts")
    group.add_argument("--timeout", type=_seconds, default=300.0, metavar="TIME", help="of an answer (default 300s)")
    group.add_argument("--first-token-timeout", type=_seconds, default=60.0, metavar="TIME", help="(default 60s)")
    group.add_argument("--connect-timeout", type=_seconds, default=10.0, metavar="TIME", help="(default 10s)")
    for name, whose in (("", "key for the endpoints"), ("against-", "another key for B")):
        group.add_argument(f"--{name}api-key-file", type=Path, metavar="FILE", help=whose)
        group.add_argument(f"--{name}api-key-env", metavar="VARIABLE", help=f"{whose}, from the environment")
    group.add_argument("-H", "--header", action="append", default=[], metavar="'NAME: VALUE'", help="may be repeated")
    group.add_argument(
        "--against-header", action="append", default=[], metavar="'NAME: VALUE'", help="for B only, may be repeated"
    )
    group.add_argument("--session-header", metavar="NAME", help="send each conversation's name in this header")
    group.add_argument("--body", metavar="JSON", help='further fields of every request, like {"temperature": 0}')
    group.add_argument("--no-usage", action="store_true", help="do not ask for usage; tokens are counted as events")
    group.add_argument("--ca-file", type=Path, metavar="FILE", help="whom to trust for https")
    group.add_argument("--insecure", action="store_true", help="trust any certificate")


def run(options: argparse.Namespace) -> int:
    """Carry it out."""
    try:
        wishes = wishes_of(options)
        allow_files(wishes.max_in_flight)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result, book = runner.run(carry_out(wishes))
        written = _write(options, result, book)
    except LoadtestError as error:
        print(f"ppd-gateway: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("ppd-gateway: interrupted before the load began", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(text.summary(result))
    for path in written:
        print(f"wrote {path}")
    if result.interrupted_s is not None:
        return EXIT_INTERRUPTED
    return 0 if any(arm.groups["all turns"].ok for arm in result.arms) else EXIT_NOTHING_WORKED


def wishes_of(options: argparse.Namespace) -> Wishes:
    """Check everything that needs no server. Raises LoadtestError."""
    headers = [header_of(line) for line in options.header]
    others = [header_of(line) for line in options.against_header]
    if options.against is None and (others or options.against_api_key_file or options.against_api_key_env):
        raise LoadtestError("--against-…: goes with --against")
    if options.session_header is not None:
        header_of(f"{options.session_header}: x")
    return Wishes(
        endpoints=_endpoints(options, headers, others),
        make_source=_source(options),
        arrivals=_arrivals(options),
        window=Window(options.warmup, options.warmup + options.duration),
        api=options.api,
        models=[_model(name) for name in options.model],
        paired=options.assign == "pairs",
        patience=Patience(options.connect_timeout, options.first_token_timeout, options.timeout),
        fields=_fields(options),
        max_in_flight=options.max_in_flight or _room(),
        session_header=options.session_header,
        marked=not options.reuse_prompts,
        slo=None if options.slo is None else slo_of(options.slo),
        seed=options.seed,
        header_names=[name for name, _ in (*headers, *others)],
        shows=not options.quiet,
    )


def _endpoints(options: argparse.Namespace, headers: list[Header], others: list[Header]) -> list[Endpoint]:
    urls = [options.url] if options.against is None else [options.url, options.against]
    tls = None
    if options.ca_file is not None or options.insecure:
        tls = trust(options.ca_file, insecure=options.insecure)
    key = _key("--api-key", options.api_key_file, options.api_key_env)
    other = _key("--against-api-key", options.against_api_key_file, options.against_api_key_env)
    keys = [key, other if other is not None else key]
    sent = [headers, headers + others]
    return [endpoint_of(url, headers=sent[number], key=keys[number], tls=tls) for number, url in enumerate(urls)]


def _key(option: str, path: Path | None, variable: str | None) -> str | None:
    if path is not None and variable is not None:
        raise LoadtestError(f"{option}-file and {option}-env: give one of them")
    if path is not None:
        try:
            return key_of(f"{option}-file {path}", path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise LoadtestError(f"{option}-file {path}: {getattr(error, 'strerror', None) or 'is no text'}") from None
    if variable is not None:
        return key_of(f"{option}-env {variable}", os.environ.get(variable, ""))
    return None


def _source(options: argparse.Namespace) -> talks.MakeSource:
    name: str = options.workload
    listed: talks.Source | None = None
    workload: Workload | None = None
    if name == "demo":
        listed = talks.from_demo(options.turns, max_tokens=options.output_tokens, think_s=options.think)
    elif name.endswith((".jsonl", ".json")) and ":" not in name:
        listed = talks.from_file(Path(name), max_tokens=options.output_tokens, think_s=options.think)
    elif name != "synthetic":
        workload = scripts.named(name)

    def make(tokens_per_word: float) -> talks.Source:
        if listed is not None:
            return listed
        if workload is not None:
            return scripts.Said(workload, options.seed, tokens_per_word)
        return talks.Synthetic(
            turns=options.turns,
            first_tokens=options.first_tokens,
            next_tokens=options.next_tokens,
            output_tokens=options.output_tokens,
            think_s=options.think,
            seed=options.seed,
            tokens_per_word=tokens_per_word,
            fixed=options.same_lengths,
        )

    return make


def _arrivals(options: argparse.Namespace) -> Arrivals:
    poisson = options.arrivals == "poisson"
    if options.turn_rate is None:
        if options.open is not None:
            raise LoadtestError("--open: goes with --turn-rate")
        return Arrivals(1.0 if options.rate is None else options.rate, poisson)
    lanes = options.open or max(1, math.ceil(options.turn_rate * options.think))
    return Arrivals(options.turn_rate, poisson, by_turn=True, lanes=lanes)


def _model(given: str) -> tuple[str, float]:
    name, separator, weight = given.rpartition("=")
    if not separator:
        return given, 1.0
    try:
        share = float(weight)
    except ValueError:
        share = math.nan
    if not name or not 0 < share < math.inf:
        raise LoadtestError(f"--model {given}: must be NAME or NAME=WEIGHT with a weight above 0")
    return name, share


def _fields(options: argparse.Namespace) -> dict[str, Any]:
    fields: dict[str, Any] = {"stream": True} if options.no_usage else dict(talks.STREAMED)
    if options.body is None:
        return fields
    try:
        given = orjson.loads(options.body)
    except orjson.JSONDecodeError as error:
        raise LoadtestError(f"--body: is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise LoadtestError("--body: must be a JSON object")
    ours = sorted({"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "n"} & given.keys())
    if ours:
        raise LoadtestError(f"--body: {', '.join(ours)} cannot be set there")
    return {**given, **fields}


def _room() -> int:
    """As many requests in flight as this system allows open files, up to MOST_IN_FLIGHT."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_IN_FLIGHT if hard == resource.RLIM_INFINITY else max(1, min(MOST_IN_FLIGHT, hard - SPARE_FILES))


def _write(options: argparse.Namespace, result: Result, book: Book) -> list[Path]:
    written = []
    if options.json is not None:
        results.write(options.json, results.json_of(result))
        written.append(options.json)
    if options.records is not None:
        results.write(options.records, results.lines_of(book.records))
        written.append(options.records)
    if options.report is not None:
        path = options.report / "report.md"
        results.write(path, b"")
        pictures: list[tuple[str, str]] = []
        if plots.available():
            pictures = plots.draw(book, result.setup.end_s, options.report)
        else:
            print("ppd-gateway: no plots: pip install 'ppd-gateway[plot]'", file=sys.stderr)
        results.write(path, report(result, pictures).encode())
        written += [path, *(options.report / name for name, _ in pictures)]
    return written


def _number(low: float, kind: str, parse: Callable[[str], float]) -> Callable[[str], Any]:
    def read(given: str) -> float:
        try:
            value = parse(given)
        except ValueError:
            value = math.nan
        if not low <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{given!r} is not {kind}")
        return value

    return read


def _duration(given: str) -> float:
    found = _DURATION.fullmatch(given)
    return float(found[1]) * _UNITS[found[2]] if found else math.nan


_count = _number(1, "a whole number of at least 1", int)
_rate = _number(1e-6, "a rate above 0", float)
_seconds = _number(0.0, "a time like 500ms, 30s or 5m", _duration)
