"""Find the line of the user's program that asked for a conversion, which records and warnings name."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from types import CodeType
from typing import Any, NamedTuple

from xbridge._core.entry_points import codes
from xbridge._core.tracing import outside_traces

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 -- as code objects have it
_KIT = _PACKAGE + "testing" + os.sep
"""The test kit calls conversions as a user does."""


class CallSite(NamedTuple):
    """A line that asked for a conversion: the attributes of a frame object without its local variables.

    So a record keeps no array alive.
    """

    f_code: CodeType
    f_lineno: int
    f_globals: dict[str, Any]


inherited_call_site: ContextVar[CallSite | None] = ContextVar("xbridge caller", default=None)
"""For a worker thread, the line that asked for its work in the thread that started it."""


@outside_traces
def find_call_site() -> CallSite:
    """Return the line outside of the package that called the innermost entry point on the stack."""
    known = inherited_call_site.get()
    if known:
        return known
    frame = sys._getframe()  # noqa: SLF001 -- `logging` and `warnings` find callers by it too
    while frame.f_back and id(frame.f_code) not in codes:
        frame = frame.f_back
    while frame.f_back and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return CallSite(frame.f_code, frame.f_lineno, frame.f_globals)


def is_ours(file: str) -> bool:
    """Return True for files of this package except the test kit, which calls xbridge as users do."""
    return file.startswith(_PACKAGE) and not file.startswith(_KIT)
