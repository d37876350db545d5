"""Decide which memory a new array may show, but not write: one rule for the fast path and for plans."""

from __future__ import annotations

from typing import Literal, TypeAlias

Guard: TypeAlias = Literal["read_only", "overlap", "requires_grad"]

GUARDS: dict[Guard, str] = {
    "read_only": "its memory is read-only",
    "overlap": "its elements may share memory with each other",
    "requires_grad": "it requires grad",
}
"""Why writes through another array over the memory could do harm.

Autograd may have saved an array that requires grad for the backward pass.
"""


def guard_of(*, writable: bool = True, overlaps: bool = False, requires_grad: bool = False) -> Guard | None:
    """Return why memory is shared read-only; None if it may be written through a new array too."""
    if not writable:
        return "read_only"
    if overlaps:
        return "overlap"
    return "requires_grad" if requires_grad else None
