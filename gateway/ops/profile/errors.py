"""Why profiling cannot begin or go on: one line for the operator."""

from __future__ import annotations


class ProfileError(Exception):
    """`str(error)` is one line."""
