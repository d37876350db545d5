"""Find the line of the user's program that called for a conversion."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from types import CodeType
from typing import Any, NamedTuple

from xbridge._core.dynamo import not_traced
from xbridge._core.entry_points import codes

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 -- as code objects have it
_KIT = _PACKAGE + "testing" + os.sep
"""The test kit calls conversions as a user does."""


class Caller(NamedTuple):
    """A line that called for a conversion, with the names of a frame, and without its variables."""

    f_code: CodeType
    f_lineno: int
    f_globals: dict[str, Any]


begun_by: ContextVar[Caller | None] = ContextVar("xbridge caller", default=None)
"""The line that called for the work of this thread, if another thread began it."""


@not_traced
def caller() -> Caller:
    """Return the line outside of the package that called the innermost entry point."""
    known = begun_by.get()
    if known:
        return known
    frame = sys._getframe()  # noqa: SLF001 -- the standard library finds callers likewise
    while frame.f_back and id(frame.f_code) not in codes:
        frame = frame.f_back
    while frame.f_back and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return Caller(frame.f_code, frame.f_lineno, frame.f_globals)


def is_ours(file: str) -> bool:
    """Return True if a file is one of the package. Those of the test kit call conversions as a user does."""
    return file.startswith(_PACKAGE) and not file.startswith(_KIT)
