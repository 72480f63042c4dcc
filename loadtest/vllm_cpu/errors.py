"""What can go wrong, each with the exit code of the command line.

Rule of this room: exceptions only; the first line of each message says it all.
"""

from __future__ import annotations


class VllmCpuError(Exception):
    """Base of all errors of this package."""

    exit_code = 1


class BuildError(VllmCpuError):
    """A build step failed; the message names the step and its log."""


class PackagesUnreachableError(BuildError):
    """The package index does not answer or lacks what is needed: skip, loudly."""

    exit_code = 3


class EnvironmentMissingError(VllmCpuError):
    """Pods were asked for before the environment was built."""

    exit_code = 4


class PodError(VllmCpuError):
    """A pod ended or did not become healthy in time; the message holds the end of its log."""

    exit_code = 5


class StateError(VllmCpuError):
    """The state directory says otherwise: pods are up already, or the file is from another release."""

    exit_code = 6
