"""Reasons for new memory: a kind for code, a message for readers, advice for a record."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal[
    "asked",
    "byte_order",
    "alignment",
    "strides",
    "read_only",
    "overlap",
    "requires_grad",
    "mutable",
    "compiled",
    "pending",
    "lazy",
    "stack",
    "cast",
    "device",
    "no_sharing",
]

ONCE: frozenset[Kind] = frozenset(("read_only", "mutable", "pending", "lazy", "cast", "device"))
"""The kinds whose advice is to keep one result for many conversions."""


class CopyReason(NamedTuple):
    """Why a step makes new memory."""

    kind: Kind
    message: str
    """The reason in words."""
    advice: tuple[str, ...] = ()
    """Changes that would make the step unnecessary.

    Advice changes the input, or how often it is converted, and not the call. So a result keeps its values,
    dtype, device and gradient, and every protection that the caller asked for or that the contract gives.
    """


_ADVICE: dict[Kind, str] = {
    "byte_order": "native byte order from the start",
    "alignment": "aligned memory",
    "strides": "a dense array, row by row",
    "read_only": "convert it once",
    "overlap": "an array that repeats nothing",
    "requires_grad": "compute it without gradients, if none are needed",
    "mutable": "convert it once",
    "compiled": "convert outside of compiled code",
    "pending": "compute it once",
    "lazy": "compute it once",
    "stack": "one array from the start",
    "cast": "cast it once",
    "device": "keep it where it is, or move it once",
}


def reason(kind: Kind, message: str) -> CopyReason:
    """Return a reason of a kind with its advice; without any, the message is the advice."""
    return CopyReason(kind, message, (_ADVICE.get(kind, message),))


ASKED = CopyReason("asked", "copy=True")
"""The caller asked for new memory."""

ASKED_WRITABLE = CopyReason(
    "asked",
    "writable=True, and a shared array would be read-only",
    ("nothing: writable=True asks for new memory",),
)
"""The caller asked for memory that may be written."""
