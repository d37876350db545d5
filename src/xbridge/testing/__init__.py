"""The test kit: what array code is tested with, for every library and device at once.

Strategies draw arrays that break things, assertions compare across libraries, the conformance suite holds
a backend to its promises. Nothing is imported before it is asked for, so that no test run pays for a part
that it does not use. But the read-only backend is known by name from here on, whoever asks for it first.
"""

from __future__ import annotations

from importlib import import_module

from xbridge.backends._registry import register_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xbridge.testing.assertions import (
        assert_close,
        assert_independent,
        assert_roundtrip,
        assert_same,
        assert_shares_memory,
        assert_unchanged,
    )

__all__ = [
    "assert_close",
    "assert_independent",
    "assert_roundtrip",
    "assert_same",
    "assert_shares_memory",
    "assert_unchanged",
]


register_backend("numpy_readonly", "xbridge.testing._numpy_readonly", roots=("xbridge",))


def __getattr__(name: str) -> object:
    """Import a part when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("xbridge.testing.assertions"), name)
