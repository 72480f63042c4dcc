"""The settings as flags of a command.

Rule of this room: `settings` says what there is; the commands that take a configuration differ in nothing here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gateway.ops.setting import Setting
from gateway.ops.settings import SETTINGS


def add_flags(parser: argparse.ArgumentParser) -> None:
    """`--config`, and a flag per setting."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; flags and PPD_… variables win over it")
    for setting in SETTINGS:
        parser.add_argument(
            setting.flag,
            dest=setting.key,
            action="append" if setting.repeatable else "store",
            metavar=setting.metavar,
            help=_help(setting),
        )


def _help(setting: Setting) -> str:
    """As argparse wants it: a % is doubled."""
    text = setting.help if setting.default in ((), None) else f"{setting.help} (default {setting.default})"
    return text.replace("%", "%%")


def flags_of(options: argparse.Namespace) -> dict[str, Any]:
    """What was given, by the settings' keys; None where nothing was."""
    return {setting.key: getattr(options, setting.key) for setting in SETTINGS}
