"""The pages for people, taken apart: links, headings, commands, and what stands in back-quotes.

Rule of this room: reads Markdown as GitHub does, as far as these pages go; knows nothing of what is true.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
    ]
)
_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]\n]*(?:\n[^\]\n]*)?\]\(\s*([^)\s]+)\s*\)")
_CODE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


@dataclass(frozen=True)
class Fence:
    """A block between ``` lines. language: as written, or nothing."""

    language: str
    text: str


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fences(page: Path) -> list[Fence]:
    return [Fence(language, text) for language, text in _FENCE.findall(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Targets of links and pictures."""
    return _LINK.findall(_CODE.sub("", prose(page)).replace("[]", "[x]"))


def codes(page: Path) -> list[str]:
    """What stands in back-quotes, each on one line."""
    return [" ".join(code.split()) for code in _CODE.findall(prose(page))]


def anchors(page: Path) -> set[str]:
    """What a link to a heading may end in, by GitHub's rule."""
    found: dict[str, int] = {}
    for title in re.findall(r"^#{1,6} +(.+?) *#*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        again = found.get(slug, -1) + 1
        found[slug] = again
        if again:
            found[f"{slug}-{again}"] = 0
    return set(found)


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """The words behind `program` wherever a shell block of the page calls it."""
    for fence in fences(page):
        if fence.language in ("sh", "console", "bash"):
            for line in fence.text.replace("\\\n", " ").splitlines():
                yield from calls(line, program)


def calls(line: str, program: str) -> Iterator[list[str]]:
    """The words behind `program` where a command of that line begins with it."""
    found: list[str] | None = None
    last = ";"
    for word in [*_tokens(line), ";"]:
        ends = word[0] in _OPERATORS
        if found is not None and ends:
            if word[0] in "<>" and found and found[-1].isdigit():
                found.pop()  # the 2 of 2>file
            yield found
            found = None
        elif found is not None:
            found.append(word)
        elif word == program and (last[0] in _OPERATORS or last in _BEFORE or "=" in last or last.isdigit()):
            found = []
        last = word


_OPERATORS = frozenset(";&|()<>")
_BEFORE = frozenset({"$", "do", "then", "until", "while", "if", "exec", "sudo"})


def _tokens(line: str) -> list[str]:
    try:
        split = shlex.shlex(line, posix=True, punctuation_chars=True)
        split.whitespace_split = True
        return list(split)
    except ValueError:  # a quotation that goes on in the next line
        return line.split()


def words(text: str) -> list[str]:
    """As a shell splits it; a quotation that ends elsewhere is left as it is."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.replace("'", " ").replace('"', " ").split()
