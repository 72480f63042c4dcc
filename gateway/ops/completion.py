"""`ppd-gateway completion bash|zsh|fish`: a completion script, printed from the commands as they are.

Rule of this room: the tree of parsers is the only source; nothing is asked of ppd-gateway while a line is completed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

PROGRAM = "ppd-gateway"
FILES = frozenset({"FILE", "DIR", "PATH", "FOLDER"})
_FILES = "*files*"


@dataclass
class Command:
    """One command, and what may follow it.

    words: sub-commands and fixed arguments, with their help. options: by flag, its help and the values after it (None
    for a flag without one, empty for any). files: a file may follow.
    """

    path: tuple[str, ...]
    words: dict[str, str] = field(default_factory=dict)
    options: dict[str, tuple[str, tuple[str, ...] | None]] = field(default_factory=dict)
    files: bool = False


def commands_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """The command of a parser and all below it."""
    found = Command(path)
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            found.words |= {name: helps.get(name, "") for name in action.choices}
            below += action.choices.items()
        elif action.option_strings:
            for flag in action.option_strings:
                found.options[flag] = (_plain(action), _values(action))
        else:
            values = _values(action) or ()
            found.files |= _FILES in values
            found.words |= {value: "" for value in values if value != _FILES}
    yield found
    for name, inner in below:
        yield from commands_of(inner, (*path, name))


def _values(action: argparse.Action) -> tuple[str, ...] | None:
    if action.nargs == 0:
        return None
    if action.choices is not None:
        return tuple(str(choice) for choice in action.choices)
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return (_FILES,) if metavar in FILES else ("true", "false") if metavar == "BOOL" else ()


def _plain(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split())


def bash(commands: list[Command]) -> str:
    """For bash ≥ 3.2; works without the package bash-completion."""
    walk, after, words = [], [], []
    for command in commands:
        path = " ".join((PROGRAM, *command.path))
        if command.path:
            walk.append(f'"{path}"')
        for flag, (_, values) in command.options.items():
            if values is not None:
                after.append(f'    "{path}|{flag}") {_bash_values(values)}; return ;;')
        files = f"; {_bash_values((_FILES,))}" if command.files else ""
        offered = " ".join([*command.words, *command.options])
        words.append(f'    "{path}") COMPREPLY=($(compgen -W "{offered}" -- "$cur")){files} ;;')
    return "\n".join(
        [
            f"# {PROGRAM} completion bash > /etc/bash_completion.d/{PROGRAM}",
            "_ppd_gateway() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" path=ppd-gateway i',
            "  for ((i = 1; i < COMP_CWORD; i++)); do",
            '    case "$path ${COMP_WORDS[i]}" in',
            f'      {"|".join(walk)}) path="$path ${{COMP_WORDS[i]}}" ;;',
            "    esac",
            "  done",
            '  case "$path|$prev" in',
            *after,
            "  esac",
            '  case "$path" in',
            *words,
            "  esac",
            "}",
            f"complete -F _ppd_gateway {PROGRAM}",
            "",
        ]
    )


def _bash_values(values: tuple[str, ...]) -> str:
    if values == (_FILES,):
        return 'compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$cur"))'
    return f'COMPREPLY=($(compgen -W "{" ".join(values)}" -- "$cur"))'


def zsh(commands: list[Command]) -> str:
    """For zsh with compinit."""
    walk, after, words = [], [], []
    for command in commands:
        path = " ".join((PROGRAM, *command.path))
        if command.path:
            walk.append(f"{_quoted(path)}")
        for flag, (_, values) in command.options.items():
            if values is not None:
                does = "_files" if values == (_FILES,) else f"compadd -- {' '.join(values)}" if values else ":"
                after.append(f"    {_quoted(f'{path}|{flag}')}) {does}; return ;;")
        offered = {**command.words, **{flag: text for flag, (text, _) in command.options.items()}}
        lines = " ".join(_quoted(f"{_escaped(word)}:{text}") for word, text in offered.items())
        files = "; _files" if command.files else ""
        words.append(f"    {_quoted(path)}) offered=({lines}); _describe -t words word offered{files} ;;")
    return "\n".join(
        [
            f"#compdef {PROGRAM}",
            f"# {PROGRAM} completion zsh > a folder of $fpath, as _{PROGRAM}",
            "_ppd_gateway() {",
            "  local at=ppd-gateway word",
            "  local -a offered",
            "  for word in ${words[2,CURRENT-1]}; do",
            '    case "$at $word" in',
            f'      {"|".join(walk)}) at="$at $word" ;;',
            "    esac",
            "  done",
            '  case "$at|${words[CURRENT-1]}" in',
            *after,
            "  esac",
            '  case "$at" in',
            *words,
            "  esac",
            "}",
            f"compdef _ppd_gateway {PROGRAM}",
            "",
        ]
    )


def fish(commands: list[Command]) -> str:
    """For fish ≥ 3.4."""
    lines = [
        f"# {PROGRAM} completion fish > ~/.config/fish/completions/{PROGRAM}.fish",
        "function __ppd_gateway_at",
        "  set -l at",
        "  for word in (commandline -opc)[2..-1]",
        '    if contains -- (string join -- " " $at $word) $__ppd_gateway_commands',
        "      set -a at $word",
        "    end",
        "  end",
        '  test "$(string join -- " " $at)" = "$argv[1]"',
        "end",
        "set -g __ppd_gateway_commands " + " ".join(_quoted(" ".join(c.path)) for c in commands if c.path),
        f"complete -c {PROGRAM} -f",
    ]
    for command in commands:
        here = f"complete -c {PROGRAM} -n {_quoted('__ppd_gateway_at ' + _quoted(' '.join(command.path)))}"
        lines += [f"{here} -a {_quoted(word)} -d {_quoted(text)}" for word, text in command.words.items()]
        if command.files:
            lines.append(f"{here} -F")
        for flag, (text, values) in command.options.items():
            short = "s" if len(flag) == 2 else "l"
            takes = ""
            if values is not None:
                takes = " -r -F" if values == (_FILES,) else f" -x -a {_quoted(' '.join(values))}" if values else " -x"
            lines.append(f"{here} -{short} {flag.lstrip('-')}{takes} -d {_quoted(text)}")
    return "\n".join([*lines, ""])


SHELLS: dict[str, Callable[[list[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "'\\''") + "'"


def _escaped(word: str) -> str:
    """A colon ends the word in zsh's lists."""
    return word.replace(":", "\\:")


def add_command(commands: Any, root: argparse.ArgumentParser) -> None:
    """Mount the command on an argparse sub-parser group. root: the parser with every command."""
    parser = commands.add_parser("completion", help="print a completion script for a shell")
    parser.add_argument("shell", choices=list(SHELLS))
    parser.set_defaults(run=lambda options: _print(options.shell, root))


def _print(shell: str, parser: argparse.ArgumentParser) -> int:
    print(SHELLS[shell](list(commands_of(parser))), end="")
    return 0
