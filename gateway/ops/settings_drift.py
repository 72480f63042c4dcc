"""The settings of drift and of load.

Rule of this room: rows only; what they mean together is in `ops.drift`.
"""

from __future__ import annotations

from gateway.ops.checks import between, boolean, one_of, seconds, text
from gateway.ops.setting import Setting

DRIFT_SETTINGS = (
    Setting(
        "load_aware",
        boolean,
        False,
        "weigh how busy each pod is: in policy ppd's scores, where conversations are placed, and when one moves",
        "BOOL",
    ),
    Setting(
        "drift.mode",
        one_of("off", "watch", "correct"),
        "watch",
        "when the table is off: watch tells (policy ppd), correct also decides by what was measured meanwhile",
        "HOW",
    ),
    Setting("drift.tolerance", between(0.02, 10), 0.25, "slower or faster by this share is no drift", "SHARE"),
    Setting("drift.false_alarms", between(1e-9, 1), 0.01, "false alarms per day, over routes and both latencies", "N"),
    Setting("drift.half_life_s", seconds, 120.0, "of what corrections are made of", "S"),
    Setting(
        "drift.explore",
        between(0, 0.1),
        0.0,
        "in mode correct: share of turns that may take the other route when nothing else measures it",
        "SHARE",
    ),
    Setting(
        "drift.measurements_file",
        text,
        None,
        "file to which what was measured is added, cell by cell, for `ppd-gateway lut learn`; with several workers "
        "each adds its number to the name",
        "FILE",
    ),
    Setting("drift.measurements_interval_s", seconds, 600.0, "between two additions to that file", "S"),
)
