"""Read-only NumPy, a backend for tests: code that writes in place fails on it, as it would with JAX.

Its arrays are NumPy's and cannot be written, and neither can those computed from them. Each function, method
and operator runs on plain read-only views, and its results are made read-only. NumPy's own computation is
unchanged. The memory is shared with NumPy arrays, through which it can still change.
"""

# ruff: noqa: ARG001 -- the protocol documents each verb and its arguments

from __future__ import annotations

from functools import cache, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge.errors import DTypeError
from xbridge.extend import DTYPES, HOST, get_backend
from xbridge.protocol import Unsupported
from xbridge.testing._raw_memory import read_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    from xbridge import Device
    from xbridge.protocol import HostArray

_SPECIAL = ("__getitem__",)
"""Special methods that return arrays; operators are ufuncs."""

_COPIES = (np.copy, np.ndarray.copy, np.ndarray.__copy__, np.ndarray.__deepcopy__)
"""Functions that return a plain writable copy, which its caller may write."""

_AS_THEY_ARE = ("item", "setflags", "tolist", "view")
"""Methods that return no array, or a view of a given type."""


class ReadOnlyArray(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array that cannot be written, and makes no array that can.

    A result that NumPy returns as a scalar is a 0-d array here, as in the array API.

    Parameters
    ----------
    values : array_like
        Of any shape and dtype. The memory of an array is shared; it can still change through that array.

    Notes
    -----
    Every function of `xbridge.array_namespace(x)` returns such arrays. The functions of
    ``array_api_compat.array_namespace(x)`` are NumPy's: results that are computed from `x` are mostly
    read-only, and new arrays are not. Copies are plain NumPy arrays, and writable: ``x.copy()``,
    ``numpy.copy(x)``, and ``xp.asarray(x, copy=True)``.

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
        """Make a read-only view of an array, or of new memory."""
        host = np.asarray(values)
        return (host if host.dtype.hasobject else read_only(host)).view(cls)

    def __array_finalize__(self, source: object) -> None:
        """Make every view read-only; an array without a base is new memory that NumPy still fills."""
        if self.base is not None:
            np.ndarray.setflags(self, write=False)

    def setflags(self, *flags: bool | None, **named: bool | None) -> None:
        """Refuse to make the array writable; `x.flags.writeable = True` calls this too."""
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
        return _run(func, args, kwargs, lambda *args, **kwargs: plainly(func, types, args, kwargs))

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        return _namespace()

    def __reduce__(self) -> tuple[type[Self], tuple[HostArray]]:
        return type(self), (np.asarray(self),)


def _by(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of NumPy's or one of its methods that makes read-only results."""

    @wraps(plain, assigned=("__name__",))  # the examples in its docstring are NumPy's to test
    def called(*args: Any, **options: Any) -> Any:
        return _run(plain, args, options)

    return called


def _run(
    fn: Callable[..., Any],
    args: Iterable[Any],
    options: Mapping[str, Any],
    call: Callable[..., Any] | None = None,
) -> Any:
    """Call a function with plain views, and make its results read-only, except for copies and `out`."""
    result = (call or fn)(*_plain(list(args)), **_plain(dict(options)))
    out = options.get("out")
    filled = out if isinstance(out, tuple) else (out,)
    return result if fn in _COPIES or options.get("copy") is True else _as_readonly(result, filled)


for _name in dir(np.ndarray):
    _found = getattr(np.ndarray, _name)
    _public = not _name.startswith("_") and callable(_found) and _name not in _AS_THEY_ARE
    if _public or _name in _SPECIAL or _found in _COPIES:
        setattr(ReadOnlyArray, _name, _by(_found))


class _ReadOnlyNamespace(ModuleType):
    """A module whose functions return read-only arrays for any arguments."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(f"xbridge.testing.readonly.{module.__name__}", module.__doc__)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """Look up a name, and store the result."""
        found = getattr(self._module, name)
        if isinstance(found, ModuleType):
            found = _ReadOnlyNamespace(found)
        elif callable(found) and not isinstance(found, type):
            found = _by(found)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return dir(self._module)


@cache
def _namespace() -> ModuleType:
    """Return the array API namespace of read-only arrays: that of array-api-compat for NumPy, wrapped."""
    from array_api_compat import numpy as compat  # noqa: PLC0415 -- 14 ms, and not every test needs it

    return _ReadOnlyNamespace(compat)


def _plain(x: Any) -> Any:
    """Replace read-only arrays by plain read-only views, at any depth."""
    if isinstance(x, ReadOnlyArray):
        return x.view(np.ndarray)
    if isinstance(x, (tuple, list)):
        return (list if isinstance(x, list) else tuple)(map(_plain, x))
    if isinstance(x, dict):
        return {key: _plain(value) for key, value in x.items()}
    return x


def _as_readonly(x: Any, filled: tuple[Any, ...]) -> Any:
    """Make results read-only, at any depth; arrays of other subclasses stay unchanged."""
    if type(x) is np.ndarray or isinstance(x, np.generic):
        return x if any(x is one for one in filled) else ReadOnlyArray(x)
    if isinstance(x, (tuple, list)):
        parts = [_as_readonly(part, filled) for part in x]
        return getattr(x, "_make", type(x))(parts)
    return x


# -- the backend ---------------------------------------------------------------------------------

host = get_backend(HOST)

name = "numpy_readonly"
array_types: tuple[type, ...] = (ReadOnlyArray,)
gaps = host.gaps


def to_numpy(x: ReadOnlyArray, /) -> HostArray:
    return x.view(np.ndarray)


def from_numpy(array: HostArray, /) -> ReadOnlyArray:
    return ReadOnlyArray(array)


def namespace(x: ReadOnlyArray, /) -> ModuleType:
    return _namespace()


def copy(x: ReadOnlyArray, /) -> ReadOnlyArray:
    return from_numpy(host.copy(to_numpy(x)))


def unsupported_dtype(dtype: str, device: Device, /) -> Unsupported | None:
    if dtype not in DTYPES:
        return Unsupported(DTypeError, f"{name} has no {dtype}", "")
    return host.unsupported_dtype(dtype, device)


def astype(x: ReadOnlyArray, dtype: str, /) -> ReadOnlyArray:
    return from_numpy(host.astype(to_numpy(x), dtype))
