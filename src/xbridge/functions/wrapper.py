"""Decorate a function to take arrays of any libraries, and to keep their graphs.

Python pickles a function by its name. The name of a function that was wrapped without the decorator syntax,
as in ``g = aligned(f)``, is that of `f`. So such a wrapper is an object, which pickles `f` and the options.
"""

from __future__ import annotations

import inspect
import sys
from functools import partial, update_wrapper
from operator import attrgetter
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

from xbridge import asarray, backend_of, device_of, known_backends
from xbridge.errors import OptionError, shown, with_article
from xbridge.extend import HOST, check_options, entry_points, get_backend, is_inexact
from xbridge.functions.numpy import FORMS
from xbridge.functions.rules import Definition, UserDerivative, async_result_error
from xbridge.functions.run import Function, wrap_function
from xbridge.functions.signature import parse_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType
    from typing import ParamSpec, TypeVar, overload

    from xbridge.protocol import Array

    Grad = Literal["keep", "detach"] | None
    P = ParamSpec("P")
    R = TypeVar("R")


if TYPE_CHECKING:

    @overload
    def aligned(fn: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def aligned(
        *,
        like: Array | None = None,
        backend: str | ModuleType | None = None,
        device: object = None,
        dtype: object = None,
        copy: bool | None = None,
        grad: Grad = None,
        order: Literal["C"] | None = None,
        restore: bool = False,
        arrays: str | Collection[str] | None = None,
        vjp: Callable[..., object] | None = None,
        jvp: Callable[..., object] | None = None,
        signature: str | None = None,
        result: Callable[..., object] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


@entry_points.entry_point
def aligned(  # noqa: PLR0913 -- the options of `align`, and what a function has beside them
    fn: Callable[P, R] | None = None,
    /,
    *,
    like: Array | None = None,
    backend: str | ModuleType | None = None,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    order: Literal["C"] | None = None,
    restore: bool = False,
    arrays: str | Collection[str] | None = None,
    vjp: Callable[..., object] | None = None,
    jvp: Callable[..., object] | None = None,
    signature: str | None = None,
    result: Callable[..., object] | None = None,
) -> Any:
    """Decorate a function to take arrays of any library, compute in one, and return arrays of the caller's.

    An array is tracked if it requires grad, or is traced by a transform or a compiler. The result of a
    tracked array is tracked too, under ``torch.func``, ``torch.compile``, ``jax.jit``, ``jax.grad`` and the
    others. A derivative that does not exist is an error when it is asked for.

    Parameters
    ----------
    fn : callable
        The function. Arrays in its arguments are converted, positional or by keyword, and in containers as
        those of `xbridge.tree`. Numbers and all other arguments are passed unchanged. In a call
        with a tracked array they must be hashable, because they are part of a cache key. Arrays in a set, an
        iterator or the keys of a dict are an error, in arguments and in results.
    like, backend, device, dtype, copy, grad
        As for `align`. With neither `like` nor `backend`, the library of a module of a neural network is its
        own, and that of any other function is that of the array that decides: the first that is tracked, else
        the first. ``dtype="nearest"`` and ``"default"`` hold for results as well, with the library that they
        go back to as the target. ``grad="keep"`` raises at once if there is no gradient, and ``"detach"``
        cuts the graph, also that of the result.
    order : {None, "C"}
        "C" for arguments that are contiguous in C order, as for `to_backend`.
    restore : bool
        True to give results of the dtype that `dtype` names back in that of the array that decides, or else
        of the first array of floats or complex numbers. If there is none, they keep the named dtype.
    arrays : str or tuple of str, optional
        Names of parameters that are arrays. Each argument of them becomes one, as by `asarray` with the
        function's library: a number, a list, a Series, a DataFrame or another exporter. None stays None, and
        so does a default. Numbers and lists do not decide. Other parameters get their lists unchanged.
    vjp : callable, optional
        For a function of NumPy: ``vjp(g, y, *args, **kwargs)`` returns one gradient for each argument. `g` is
        the cotangent in the form of the result `y`. A gradient is the adjoint, so ``vdot(g, J @ t)`` equals
        ``vdot(vjp(g), t)`` for complex numbers too. None means that there is no gradient, which is not the
        same as zeros. With `signature`, all arrays have the axes of a batch in front, as for the function:
        the `vjp` of a norm is ``g[..., None] * x / y[..., None]``. If `vjp` is itself
        ``aligned(vjp=...)(f)``, there is a second derivative.
    jvp : callable, optional
        For a function of NumPy: ``jvp(tangents, y, *args, **kwargs)`` returns the tangent of the result.
        `tangents` has one item for each argument, and None for one that is constant. With `signature`, all
        arrays have the axes of a batch in front.
    signature : str, optional
        The core axes of a function that broadcasts over all axes before them, as for `numpy.vectorize`:
        ``"()->()"``, ``"(m,n),(n)->(m)"``. It gives shapes, batches, and the chunks of Dask. `vjp` and `jvp`
        get the axes in front too.
    result : callable, optional
        ``result(*args, **kwargs)`` returns NumPy arrays of the shapes and dtypes of the result, such as
        `numpy.empty_like`. A function of NumPy needs it, or `signature`, in compiled code.

    Returns
    -------
    callable
        With the signature of `fn`. Arrays in its result go back to the library and the device of the array
        that decides, and to NumPy if no argument has an array. An argument without arrays that is returned
        stays the same object. Numbers in the result of a call with a tracked array become arrays too,
        and so have a gradient.

    Raises
    ------
    OptionError
        `fn` is not a function but a class, for instance; or it is asynchronous or a generator, or returns
        one. Their results come after the call, so they cannot be converted back. Or `fn` has no parameter
        of a name in `arrays`. Or a compiler needs shapes that are not declared.
    GradientError
        A derivative is asked for that does not exist.
    XBridgeError
        As for `align`, when the function is called; the message names the argument, or the result.

    Examples
    --------
    >>> import numpy as np, torch
    >>> @aligned(backend="torch")
    ... def softmax(x, dim=-1):
    ...     return torch.softmax(x, dim)
    >>> softmax(np.zeros((1, 2)))
    array([[0.5, 0.5]])
    >>> @aligned(backend="numpy", vjp=lambda g, y, x: g * np.cos(x))
    ... def sine(x):
    ...     return np.sin(x)
    >>> x = torch.zeros(2, requires_grad=True)
    >>> sine(x).sum().backward()
    >>> x.grad
    tensor([1., 1.])
    """
    options = check_options((), device=device, dtype=dtype, copy=copy, grad=grad, order=order)
    library = backend if backend is None or backend in known_backends() else get_backend(backend).name
    if like is not None:
        model = asarray(0, like=like)
        library = library or backend_of(model)
        if device is None and not get_backend(library).host_only:
            options = options._replace(device=device_of(model))
    if options.device is not None and library == HOST:  # other libraries may be imported later
        asarray(0, backend=HOST, device=options.device)
    narrowing = options.dtype if options.dtype in ("nearest", "default") else None
    if restore and (options.dtype is None or narrowing or not is_inexact(options.dtype)):
        reason = "dtype= names no dtype of floats or complex numbers"
        raise OptionError.build("restore dtypes", reason, "dtype='float64', restore=True")
    if result is not None and not callable(result):
        hint = "result=numpy.empty_like"
        raise OptionError.build(f"take result={shown(result)}", "it is not a function", hint)
    shape = None if signature is None else parse_signature(signature)
    restored = options.dtype if restore else None
    given = Definition(_derivative("vjp", vjp), _derivative("jvp", jvp), shape, result, restored, narrowing)

    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        name = _name_of(fn)
        function = Function(fn, name, library or _library_of(fn), options, given, arrays)
        return make_portable(function) if _is_portable(fn) else wrap_function(function)

    return wrap if fn is None else wrap(fn)


def _derivative(how: str, given: Any) -> UserDerivative | None:
    """Return a derivative with its own derivatives, if it is an aligned function."""
    if given is None:
        return None
    if not callable(given):
        raise OptionError.build(f"take {how}={shown(given)}", "it is not a function", FORMS[how])
    own = getattr(given, "__xbridge__", None)
    if isinstance(own, Function) and getattr(given, "__wrapped__", None) is own.fn:
        return UserDerivative(own.fn, own.given.vjp, own.given.jvp)
    return UserDerivative(given)


def _library_of(fn: Callable[..., object]) -> str | None:
    """Return the library of a module of a neural network, or of its method; None for any other function."""
    cls: type = type(getattr(fn, "__self__", fn))
    roots = [str(base.__module__).partition(".")[0] for base in cls.__mro__]
    is_module = hasattr(cls, "named_parameters")
    return next((root for root in roots if root in known_backends()), None) if is_module else None


def _decorator_for(fn: object) -> str:
    """Return the decorator for a library that stands in the place of a function; "" if it is none."""
    word = fn if isinstance(fn, str) else str(getattr(fn, "__name__", "")).partition(".")[0]
    return f"@aligned(backend={word!r})" if word in known_backends() else ""


def _name_of(fn: Callable[..., object]) -> str:
    """Return the name of a function, or raise if it is not one that returns a result."""
    if isinstance(fn, type):
        raise OptionError.build(
            f"align the class {fn.__name__}", "it is not a function", "@aligned above its methods"
        )
    if not callable(fn) or isinstance(fn, staticmethod):
        kind = type(fn).__name__
        wraps_one = isinstance(fn, (classmethod, staticmethod))
        hint = f"@{kind} above @aligned" if wraps_one else _decorator_for(fn)
        raise OptionError.build(f"align {with_article(kind)}", "it is not a function", hint)
    own = (getattr(fn, word, None) for word in ("__qualname__", "__name__"))
    name = next((str(word) for word in own if word), type(fn).__name__)
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise async_result_error(name)
    return name


# -- pickles -------------------------------------------------------------------------------------------------
class Portable(partial[Any]):
    """An aligned function that is not the object of its name, and is pickled with the function.

    It is a `functools.partial`, because that calls the function without a frame of its own.
    """

    __module__: str
    __qualname__: str

    def __get__(self, instance: object, owner: object = None) -> object:
        """Bind it to an object as a method, as a function would be."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        """Return the representation of the function."""
        return repr(self.func)

    def __reduce__(self) -> str | tuple[object, ...]:
        """Pickle it by its name if a module has it under that name, else with the function."""
        by_name = _find_by_name(self) is self
        return self.__qualname__ if by_name else (make_portable, (vars(self)["__xbridge__"],))


def make_portable(function: Function) -> Portable:
    """Return the function that calls an aligned function, as an object that can be pickled."""
    call = wrap_function(function)
    made = Portable(call)
    update_wrapper(made, call)
    vars(made)["__wrapped__"] = function.fn
    return made


def _is_portable(fn: Callable[..., Any]) -> bool:
    """Return True if a wrapper of the function needs `Portable`.

    It does not while the function is being decorated: its name does not exist yet, and will be the wrapper's.
    """
    return not hasattr(fn, "__qualname__") or _find_by_name(fn) is getattr(fn, "__func__", fn)


def _find_by_name(x: Any) -> object:
    """Return the object that the module of a function has under its name; None if there is none."""
    try:
        return attrgetter(x.__qualname__)(sys.modules[x.__module__])
    except (AttributeError, KeyError):
        return None
