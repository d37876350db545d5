"""There and back: bring arrays together, and take results to where the arrays came from.

Who decides where they meet: what is named explicitly, else `like`, else the first array. Numbers and lists
never decide; neither does the order of the other arrays.
"""

from __future__ import annotations

from xbridge._convert import to_backend
from xbridge._look import are_arrays
from xbridge.errors import OptionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar, overload

    from xbridge._convert import Grad
    from xbridge._devices import Device
    from xbridge._protocol import Array

    P = ParamSpec("P")
    R = TypeVar("R")


class Restore:
    """Takes results back to where the arrays given to `align_back` came from. It keeps none of them."""

    __slots__ = ("_homes",)

    def __init__(self, homes: tuple[tuple[str, Device, str] | None, ...]) -> None:
        self._homes = homes

    def __call__(self, result: Any, /, to: int | None = None, *, dtype: bool = False) -> Any:
        """Take an array, or a tree of arrays, back.

        Parameters
        ----------
        result : array or tree
            What was computed. Numbers and other leaves stay as they are; containers need the extra `tree`.
        to : int, optional
            Which argument of `align_back` to go back to; the first array if not given.
        dtype : bool
            Whether the result gets that argument's dtype too.

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
        name, device, kind = self._home(to)
        return _taken(result, name, device=device, dtype=kind if dtype else None)

    def _home(self, to: int | None) -> tuple[str, Device, str]:
        homes = [home for home in self._homes if home] if to is None else self._homes
        try:
            home = homes[to or 0]
        except (IndexError, TypeError):
            home = None
        if home is None:
            arrays = [i for i, found in enumerate(self._homes) if found]
            raise OptionError.because(
                "restore a result" if to is None else f"restore a result to argument {to!r}",
                f"the arguments that were arrays are {arrays}" if arrays else "no argument was an array",
                f"to={arrays[0]}" if arrays else "align_back with an array",
            )
        return home


def align_back(
    *xs: Array,
    like: Array | None = None,
    backend: str | None = None,
    device: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> tuple[tuple[Array, ...], Restore]:
    """Bring arrays to one backend and one device, and get the way back.

    Parameters
    ----------
    *xs, like, backend, device, copy, grad
        As for `align`.

    Returns
    -------
    arrays : tuple
        As from `align`.
    restore : callable
        ``restore(result, to=None, *, dtype=False)`` takes a result, an array or a tree of arrays, to the
        library and the device of the first array, or of argument number `to`, and with ``dtype=True`` to
        its dtype too.

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
    from xbridge import _planned  # noqa: PLC0415 -- it imports NumPy

    aligned = _planned.align(xs, like, backend, device=device, dtype=None, copy=copy, grad=grad)
    return aligned, Restore(tuple(map(_planned.home, xs)))


if TYPE_CHECKING:

    @overload
    def aligned(fn: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def aligned(
        *,
        like: Array | None = None,
        backend: str | None = None,
        device: object = None,
        copy: bool | None = None,
        grad: Grad = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def aligned(
    fn: Callable[P, R] | None = None,
    /,
    *,
    like: Array | None = None,
    backend: str | None = None,
    device: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> Any:
    """Let a function take arrays of any libraries, see them in one, and answer in the first one's.

    Parameters
    ----------
    fn : callable
        The function. Only its arguments that are arrays are converted, positional or by keyword; lists,
        numbers and everything else reach it as they are.
    like, backend, device, copy, grad
        As for `align`. With neither `like` nor `backend`, the first array decides.

    Returns
    -------
    callable
        With the signature of `fn`. Arrays in what it returns, in containers too, go back to the library
        and the device of the first array it was called with. Called without arrays, it is `fn`.

    Raises
    ------
    OptionError
        `fn` is asynchronous or a generator, whose results come when nobody is there to take them back.
    XBridgeError
        As for `align`, when the function is called.

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

    options = {"like": like, "backend": backend, "device": device, "copy": copy, "grad": grad}
    if fn is None:
        return partial(_aligned, options)
    return _aligned(options, fn)


def _aligned(options: dict[str, Any], fn: Callable[P, R]) -> Callable[P, R]:
    from functools import wraps  # noqa: PLC0415 -- as above

    _refuse_late(fn)

    @wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        given = [*args, *kwargs.values()]
        places = [i for i, x in enumerate(given) if are_arrays(type(x))]
        if not places:
            return fn(*args, **kwargs)
        arrays, restore = align_back(*(given[i] for i in places), **options)
        for i, array in zip(places, arrays, strict=True):
            given[i] = array
        seen: Any = given
        return restore(fn(*seen[: len(args)], **dict(zip(kwargs, seen[len(args) :], strict=True))))

    return call


def _taken(result: Any, name: str, device: Device, dtype: str | None) -> Any:
    if are_arrays(type(result)):
        return to_backend(result, name, device=device, dtype=dtype)
    if result is None or isinstance(result, (bool, int, float, complex, str, bytes)):
        return result
    from xbridge import tree  # noqa: PLC0415 -- it needs optree

    return tree.to_backend(result, name, device=device, dtype=dtype)


def _refuse_late(fn: Callable[..., object]) -> None:
    import inspect  # noqa: PLC0415 -- it takes longer than all else here

    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise OptionError.because(
            f"align {fn.__qualname__}",
            "its results come later than it returns",
            "align_back inside it",
        )
