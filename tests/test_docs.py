"""What the pages say is there: links, commands, flags, settings, variables, metrics, calls, files."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import io
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.ops.admin.routes import ROUTES
from gateway.ops.cli import _parser
from gateway.ops.layers import ConfigError
from gateway.ops.metrics import Metrics
from gateway.ops.settings import SETTINGS
from tests.docs_pages import PAGES, ROOT, anchors, calls, codes, commands, fences, links, name, prose, words

KEYS = {setting.key for setting in SETTINGS}
TABLES = {key.partition(".")[0] for key in KEYS if "." in key}
OF_VLLM = {
    "--allowed-media-domains",
    "--api-key",
    "--api-server-count",
    "--enable-force-include-usage",
    "--enable-prefix-caching",
    "--enable-prompt-embeds",
    "--enable-prompt-tokens-details",
    "--enable-scale-out",
    "--exclude-tools-when-tool-choice-none",
    "--kv-events-config",
    "--kv-transfer-config",
    "--max-num-batched-tokens",
    "--max-num-seqs",
    "--otlp-traces-endpoint",
    "--scheduling-policy",
    "--ssl-cert-reqs",
}
"""Flags of vLLM that pages name."""
OF_OTHERS = {"--build-arg"}
OF_PROMETHEUS = {"/api/v1/query"}
PLACES = ("gateway", "lut", "loadtest", "deploy", "tests", "docs", ".ci")

everywhere = pytest.mark.parametrize("page", PAGES, ids=name)


@functools.cache
def parser_for(command: str) -> argparse.ArgumentParser:
    """The parser of command lines that begin with that word."""
    return _parser([command])


def parser_of(given: list[str]) -> argparse.ArgumentParser:
    """The parser of the innermost command that the words name."""
    parser = parser_for(given[0] if given else "")
    for word in given:
        actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not actions or word not in actions[0].choices:
            break
        parser = actions[0].choices[word]
    return parser


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


@functools.cache
def all_flags() -> set[str]:
    """Those of every command."""
    found: set[str] = set()
    todo = [parser_for(command) for command in ("", "simulate", "advise", "loadtest", "report", "lut")]
    while todo:
        parser = todo.pop()
        found |= flags_of(parser)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                todo += action.choices.values()
    return found


def refused(given: list[str]) -> str | None:
    """What argparse has against a command line, None for nothing."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            parser_for(given[0] if given else "").parse_args(given)
        except SystemExit as end:
            return None if end.code == 0 else said.getvalue().splitlines()[-1]
        except ConfigError as error:
            return str(error)
    return None


@functools.cache
def metrics() -> set[str]:
    names = {found for found, *_ in Metrics().described()}
    return names | {f"{each}{end}" for each in names for end in ("_bucket", "_sum", "_count")}


@everywhere
def test_a_link_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in links(page):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / target).resolve() if target else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            wrong.append(link)
    assert wrong == []


@everywhere
def test_a_command_can_be_given_like_that(page: Path) -> None:
    """Words that stand for something (FILE, URL) count as they are; behind `…` only flags are looked at."""
    wrong = {}
    for given in commands(page, "ppd-gateway"):
        if "…" in " ".join(given):
            problem = None if {w for w in given if w.startswith("--")} <= flags_of(parser_of(given)) else "unknown flag"
        else:
            problem = refused(given)
        if problem is not None:
            wrong[" ".join(given)] = problem
    assert wrong == {}


@everywhere
def test_a_command_in_a_sentence_exists(page: Path) -> None:
    wrong = []
    for code in codes(page):
        if not code.startswith("ppd-gateway "):
            continue
        given = words(code.removeprefix("ppd-gateway "))
        for word in given[:2]:
            choices = word.split("|")
            upto = given[: given.index(word)]
            actions = [a for a in parser_of(upto)._actions if isinstance(a, argparse._SubParsersAction)]
            if word.startswith("-") or word == "…" or not actions:
                break
            wrong += [f"{code}: {each}" for each in choices if each not in actions[0].choices]
        known = flags_of(parser_of(given))
        wrong += [f"{code}: {word}" for word in given if word.startswith("--") and word.partition("=")[0] not in known]
    assert wrong == []


@everywhere
def test_a_module_or_target_that_is_run_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    modules = set(re.findall(r"python -m ([a-z_][\w.]*[a-z_])", text)) - {"venv", "pip", "build"}
    assert [each for each in modules if importlib.util.find_spec(each) is None] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {each for code in codes(page) for each in re.findall(r"^make ([a-z-]+)", code)}
    assert called <= targets


