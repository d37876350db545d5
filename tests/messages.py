"""What an error says, to be compared word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def message_of(call: Callable[[], object], error: type[Exception]) -> str:
    """The message of the error that a call raises."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)
