"""What an experiment cannot do, in one line for a person."""

from __future__ import annotations

from gateway.ops.layers import ConfigError


class ExperimentError(ConfigError):
    """Names the option, the file or the name that is wrong. `ppd-gateway` prints it and exits with 2."""
