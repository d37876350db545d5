"""Decorators for the functions that users call: they explain mistaken calls and shorten tracebacks.

A call that does not fit the parameters raises a `CallError`, whose message has the call to type. Most
functions get a wrapper for this, the boundary. It costs a second call, so the functions of the fast path have
none: they accept surplus arguments at run time, and check themselves whether there are any.
`inspect.signature` and type checkers see only the parameters that are written down.
"""

from __future__ import annotations

from xbridge._core.tracebacks import shorten
from xbridge._core.tracing import traced_as
from xbridge.errors import CallError, XBridgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

codes: dict[int, CodeType] = {}
"""The code objects of the marked functions, by id, because a compiler makes some that have no hash."""

_ARGS, _KWARGS = 0x04, 0x08
"""The flags of code with ``*args``, and with ``**kwargs``."""

if TYPE_CHECKING:

    def surplus() -> tuple[tuple[object, ...], dict[str, object]]:
        """Return what the caller of an `inner_entry_point` gave beyond its parameters."""
        raise NotImplementedError  # it is never called


def marked(fn: F) -> F:
    """Mark a function as an entry point, so that records can name the line that called it."""
    codes[id(fn.__code__)] = fn.__code__
    return fn


def entry_point(fn: F) -> F:
    """Mark a function, and wrap it in a boundary."""
    # `_wrap_code` gives the boundary the globals of `fn`, so names of this module must be closure variables.
    ours, shorten_it, error_of = XBridgeError, shorten, call_error

    def boundary(*args: Any, **options: Any) -> Any:
        try:
            return fn(*args, **options)
        except ours as error:
            shorten_it(error)
            raise
        except TypeError as error:
            # With a second frame in its traceback, the error comes from inside of `fn`.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise error_of(fn, args, options) from None

    code = boundary.__code__.replace(co_name=fn.__name__, co_qualname=fn.__qualname__)
    return _wrap_code(marked(fn), code, boundary.__closure__)


def inner_entry_point(fn: F) -> F:
    """Mark a function, and add two parameters to it for surplus positional arguments and surplus keywords.

    They are the first two local variables of the function, `more` and `other`, which CPython fills as
    ``*more, **other`` once the flags of the code object say so. For type checkers the function binds them to
    `surplus`, in a branch that never runs. Positional arguments that the caller leaves out are `MISSING`.
    A function with ``*xs`` has no surplus positional arguments, and so only `other`.
    """
    code = fn.__code__
    takes_any = code.co_flags & _ARGS != 0
    first = code.co_argcount + code.co_kwonlyargcount + takes_any
    names = ("more", "other")[takes_any:]
    if code.co_varnames[first : first + len(names)] != names:
        raise TypeError(f"{fn.__name__} does not begin with {' and '.join(names)}")
    made = _wrap_code(fn, code.replace(co_flags=code.co_flags | _ARGS | _KWARGS), None)
    made.__defaults__ = (MISSING,) * code.co_argcount
    made.__kwdefaults__ = fn.__kwdefaults__
    return marked(made)


def _wrap_code(fn: F, code: CodeType, closure: tuple[Any, ...] | None) -> F:
    """Return a function that runs `code` and has the name, the module and the documentation of `fn`."""
    function: Any = type(fn)
    made = function(code, fn.__globals__, fn.__name__, None, closure)
    for word in ("__doc__", "__qualname__", "__annotations__"):
        setattr(made, word, getattr(fn, word))
    vars(made)["__wrapped__"] = fn
    return made  # type: ignore[no-any-return] # it takes what `fn` takes


def _traced_call_error(fn: Callable[..., Any], *_: object, **__: object) -> CallError:
    """Return the error for a mistaken call in compiled code, where `inspect` is not available."""
    reason = f"the arguments are not those of {fn.__name__}"
    return CallError.build("trace this call", reason, "it without the compiler, to read the call to type")


@traced_as(_traced_call_error)
def call_error(
    fn: Callable[..., Any], args: tuple[object, ...], surplus: dict[str, object], **options: object
) -> CallError:
    """Return the error for a call that does not fit the parameters of `fn`. An option of None is left out."""
    from xbridge._core.mistakes import explain_call  # noqa: PLC0415 -- only a mistake needs it

    given = {word: value for word, value in options.items() if value is not None}
    return explain_call(fn, tuple(x for x in args if x is not MISSING), given | surplus)


class _Missing:
    """The class of `MISSING`."""


MISSING: Any = _Missing()
"""The default of the positional parameters of an `inner_entry_point`, which have to be given."""
