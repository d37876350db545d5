"""The reasons why a conversion makes new memory: a kind for code, a message for users, advice in a record."""

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
"""The kinds whose advice is to convert once, and to keep the result."""

IF_SAME = " (if it stays the same)"
"""Added to the advice to convert once: a result that is kept does not show later writes to the source."""


class CopyReason(NamedTuple):
    """Why a step makes new memory."""

    kind: Kind
    message: str
    """The reason in words."""
    advice: tuple[str, ...] = ()
    """Changes to the program that would make the step unnecessary.

    Advice is about the input, or how often it is converted, never about the options of the call. So a program
    that follows it gets the same values, dtype, device and gradients, and every protection of the contract.
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
