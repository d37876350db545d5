"""An array that nobody writes: not it, and nothing that is made from it.

Libraries such as JAX have no other arrays, so code that writes into what it was given, or into what a
function returned, fails there. Here it fails on every machine. Each function, method and operator runs on
plain read-only views, and what comes out is frozen; whatever NumPy does in between, it does as always.
"""

from __future__ import annotations

from functools import cache, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge._host import as_readonly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    from xbridge._core.protocol import HostArray

_SPECIAL = ("__copy__", "__deepcopy__", "__getitem__")
"""Methods with special names that give arrays; operators come in as ufuncs."""

_AS_THEY_ARE = ("item", "setflags", "tolist", "view")
"""Methods that give no array, or one over the same memory, of the type that was asked for."""


class ReadOnlyArray(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array that cannot be written, and makes no array that can.

    What NumPy gives as a scalar is an array without axes here, as the array API has it.

    Parameters
    ----------
    values : array_like
        Of any shape and dtype. The memory of an array is shared; it can still change through that array.

    Notes
    -----
    `xbridge.array_namespace(x)` gives a namespace whose every function makes such arrays.
    ``array_api_compat.array_namespace(x)`` gives the one of NumPy, which does not know of them: what it makes
    of `x` is read-only as a rule, what it creates is not. And ``numpy.array(x)`` is a writable copy, as ever.

    Examples
    --------
    >>> x = ReadOnlyArray([1.0, 2.0])
    >>> x * 2
    ReadOnlyArray([2., 4.])
    >>> x[0] = 3.0
    Traceback (most recent call last):
    ValueError: assignment destination is read-only
    """

    def __new__(cls, values: object) -> Self:
        """Look at an array's memory, or at new memory."""
        host = np.asarray(values)
        return (host if host.dtype.hasobject else as_readonly(host)).view(cls)

    def __array_finalize__(self, source: object) -> None:
        """Freeze every view; what is no view is memory that NumPy has just made, and is about to fill."""
        if self.base is not None:
            np.ndarray.setflags(self, write=False)

    def setflags(self, *flags: bool | None, **named: bool | None) -> None:
        """Refuse to make it writable; `x.flags.writeable = True` comes here as well."""
        if named.get("write", flags[:1] == (True,)):
            raise ValueError("cannot make a read-only array writable; try numpy.array(x, copy=True)")
        super().setflags(*flags, **named)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        return _run(getattr(ufunc, method), inputs, options)

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        plainly = super().__array_function__
        return _run(lambda *args, **kwargs: plainly(func, types, args, kwargs), args, kwargs)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        return namespace()

    def __reduce__(self) -> tuple[type[Self], tuple[HostArray]]:
        return type(self), (np.asarray(self),)


def _frozen_method(name: str) -> Callable[..., Any]:
    """NumPy's method of that name, with frozen results."""
    plain = getattr(np.ndarray, name)

    @wraps(plain, assigned=("__name__",))  # the examples in its docstring are NumPy's to test
    def method(self: ReadOnlyArray, *args: Any, **options: Any) -> Any:
        return _run(plain, (self, *args), options)

    return method


for _name in dir(np.ndarray):
    _public = not _name.startswith("_") and callable(getattr(np.ndarray, _name))
    if (_public and _name not in _AS_THEY_ARE) or _name in _SPECIAL:
        setattr(ReadOnlyArray, _name, _frozen_method(_name))


class _ReadOnlyNamespace(ModuleType):
    """A module whose functions give read-only arrays, whatever they are given."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(f"xbridge.testing.readonly.{module.__name__}", module.__doc__)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """Look a name up once."""
        found = getattr(self._module, name)
        if isinstance(found, ModuleType):
            found = _ReadOnlyNamespace(found)
        elif callable(found) and not isinstance(found, type):
            found = _frozen_function(found)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return dir(self._module)


def _frozen_function(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function with frozen results."""

    @wraps(plain)
    def function(*args: Any, **options: Any) -> Any:
        return _run(plain, args, options)

    return function


@cache
def namespace() -> ModuleType:
    """The array API namespace of read-only arrays: array-api-compat's of NumPy, with frozen results."""
    from array_api_compat import numpy as compat  # noqa: PLC0415 -- 14 ms, and not every test needs it

    return _ReadOnlyNamespace(compat)


def _run(fn: Callable[..., Any], args: Iterable[Any], options: Mapping[str, Any]) -> Any:
    """Call a function with plain views, and freeze what it gives, but for arrays that it was to fill."""
    out = options.get("out")
    filled = out if isinstance(out, tuple) else (out,)
    return _frozen(fn(*_plain(list(args)), **_plain(dict(options))), filled)


def _plain(x: Any) -> Any:
    """What NumPy may work with: read-only views in the place of read-only arrays, however nested."""
    if isinstance(x, ReadOnlyArray):
        return x.view(np.ndarray)
    if isinstance(x, (tuple, list)):
        return (list if isinstance(x, list) else tuple)(map(_plain, x))
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    return x


def _frozen(x: Any, filled: tuple[Any, ...]) -> Any:
    """Results as read-only arrays, however nested; of a subclass with a meaning of its own, as they are."""
    if type(x) is np.ndarray or isinstance(x, np.generic):
        return x if any(x is one for one in filled) else ReadOnlyArray(x)
    if isinstance(x, (tuple, list)):
        parts = [_frozen(part, filled) for part in x]
        return getattr(x, "_make", type(x))(parts)
    return x
