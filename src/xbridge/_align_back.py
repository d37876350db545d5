"""Align arrays, and convert results back to the library and device of an argument.

The common library and device are those that the caller names, else those of `like`, else those of the first
array. Numbers, lists and the order of the other arrays have no influence.
"""

from __future__ import annotations

from xbridge._core.devices import SHARDED
from xbridge._core.entry_points import entry_point
from xbridge.backends._registry import are_arrays, generation, get, repeat_align
from xbridge.errors import DeviceError, OptionError, XBridgeError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, ParamSpec, TypeVar, overload

    from xbridge._api import Grad
    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array

    P = ParamSpec("P")
    R = TypeVar("R")


class Restore:
    """A function that converts results back to the library and device of an argument. It keeps no arrays."""

    __slots__ = ("_first", "_homes")

    def __init__(self, homes: tuple[tuple[str, Device, str] | None, ...], first: int | None) -> None:
        self._homes = homes
        self._first = first

    @entry_point
    def __call__(self, result: Any, /, to: int | None = None, *, dtype: object = None) -> Any:
        """Convert an array, or a tree of arrays, back.

        Parameters
        ----------
        result : array or tree
            The result. Numbers and other leaves stay unchanged. Containers are those of
            `xbridge.tree.to_backend`.
        to : int, optional
            The index of an argument of `align_back`. By default the array that decided.
        dtype : bool or dtype, optional
            True for the dtype of that argument. Any other value as for `to_backend`.

        Returns
        -------
        array or tree
            In the library and on the device of that argument.

        Raises
        ------
        OptionError
            There is no such argument, or it was a number or a list.
        XBridgeError
            As for `to_backend`.

        Examples
        --------
        >>> import numpy as np, torch
        >>> (a, b), restore = align_back(np.ones(2, "float32"), torch.zeros(2))
        >>> restore(a + b, to=1)
        tensor([1., 1.])
        """
        name, device, kind = self.home(to)
        named = kind if dtype is True else None if dtype is False else dtype
        return _taken(result, name, device=device, dtype=named, copy=None, grad=None)

    def home(self, to: int | None = None) -> tuple[str, Device, str]:
        """Return the backend, device and dtype of an argument that results can go back to."""
        place = self._first if to is None else to
        home = None
        if isinstance(place, int) and not isinstance(place, bool) and -1 < place < len(self._homes):
            home = self._homes[place]
        if home and home[1] == SHARDED:
            raise DeviceError.build(
                f"restore a result to argument {place}",
                "it is on several devices",
                "align_back of its parts",
            )
        if home is None:
            arrays = [i for i, found in enumerate(self._homes) if found]
            raise OptionError.build(
                "restore a result" if to is None else f"restore a result to argument {shown(to)}",
                f"the arguments that were arrays are {arrays}" if arrays else "no argument was an array",
                f"to={arrays[0]}" if arrays else "align_back with an array",
            )
        return home