@everywhere
def test_a_setting_exists(page: Path) -> None:
    """Dotted names whose first part is a table of the configuration, and `name = value`."""
    wrong = []
    for code in codes(page):
        dotted = re.fullmatch(r"([a-z]+\.[a-z_]+)( = .*)?", code)
        if dotted and dotted[1].partition(".")[0] in TABLES and not _is_file(dotted[1]):
            wrong += [code] * (not any(key == dotted[1] or key.startswith(f"{dotted[1]}.") for key in KEYS))
        plain = re.fullmatch(r"([a-z][a-z_]+) = .*", code)
        if plain and not any(key == plain[1] or key.endswith(f".{plain[1]}") for key in KEYS):
            wrong.append(code)
    assert wrong == []


def _is_file(text: str) -> bool:
    return text.endswith((".py", ".md", ".toml", ".json"))


@everywhere
def test_an_example_of_a_configuration_has_known_keys(page: Path) -> None:
    for fence in fences(page):
        if fence.language != "toml" or "[[" in fence.text:
            continue
        try:
            found = tomllib.loads(fence.text)
        except tomllib.TOMLDecodeError as error:
            pytest.fail(f"{error} in:\n{fence.text}")
        keys = set(flat(found))
        if keys & KEYS:  # others are of other files
            assert keys - KEYS == set()


def flat(table: dict[str, Any], before: str = "") -> Iterator[str]:
    """The keys of a TOML document, with dots."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}.")
        else:
            yield before + key


@everywhere
def test_a_flag_or_variable_exists(page: Path) -> None:
    known = all_flags() | OF_VLLM | OF_OTHERS
    flags = {each for code in codes(page) for each in re.findall(r"^(--[a-z][a-z0-9-]+)(?!…)\b", code)}
    assert {flag for flag in flags if flag not in known and not _of_a_bench(flag)} == set()
    variables = set(re.findall(r"\bPPD_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8")))
    assert variables <= {setting.variable for setting in SETTINGS}


def _of_a_bench(flag: str) -> bool:
    """Flags of `python -m loadtest…` that pages explain."""
    return any(f'"{flag}"' in path.read_text(encoding="utf-8") for path in (ROOT / "loadtest").rglob("*.py"))


@everywhere
def test_a_metric_exists(page: Path) -> None:
    if name(page) == "CHANGELOG.md":
        return  # it names metrics by names that they no longer have
    pattern = r"\b((?:ppd|gen_ai_server)_[a-z_]+[a-z])\b(?![….])"
    found = {each for code in codes(page) for each in re.findall(pattern, code)}
    deploy = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "deploy").rglob("*.y*ml"))
    known = metrics() | {"ppd_gateway", "ppd_worker_up"} | set(re.findall(r"\bppd_[a-z_]+", deploy))
    unknown = {each for each in found if not any(m == each or m.startswith(f"{each}_") for m in known)}
    assert unknown == set()


@everywhere
def test_a_call_of_the_admin_api_exists(page: Path) -> None:
    paths = [re.compile(re.sub(r"\\{\w+\\}", "[^/ ]+", re.escape(route.path))) for route in ROUTES]
    called = set(re.findall(r"/api/v1(?:/[a-z_{}]+)+", page.read_text(encoding="utf-8"))) - OF_PROMETHEUS
    assert [each for each in called if not any(path.fullmatch(each) for path in paths)] == []


@everywhere
def test_a_file_that_is_named_exists(page: Path) -> None:
    wrong = []
    for code in codes(page):
        if not re.fullmatch(rf"(?:{'|'.join(PLACES)})/[\w./*-]+", code):
            continue
        if not any(ROOT.glob(code)) and not any(ROOT.glob(f"{code}.py")):
            wrong.append(code)
    assert wrong == []


def test_every_page_is_in_the_index() -> None:
    """docs/README.md leads to each page, or to the folder that it is in."""
    index = ROOT / "docs" / "README.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    missing = [name(page) for page in PAGES if not {page, page.parent} & reached and page not in (index,)]
    assert [each for each in missing if each != "README.md" and not each.startswith("docs/decisions/")] == []


def test_the_pages_speak_of_the_project_alone() -> None:
    for page in PAGES:
        found = re.findall(r"\b(?:issue #?\d+|helper [A-Z]\b|/tmp/brief|TODO|FIXME)", prose(page))
        assert found == [], name(page)


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page: of `one`\n[x](#a-page-of-one) `--nowhere` `canary.nothing`\n"
        "```sh\nA=1 ppd-gateway serve --nowhere 1 2>log &\n```\n"
    )
    assert anchors(page) == {"a-page-of-one"}
    assert links(page) == ["#a-page-of-one"]
    assert codes(page) == ["one", "--nowhere", "canary.nothing"]
    assert list(commands(page, "ppd-gateway")) == [["serve", "--nowhere", "1"]]
    assert list(calls("until ppd-gateway a 'b c' | grep ppd-gateway; do", "ppd-gateway")) == [["a", "b c"]]
    assert refused(["serve", "--nowhere", "1"]) is not None
    assert refused(["canary", "set", "10"]) is None
