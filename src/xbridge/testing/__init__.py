"""The test kit: tools to test array code with every library and device.

Strategies draw arrays with edge cases, assertions compare across libraries, and the conformance suite tests
backends. Each part is imported on first use, so that a test run does not pay for the others. The import of
this package registers the read-only backend.
"""

from __future__ import annotations

from importlib import import_module

from xbridge import register_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from xbridge.testing._contract import assert_contract
    from xbridge.testing._contract_tests import contract
    from xbridge.testing._derived import assert_gradients, assert_lazy
    from xbridge.testing._matches import assert_matches_numpy
    from xbridge.testing._pure import assert_pure
    from xbridge.testing.assertions import (
        assert_close,
        assert_derivative,
        assert_independent,
        assert_less,
        assert_roundtrip,
        assert_same,
        assert_shares_memory,
        assert_unchanged,
    )

__all__ = [
    "assert_close",
    "assert_contract",
    "assert_derivative",
    "assert_gradients",
    "assert_independent",
    "assert_lazy",
    "assert_less",
    "assert_matches_numpy",
    "assert_pure",
    "assert_roundtrip",
    "assert_same",
    "assert_shares_memory",
    "assert_unchanged",
    "contract",
]


_MODULES = {
    "assert_contract": "_contract",
    "contract": "_contract_tests",
    "assert_gradients": "_derived",
    "assert_lazy": "_derived",
    "assert_matches_numpy": "_matches",
    "assert_pure": "_pure",
}

register_backend("numpy_readonly", "xbridge.testing._numpy_readonly", roots=("xbridge",))


def __getattr__(name: str) -> object:
    """Import the assertions on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"xbridge.testing.{_MODULES.get(name, 'assertions')}"), name)
