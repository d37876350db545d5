"""Shorten tracebacks to the frames of the user's program and one frame of the package for each call of it.

`XBRIDGE_TRACEBACK=full` in the environment keeps all frames.
"""

from __future__ import annotations

import sys
from os import environ

from xbridge.errors import XBridgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

_PACKAGE = __name__.partition(".")[0]
_KIT = f"{_PACKAGE}.testing"
"""The test kit, whose frames stay, because it calls conversions as users do."""


def shorten(error: XBridgeError) -> None:
    """Drop the frames inside of the package from an error.

    An exception of a library stays the cause, with the frames of that library. An `XBridgeError` as cause is
    the same refusal before its place in the input was added, so its frames are merged into the error's.
    """
    trace = error.__traceback__
    if trace is None or environ.get("XBRIDGE_TRACEBACK") == "full":
        return
    kept, chain, cause = [trace, *_find_outer_frames(trace.tb_next)], [error], error.__cause__
    while isinstance(cause, XBridgeError) and cause not in chain:  # `raise error from error` is a circle
        chain.append(cause)
        kept += _find_outer_frames(cause.__traceback__)
        cause = cause.__cause__
    error.__cause__ = cause = None if cause in chain else cause
    _link(kept)
    if cause is not None:
        cause.__traceback__ = _link(_find_outer_frames(cause.__traceback__))


def _find_outer_frames(trace: TracebackType | None) -> list[TracebackType]:
    """Return the frames outside of the package, and the first frame of each call into it.

    The traceback begins inside. Frames of the standard library that the package called count as inside.
    """
    kept, inside = [], True
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        was_inside, inside = inside, _is_inside(module, called_inside=inside)
        if not (inside and was_inside):
            kept.append(trace)
        trace = trace.tb_next
    return kept


def _link(kept: list[TracebackType]) -> TracebackType | None:
    after = None
    for trace in reversed(kept):
        trace.tb_next = after
        after = trace
    return after


def _is_inside(module: str, *, called_inside: bool) -> bool:
    root = module.partition(".")[0]
    if root == _PACKAGE:
        return not module.startswith(_KIT)
    return called_inside and root in sys.stdlib_module_names
