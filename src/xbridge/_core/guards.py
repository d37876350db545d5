"""Decide which memory a new array may show, but not write: one rule for the fast path and for plans."""

from __future__ import annotations

from typing import Literal, NamedTuple


class MemoryFacts(NamedTuple):
    """What decides whether writes through another array over the memory could do harm."""

    writable: bool = True
    overlaps: bool = False
    """True if elements may share memory with each other."""
    requires_grad: bool = False
    """True if autograd tracks the array, and may have saved it for the backward pass."""


class Guard(NamedTuple):
    """Why a new array over the memory is read-only."""

    kind: Literal["read_only", "overlap", "requires_grad"]
    message: str


_GUARDS = (
    Guard("read_only", "its memory is read-only"),
    Guard("overlap", "its elements may share memory with each other"),
    Guard("requires_grad", "it requires grad"),
)


def guards(facts: MemoryFacts) -> Guard | None:
    """Return why memory is shared read-only; None if it may be written through a new array too."""
    needed = not facts.writable, facts.overlaps, facts.requires_grad
    return next((guard for guard, need in zip(_GUARDS, needed, strict=True) if need), None)
