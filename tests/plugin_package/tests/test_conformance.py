"""What every backend promises, but for the gaps that this one declares."""

from xbridge.testing.conformance import *  # noqa: F403 -- the tests
