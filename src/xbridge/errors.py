"""Exceptions, and the one form of their messages.

A refusal must save the reader a search. So each message names the input, the request and the reason, and ends
with the next thing to type. Each class also inherits the built-in that a caller would guess, so
`except ValueError` works.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self, TypeVar

    T = TypeVar("T")

__all__ = [
    "CallError",
    "CastWarning",
    "CopyError",
    "CopyWarning",
    "DTypeError",
    "DetachWarning",
    "DeviceError",
    "GradientError",
    "MissingLibraryError",
    "OptionError",
    "PolicyError",
    "PolicyWarning",
    "TransferWarning",
    "UnknownBackendError",
    "UnsupportedArrayError",
    "ValueLossError",
    "XBridgeDeprecationWarning",
    "XBridgeError",
]


FOREIGN_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError),
    *(NameError, OSError, RuntimeError, SyntaxError, SystemError, TypeError, ValueError),
)
"""The exceptions that code of a library is expected to raise. Others are bugs, and are never caught."""


_LONGEST = 200
"""The length from which a message names the type of a value in place of the value."""


def is_about_memory(error: BaseException) -> bool:
    """Return True if memory ran out, on the host or a device.

    Such an error is not wrapped, because programs catch it to retry with less.
    """
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def shown(x: object, write: Callable[[object], str] = repr) -> str:
    """Format a value for a message: as Python writes it, or its type if that is long or fails."""
    try:
        text = write(x)
    except FOREIGN_ERRORS:
        text = ""
    return text if 0 < len(text) < _LONGEST else type_of(x)


def type_of(x: object) -> str:
    """Return the name of the type of an object, with its article."""
    return with_article(type(x).__name__)


def with_article(name: str) -> str:
    """Return a name with its article: "an int8", but "a uint8"."""
    return f"an {name}" if name[:1] in "aeioAEIO" else f"a {name}"


_OF_CALLER = "xbridge of the caller"


def of_caller(error: Exception, note: str) -> Exception:
    """Mark an exception of the caller's code, such as a task, to propagate as it is, with a note."""
    error.add_note(note)
    vars(error)[_OF_CALLER] = True
    return error


class XBridgeError(Exception):
    """The base class of every error that xbridge raises.

    Attributes
    ----------
    action : str
        The operation and its input, such as ``"read dtype 'f9'"``.
    reason : str
        Why the operation is not possible.
    hint : str
        The call to type instead; "" if none is known to give the same values.
    """

    action: str = ""
    reason: str = ""
    hint: str = ""
    index: int | None = None
    """The position of the input that raised it, if there are several inputs and it is known which one did."""

    @classmethod
    def build(cls, action: str, reason: str, hint: str = "") -> Self:
        """Make an error with a message of the common form: the action, the reason, and any call to try."""
        error = cls(f"cannot {action}: {reason}; try {hint}" if hint else f"cannot {action}: {reason}")
        error.action, error.reason, error.hint = action, reason, hint
        return error

    def remap_index(self, positions: Sequence[int]) -> None:
        """Replace the index among some inputs by the position of that input among all of them."""
        if self.index is not None:
            self.index = positions[self.index]

    def at(self, place: str) -> Self:
        """Return the same error with the name of the input that it is about, such as ``xs[1]``."""
        error = type(self)(f"at {place}: {self}")
        error.action, error.reason, error.hint = self.action, self.reason, self.hint
        return error


class UnknownBackendError(XBridgeError, LookupError):
    """No backend has that name."""


class MissingLibraryError(XBridgeError, ImportError):
    """The library behind a backend is not installed, or cannot be imported."""


class UnsupportedArrayError(XBridgeError, TypeError):
    """The input is not an array, or reading its memory would lose its meaning."""


class DTypeError(XBridgeError, TypeError):
    """The dtype is unknown, the target lacks it, or the cast is not allowed."""


class DeviceError(XBridgeError, ValueError):
    """The device is unknown or absent, or the target cannot have arrays there."""


class CopyError(XBridgeError, ValueError):
    """`copy=False` was given, and the memory cannot be shared."""


class OptionError(XBridgeError, ValueError):
    """An option has an invalid value, or a list is ragged."""


class CallError(OptionError, TypeError):
    """The call does not match the function's parameters, such as an option passed by position."""


class ValueLossError(XBridgeError, OverflowError):
    """A value does not fit a dtype that the caller did not name."""

    @classmethod
    def narrowing(cls, dtype: str, narrower: str, *, cure: str | None = None) -> Self:
        """Build the error for a value that `narrower` cannot hold.

        `cure` is the hint for a target that lacks `dtype`, if any.
        """
        action, reason = f"cast {dtype} to {narrower} without loss", f"a value does not fit {narrower}"
        hint = f"naming one: dtype={dtype!r} or dtype={narrower!r}"
        if cure == "":
            hint = f"naming it: dtype={narrower!r}"
        elif cure:
            reason, hint = f"{reason}, and dtype={narrower!r} would change it", cure
        return cls.build(action, reason, hint)


class GradientError(XBridgeError, RuntimeError):
    """A graph or a derivative that was asked for would be lost, or does not exist."""


class PolicyError(XBridgeError, RuntimeError):
    """A conversion does something that a policy forbids."""


class PolicyWarning(UserWarning):
    """A conversion does something that a policy warns about."""


class CopyWarning(PolicyWarning):
    """A conversion copies, under `policy(copies="warn")`."""


class TransferWarning(PolicyWarning):
    """A conversion moves bytes between devices, under `policy(transfers="warn")`."""


class DetachWarning(PolicyWarning):
    """A conversion detaches an array from its graph, under `policy(detaches="warn")`."""


class CastWarning(PolicyWarning):
    """A conversion changes a dtype, under `policy(casts="warn")`."""


class XBridgeDeprecationWarning(DeprecationWarning):
    """A name or an option is deprecated. The message says what to use instead."""


class Chained:
    """A context that turns exceptions of foreign code into an `XBridgeError`, and keeps them as its cause.

    Exceptions that are not about the array propagate unchanged: an `XBridgeError`, an interrupt, exhausted
    memory, a warning that a filter turns into an error, and exceptions of the caller's code (`of_caller`).
    """

    def __init__(self, ours: Callable[[Exception], Exception]) -> None:
        self._ours = ours

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise an `XBridgeError` from the exception."""
        if isinstance(error, (XBridgeError, Warning)) or (error and is_about_memory(error)):
            return
        if isinstance(error, Exception) and _OF_CALLER not in vars(error):
            ours = self._ours(error)
            if ours is not error:
                raise ours from error


def index_errors(made: Iterable[T]) -> Iterator[T]:
    """Yield the items. If the iterator raises an `XBridgeError`, set its `index` to that of the item."""
    count = 0
    try:
        for one in made:
            yield one
            count += 1
    except XBridgeError as error:
        error.index = count
        raise
