"""Errors that a user can act on, each with the exit code or case status it leads to."""

from __future__ import annotations


class BenchError(Exception):
    """A mistake that the user can mend: one sentence that names what, the value and what is accepted.

    Command-line entry points print it without a traceback and exit with `exit_code`.
    """

    exit_code = 2


class SpecError(BenchError):
    """A suite, case, hostfile or catalogue entry is wrong before anything starts."""


class LaunchError(BenchError):
    """The ranks could not be brought together (port taken, ranks missing, hostfile not honoured)."""


class RecordError(BenchError):
    """A results folder or file cannot be read, or belongs to another run or schema version."""


class UnsupportedCase(BenchError):
    """The case cannot be run by this engine, model or machine; its status becomes `unsupported`."""


class DataError(BenchError):
    """The training data is missing, empty, too small or of the wrong shape."""
