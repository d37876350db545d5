"""Decorators for the functions that users call: they explain mistaken calls and shorten tracebacks.

A function is declared with the parameters that users, `inspect` and type checkers see, and its body plans the
call. What users call is a function around it. Most functions get a boundary, which costs a second call. Those
of the fast path are called through a function that looks the call up in a table, and calls the declared one
only if that declines.

A call that does not fit the parameters raises a `CallError`, whose message has the call to type.
"""

from __future__ import annotations

from xbridge._core.tracing import none_in_traces, traced_as
from xbridge.errors import CallError, XBridgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

codes: dict[int, CodeType] = {}
"""The code objects of the marked functions, by id, because a compiler makes some that have no hash."""


class _Missing:
    """The class of `MISSING`."""


MISSING: Any = _Missing()
"""What a function of the fast path takes for a positional argument that has to be given, and is not."""


def marked(fn: F) -> F:
    """Mark a function as an entry point, so that records can name the line that called it."""
    codes[id(fn.__code__)] = fn.__code__
    return fn


@none_in_traces
def shorten(error: XBridgeError) -> None:
    """Drop the frames inside of the package from an error. Call this where it is caught and raised again."""
    from xbridge._core import tracebacks  # noqa: PLC0415 -- only an error needs it

    tracebacks.shorten(error)


def entry_point(fn: F) -> F:
    """Mark a function, and wrap it in a boundary."""

    def boundary(*args: Any, **options: Any) -> Any:
        try:
            return fn(*args, **options)
        except XBridgeError as error:
            shorten(error)
            raise
        except TypeError as error:
            # With a second frame in its traceback, the error comes from inside of `fn`.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise call_error(fn, args, options) from None

    return _present(boundary, marked(fn))


def after_lookup(look_up: Callable[..., Any]) -> Callable[[F], F]:
    """Have users call `look_up`, which takes any arguments and calls the declared function by `plan_call`."""
    return lambda fn: _present(look_up, fn)


def _present(outer: Callable[..., Any], fn: F) -> F:
    """Present a function to users as the declared one, also in tracebacks."""
    for word in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        setattr(outer, word, getattr(fn, word))
    outer.__code__ = outer.__code__.replace(co_name=fn.__name__, co_qualname=fn.__qualname__)
    vars(outer)["__wrapped__"] = fn
    return marked(outer)  # type: ignore[return-value] # it takes what `fn` takes


def plan_call(
    outer: Any,
    args: tuple[Any, ...],
    more: tuple[object, ...] = (),
    other: dict[str, object] | None = None,
    **options: object,
) -> Any:
    """Call the function that is declared behind `outer`; raise if there are arguments that it does not have.

    `more` and `other` are the surplus arguments, by position and by keyword. A keyword that the function does
    have is an option without a look-up: all calls with it are planned.
    """
    fn = outer.__wrapped__
    is_unknown = other and not other.keys() <= fn.__kwdefaults__.keys()
    if other:
        options = {**options, **other}
    if more or is_unknown or [x for x in args if x is MISSING]:
        raise call_error(fn, (*args, *more), options)
    return fn(*args, **options)


def _traced_call_error(fn: Callable[..., Any], *_: object) -> CallError:
    """Return the error for a mistaken call in compiled code, where `inspect` is not available."""
    reason = f"the arguments are not those of {fn.__name__}"
    return CallError.build("trace this call", reason)


@traced_as(_traced_call_error)
def call_error(fn: Callable[..., Any], args: tuple[object, ...], options: dict[str, object]) -> CallError:
    """Return the error for a call that does not fit the parameters of `fn`."""
    from xbridge._core.mistakes import explain_call  # noqa: PLC0415 -- only a mistake needs it

    return explain_call(fn, tuple(x for x in args if x is not MISSING), options)