@entry_point
def align_back(
    *xs: Array,
    like: Array | None = None,
    backend: str | ModuleType | None = None,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> tuple[tuple[Array, ...], Restore]:
    """Bring arrays to one backend and one device, and return a function that converts back.

    Parameters
    ----------
    *xs, like, backend, device, dtype, copy, grad
        As for `align`.

    Returns
    -------
    arrays : tuple
        As from `align`.
    restore : callable
        ``restore(result, to=None, *, dtype=None)`` converts a result, an array or a tree of arrays, to
        the library and the device of the array that decided, or of argument number `to`. With
        ``dtype=True`` it gets the dtype of that argument too, or any `dtype` as for `to_backend`.

    Raises
    ------
    XBridgeError
        As for `align`.

    Examples
    --------
    >>> import numpy as np, torch
    >>> (a, b), restore = align_back(np.ones(2), torch.ones(2), backend="torch")
    >>> restore(torch.add(a, b))
    array([2., 2.])
    """
    keywords = {"device": device, "dtype": dtype, "copy": copy, "grad": grad}
    return _align(xs, like, backend, keywords)


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
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def aligned(
    fn: Callable[P, R] | None = None,
    /,
    *,
    like: Array | None = None,
    backend: str | ModuleType | None = None,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> Any:
    """Decorate a function to take arrays of any libraries, compute in one, and return arrays of the first.

    Parameters
    ----------
    fn : callable
        The function. Only its arguments that are arrays are converted, positional or by keyword, in the
        order of the call; lists, numbers and all other arguments are passed unchanged.
    like, backend, device, dtype, copy, grad
        As for `align`. With neither `like` nor `backend`, the first array decides. ``dtype="nearest"`` and
        ``"default"`` hold for results as well, with the library that they go back to as the target.

    Returns
    -------
    callable
        With the signature of `fn`. Arrays in the result, in containers as for `align_back` too, go back to
        the library and the device of the first array argument, as with `to_backend`. An argument that is
        not an array and is returned stays unchanged, with all its items. A call without arrays is a call
        of `fn`.

    Raises
    ------
    OptionError
        `fn` is not a function; or it is asynchronous or a generator, or returns one. Their results come
        after the call, so they cannot be converted back.
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
    """
    from functools import partial  # noqa: PLC0415 -- `import xbridge` would wait for it

    keywords = {"device": device, "dtype": dtype, "copy": copy, "grad": grad}
    wrap = partial(_aligned, like, backend, keywords)
    return wrap if fn is None else wrap(fn)


def _align(
    xs: tuple[Array, ...],
    like: Array | None,
    backend: str | ModuleType | None,
    keywords: dict[str, Any],
    place: Callable[[int], str] = "xs[{}]".format,
) -> tuple[tuple[Array, ...], Restore]:
    """Align arrays, and return their `Restore`. `place` names the array of an error."""
    from xbridge._engine import verbs  # noqa: PLC0415 -- it imports NumPy
    from xbridge._engine.source import leading_index, resolve_source  # noqa: PLC0415 -- likewise

    begun = generation()
    sources = [resolve_source(x) for x in xs]
    aligned = repeat_align(xs, like, backend, **keywords)
    if aligned is None:
        aligned = verbs.align_sources(sources, place, like, backend, begun=begun, **keywords)
    return aligned, Restore(tuple(map(verbs.home, sources)), leading_index(sources))


def _aligned(
    like: Array | None, backend: str | ModuleType | None, keywords: dict[str, Any], fn: Callable[P, R]
) -> Callable[P, R]:
    from functools import wraps  # noqa: PLC0415 -- as above

    from xbridge._core.dtypes import UNNAMED  # noqa: PLC0415 -- it imports typing

    name = _named(fn)
    dtype = keywords["dtype"]
    narrowing = dtype if isinstance(dtype, str) and dtype in UNNAMED else None

    @wraps(fn)
    @entry_point
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        keys = [key for key, x in given.items() if are_arrays(type(x))]
        if not keys:
            return fn(*args, **kwargs)
        others = [x for key, x in given.items() if key not in keys]
        arrays = tuple(given[key] for key in keys)
        made, restore = _align(arrays, like, backend, keywords, lambda i: f"argument {keys[i]!r} of {name}")
        restore.home()
        given.update(zip(keys, made, strict=True))
        positional: Any = [given.pop(i) for i in range(len(args))]
        result = fn(*positional, **given)
        if any(result is x for x in others):
            return result
        if not are_arrays(type(result)):
            _refuse_late(result, name)
        try:
            return restore(result, dtype=narrowing)
        except XBridgeError as error:
            raise error.at(f"the result of {name}") from error

    return call


def _taken(result: Any, name: str, **keywords: object) -> Any:
    from xbridge._engine.learned import recall  # noqa: PLC0415 -- it imports NumPy

    made = recall(name, result, (str(keywords["device"]), keywords["dtype"], None, None))
    if made is not None:
        return made
    from xbridge.tree.batch import TreeArrays  # noqa: PLC0415 -- it imports NumPy
    from xbridge.tree.leaf import leaf_converter  # noqa: PLC0415 -- likewise

    batch = TreeArrays(result, alone=True)
    if batch.alone and not are_arrays(type(result)):
        return result
    return batch.map(leaf_converter(get(name), keywords))


def _named(fn: Callable[..., object]) -> str:
    """Return the name of a function, or raise if it is not one that returns a result."""
    import inspect  # noqa: PLC0415 -- it takes longer than all else here

    if not callable(fn) or isinstance(fn, staticmethod):
        kind = type(fn).__name__
        later = isinstance(fn, (classmethod, staticmethod))
        hint = f"@{kind} above @aligned" if later else "@aligned(backend='torch')"
        raise OptionError.build(f"align a {kind}", "it is not a function", hint)
    name = str(getattr(fn, "__qualname__", type(fn).__name__))
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise _late(name)
    return name


def _refuse_late(result: object, name: str) -> None:
    import inspect  # noqa: PLC0415 -- as above

    if isinstance(result, (map, filter, zip)) or inspect.isgenerator(result) or inspect.isawaitable(result):
        raise _late(name)


def _late(name: str) -> OptionError:
    return OptionError.build(
        f"align {name}", "its results come later than it returns", "align_back inside it"
    )
