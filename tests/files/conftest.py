"""The command line is a fixture of these tests."""

from shell import cli

__all__ = ["cli"]
