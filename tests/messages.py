"""What an error says, to be compared word for word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from xbridge import is_available
from xbridge._engine.device_import import INDEXED
from xbridge.backends import INDEX

if TYPE_CHECKING:
    from collections.abc import Callable

MISSING = [INDEX[name].install for name in INDEXED if not is_available(name)]
NO_IMPORTER = f", or {MISSING[0]} where that device is" if MISSING else ""
"""What else there is to try, where nobody can look at the memory of a device."""


def stable_id(given: object) -> str:
    """The representation of an object without its address, which differs between processes."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(given))


def message_of(call: Callable[[], object], error: type[Exception]) -> str:
    """The message of the error that a call raises."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)
