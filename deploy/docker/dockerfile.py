"""A Dockerfile as data: stages of instructions, as far as ours needs it.

Rule of this room: exec form only. A `RUN`, `CMD`, `ENTRYPOINT` or `HEALTHCHECK` that needs a shell is an error.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


class DockerfileError(ValueError):
    """The file holds something that cannot be rehearsed."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """word: in capitals. flags: `--from=build` and the like. rest: what follows, variables still in it."""

    word: str
    flags: Mapping[str, str]
    rest: str

    @property
    def argv(self) -> list[str]:
        """The exec form. Raises DockerfileError."""
        try:
            found = json.loads(self.rest)
        except json.JSONDecodeError:
            found = None
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            raise DockerfileError(f"{self.word} {self.rest}: not in exec form, so it needs a shell")
        return found

    def pairs(self, known: Mapping[str, str]) -> dict[str, str]:
        """Of ENV, LABEL, ARG: names and values, variables replaced."""
        words = shlex.split(self.rest)
        return {name: expand(value, known) for name, _, value in (word.partition("=") for word in words)}


@dataclass
class Stage:
    """base: the image it begins with. name: empty for the last, as a rule."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def last(self, word: str) -> Instruction | None:
        """The instruction of that word that counts."""
        found = [one for one in self.instructions if one.word == word]
        return found[-1] if found else None

    def check(self) -> list[str]:
        """The command of HEALTHCHECK."""
        health = self.last("HEALTHCHECK")
        if health is None or not health.rest.startswith("CMD "):
            raise DockerfileError("no HEALTHCHECK with a command")
        return Instruction("HEALTHCHECK", health.flags, health.rest.removeprefix("CMD ")).argv


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """arguments: ARG before the first stage."""

    arguments: Mapping[str, str]
    stages: Sequence[Stage]


def read(path: Path) -> Dockerfile:
    """Parse a Dockerfile. Raises DockerfileError."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for one in _instructions(path.read_text(encoding="utf-8")):
        if one.word == "FROM":
            base, _, name = expand(one.rest, arguments).partition(" AS ")
            stages.append(Stage(base.strip(), name.strip()))
        elif stages:
            stages[-1].instructions.append(one)
        elif one.word == "ARG":
            arguments |= one.pairs(arguments)
        else:
            raise DockerfileError(f"{one.word} before FROM")
    return Dockerfile(arguments, stages)


def expand(text: str, known: Mapping[str, str]) -> str:
    """With `${NAME}` and `$NAME` replaced; what is not known becomes nothing."""
    return _VARIABLE.sub(lambda found: known.get(found[1] or found[2], ""), text)


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    whole = ""
    for line in lines:
        whole += line.rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        word, _, rest = whole.strip().partition(" ")
        flags = {}
        while rest.startswith("--"):
            flag, _, rest = rest.partition(" ")
            name, _, value = flag[2:].partition("=")
            flags[name] = value
        yield Instruction(word.upper(), flags, rest.strip())
        whole = ""
