"""Refuse results without usable arrays: those that come after the call, or hide arrays in objects."""

from __future__ import annotations

import inspect

from xbridge.errors import OptionError, UnsupportedArrayError
from xbridge.extend import backend_for


def refuse_async_result(result: object, name: str) -> None:
    """Raise if a result comes later than the call."""
    later = isinstance(result, (map, filter, zip)) or inspect.isgenerator(result)
    if later or (inspect.isawaitable(result) and backend_for(type(result)) is None):  # Dask's are both
        raise async_result_error(name)


def async_result_error(name: str) -> OptionError:
    """Return the error for a function whose results come later than the call."""
    return OptionError.build(
        f"align {name}", "its results come later than it returns", "align_back inside it"
    )


def hidden_arrays_error(what: str, hint: str) -> UnsupportedArrayError:
    """Return the error for arrays in an object that cannot be built again with other arrays."""
    reason = "it cannot be made again with other arrays"
    return UnsupportedArrayError.build(f"convert the arrays in {what}", reason, hint)
