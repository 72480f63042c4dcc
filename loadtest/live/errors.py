"""Why a load test cannot begin: one line for the operator."""

from __future__ import annotations


class LoadtestError(Exception):
    """`str(error)` is one line and names the option, the file or the endpoint."""
