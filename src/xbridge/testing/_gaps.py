"""Promises: what a library may honestly not have, and the mark of the tests that hold it to them.

Whatever else a backend promises, it must keep. One of these it may declare as a gap, in its fact `gaps`, and
then the tests of that promise must fail: they are marked as strict expected failures, so a gap that closes
is noticed, and so is one that was never there. A test skips where it can neither see the promise kept nor
broken, as with a library whose other devices are elsewhere.

Whoever runs the suite reads the mark of a test as ``item.get_closest_marker(MARK).args[0]``, and where that
is a key of the backend's `gaps` adds ``expected_failure(gaps[key])`` to it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from xbridge.errors import XBridgeError

if TYPE_CHECKING:
    from collections.abc import Mapping

MARK = "xbridge_promise"
"""The name of the mark, to be registered by the plugin."""

PROMISES: Mapping[str, str] = MappingProxyType(
    {
        "readonly": "Its arrays can be read-only, and look at memory that may not be written.",
        "host": "Its arrays live in host memory, too.",
        "device": "Its arrays live on other devices than the host, too.",
        "history": "Its operations record history, through which gradients flow.",
        "namespace": "Its arrays have an array API namespace of their own.",
        "sharing": "Its arrays look at dense host memory as it lies, without a copy.",
        "order": "A copy keeps the order in which the axes lie in memory.",
    }
)
"""What each of them means. Anything else that a backend promises has no gaps."""

EXCUSES = ("never", "notyet", "notimpl")
"""With one of these words and a colon, the reason of a gap begins."""


def promise(name: str) -> pytest.MarkDecorator:
    """Mark a test as one that fails where the promise is declared as a gap.

    Parameters
    ----------
    name : str
        A key of `PROMISES`.

    Returns
    -------
    pytest.MarkDecorator
        The mark `xbridge_promise`, with the name as its argument.

    Raises
    ------
    KeyError
        There is no such promise, so no backend could ever declare the gap.

    Examples
    --------
    >>> promise("history").mark.name, promise("history").mark.args
    ('xbridge_promise', ('history',))
    """
    if name not in PROMISES:
        raise KeyError(name)
    mark: pytest.MarkDecorator = getattr(pytest.mark, MARK)
    return mark.with_args(name)


def expected_failure(reason: str) -> pytest.MarkDecorator:
    """The mark of a test whose promise is declared as a gap, for that reason.

    Parameters
    ----------
    reason : str
        What the backend says in `gaps`.

    Returns
    -------
    pytest.MarkDecorator
        A strict `xfail`, for failures that a missing promise can have: a check that does not hold, or a
        refusal of xbridge. Anything else that is raised is a fault.

    Examples
    --------
    >>> expected_failure("never: boxes do not move").mark.kwargs["strict"]
    True
    """
    return pytest.mark.xfail(
        strict=True, reason=reason, raises=(AssertionError, XBridgeError, pytest.fail.Exception)
    )
