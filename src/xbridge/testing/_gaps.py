"""The mark of the tests that hold a backend to a feature.

A backend may declare a feature of `xbridge.protocol.FEATURES` as a gap. The tests of that feature must
fail then: they are strict expected failures. So a gap that closes is noticed, and so is one that never was. A
test skips if it can see the feature neither kept nor broken, as with a library whose other devices are not in
this machine.

The plugin reads the mark of a test as ``item.get_closest_marker(MARK).args[0]``. If that is a key of the
backend's `gaps`, it adds ``expected_failure(gaps[key])`` to the test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xbridge.errors import XBridgeError
from xbridge.protocol import FEATURES

if TYPE_CHECKING:
    from xbridge.protocol import Gap

MARK = "xbridge_promise"
"""The name of the mark, to be registered by the plugin."""


def promise(name: str) -> pytest.MarkDecorator:
    """Mark a test as one that fails if a feature, a key of `FEATURES`, is declared as a gap."""
    if name not in FEATURES:
        raise KeyError(name)
    mark: pytest.MarkDecorator = getattr(pytest.mark, MARK)
    return mark.with_args(name)


def expected_failure(gap: Gap) -> pytest.MarkDecorator:
    """Return the mark of a test whose feature is declared as a gap.

    A missing feature fails a check or is refused by xbridge. Anything else that is raised is a fault.
    """
    return pytest.mark.xfail(
        strict=True, reason=str(gap), raises=(AssertionError, XBridgeError, pytest.fail.Exception)
    )
