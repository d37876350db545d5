"""Every exception, and the one form of every message.

A refusal is worth as much as a conversion only if it saves the reader a search, so each message says
what was given, what was asked, why it cannot be, and ends with the next thing to type.
Each class also inherits the built-in that a caller would guess, so `except ValueError` works.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self, TypeVar

    T = TypeVar("T")

__all__ = [
    "CastWarning",
    "CopyError",
    "CopyWarning",
    "CrossingWarning",
    "DTypeError",
    "DetachWarning",
    "DeviceError",
    "GradientError",
    "MissingLibraryError",
    "OptionError",
    "PolicyError",
    "TransferWarning",
    "UnknownBackendError",
    "UnsupportedArrayError",
    "ValueLossError",
    "XBridgeError",
]


FOREIGN_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError),
    *(NameError, OSError, RuntimeError, SyntaxError, SystemError, TypeError, ValueError),
)
"""What the code of a library may raise."""


_LONGEST = 200
"""Characters from which on a value does not stand in a message."""


def is_about_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the host or on a device: that passes, for who wants to try with less."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def shown(x: object, write: Callable[[object], str] = repr) -> str:
    """A value for a message: as Python writes it, or its type if that is long or fails."""
    try:
        text = write(x)
    except FOREIGN_ERRORS:
        text = ""
    return text if 0 < len(text) < _LONGEST else f"a {type(x).__name__}"


class XBridgeError(Exception):
    """The base of every error that xbridge raises.

    Attributes
    ----------
    action : str
        What was asked of what, such as ``"read dtype 'f9'"``.
    reason : str
        Why it cannot be done.
    hint : str
        What to type instead.
    """

    action: str = ""
    reason: str = ""
    hint: str = ""
    index: int | None = None
    """The position of the input at which it was raised, if there are several and that is known."""

    @classmethod
    def build(cls, action: str, reason: str, hint: str) -> Self:
        """Make an error, with the one form of a message."""
        error = cls(f"cannot {action}: {reason}; try {hint}")
        error.action, error.reason, error.hint = action, reason, hint
        return error

    def remap_index(self, positions: Sequence[int]) -> None:
        """Translate the index: the inputs so far are those at these positions of all."""
        if self.index is not None:
            self.index = positions[self.index]

    def at(self, place: str) -> Self:
        """Return the same error, of one of several inputs."""
        error = type(self)(f"at {place}: {self}")
        error.action, error.reason, error.hint = self.action, self.reason, self.hint
        return error


class UnknownBackendError(XBridgeError, LookupError):
    """No backend has that name."""


class MissingLibraryError(XBridgeError, ImportError):
    """The library behind a backend is not installed, or cannot be imported."""


class UnsupportedArrayError(XBridgeError, TypeError):
    """Not an array, or an array whose memory cannot be read without losing what it means."""


class DTypeError(XBridgeError, TypeError):
    """The dtype is unknown, or the target has no such dtype, or the cast is not allowed."""


class DeviceError(XBridgeError, ValueError):
    """The device is unknown, absent, or one where the target cannot live."""


class CopyError(XBridgeError, ValueError):
    """`copy=False` was asked and memory cannot be shared."""


class OptionError(XBridgeError, ValueError):
    """An option has a value it cannot take, or a list is ragged."""


class ValueLossError(XBridgeError, OverflowError):
    """A value does not fit the dtype that was not asked for by name."""

    @classmethod
    def narrowing(cls, dtype: str, narrower: str, *, both: bool = True) -> Self:
        """A value that its default dtype cannot hold; the target has both, or the narrower one alone."""
        return cls.build(
            f"turn {dtype} into {narrower} unasked",
            f"a value does not fit {narrower}",
            f"naming one: dtype={dtype!r} or dtype={narrower!r}"
            if both
            else f"naming it: dtype={narrower!r}",
        )


class GradientError(XBridgeError, RuntimeError):
    """History would be lost where it was to be kept, or cannot begin here."""


class PolicyError(XBridgeError, RuntimeError):
    """A conversion would do what a policy forbids."""


class CrossingWarning(UserWarning):
    """A conversion does what a policy warns of."""


class CopyWarning(CrossingWarning):
    """A conversion copies, under `policy(copies="warn")`."""


class TransferWarning(CrossingWarning):
    """A conversion moves bytes between devices, under `policy(transfers="warn")`."""


class DetachWarning(CrossingWarning):
    """A conversion ends a history, under `policy(detaches="warn")`."""


class CastWarning(CrossingWarning):
    """A conversion changes a dtype, under `policy(casts="warn")`."""


class Chained:
    """Whatever anybody's code raises in the block becomes an error of ours, with theirs as its cause.

    Nothing is swallowed, and what does not speak of the array passes: an error of ours, an interrupt, memory
    that ran out, a warning that somebody wants to see as an error.
    """

    def __init__(self, ours: Callable[[Exception], XBridgeError]) -> None:
        self._ours = ours

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise ours from theirs."""
        if isinstance(error, (XBridgeError, Warning)) or (error and is_about_memory(error)):
            return
        if isinstance(error, Exception):
            raise self._ours(error) from error


def index_errors(made: Iterable[T]) -> Iterator[T]:
    """The same. An error says of which it is: how many were made before it."""
    count = 0
    try:
        for one in made:
            yield one
            count += 1
    except XBridgeError as error:
        error.index = count
        raise
