"""Decorators for the functions that users call: they explain mistaken calls and shorten tracebacks.

A function is declared with the parameters that users, `inspect` and type checkers see, and its body plans the
call. What users call is a function around it. Most functions get a boundary, which costs a second call. Those
of the fast path are called through a function that looks the call up in a table, and calls the declared one
only if that declines.

A call that does not fit the parameters raises a `CallError`, whose message has the call to type.

An error has a traceback of the frames of the user's program, and one frame of the package for each call of
it. `XBRIDGE_TRACEBACK=full` in the environment keeps all frames.
"""

from __future__ import annotations

import sys
from os import environ

from xbridge._core.tracing import none_in_traces, traced_as
from xbridge.errors import CallError, XBridgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = __name__.partition(".")[0]
_KIT = f"{_PACKAGE}.testing"
"""The test kit, whose frames stay, because it calls conversions as users do."""

codes: dict[int, CodeType] = {}
"""The code objects of the marked functions, by id, because a compiler makes some that have no hash."""


class _Missing:
    """The class of `MISSING`: not `object`, of which refusals may be cached."""


MISSING: Any = _Missing()
"""What a function of the fast path takes for a positional argument that has to be given, and is not."""


def marked(fn: F) -> F:
    """Mark a function as an entry point, so that records can name the line that called it."""
    codes[id(fn.__code__)] = fn.__code__
    return fn


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


def plan_call(outer: Any, args: tuple[Any, ...], more: tuple[object, ...], /, **options: object) -> Any:
    """Call the function that is declared behind `outer`; raise if there are arguments that it does not have.

    `more` are the surplus arguments by position.
    """
    fn = outer.__wrapped__
    if more or not options.keys() <= fn.__kwdefaults__.keys() or [x for x in args if x is MISSING]:
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


@none_in_traces
def shorten(error: XBridgeError) -> None:
    """Drop the frames inside of the package from an error. Call this where it is caught and raised again.

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
