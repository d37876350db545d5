"""The questions users ask of an array. None reads its memory, and all but one answer for any array."""

from __future__ import annotations

from xbridge.backends._registry import backend_for, by_type, get
from xbridge.errors import UnsupportedArrayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend


def backend_of(x: Array, /) -> str:
    """Name the backend that owns an array.

    Parameters
    ----------
    x : array
        Any array of a registered library, convertible or not, of any shape, dtype and device.

    Returns
    -------
    str
        Such as ``"numpy"``. No memory is read.

    Raises
    ------
    UnsupportedArrayError
        No backend owns the type of `x`.

    Examples
    --------
    >>> import numpy as np
    >>> backend_of(np.zeros(2))
    'numpy'
    """
    try:
        return by_type[type(x)].name
    except KeyError:
        return _owner(x).name


def device_of(x: Array, /) -> Device:
    """Say where an array lives.

    Parameters
    ----------
    x : array
        Any array of a registered library, convertible or not, of any shape and dtype.

    Returns
    -------
    Device
        A string such as ``"cpu"`` or ``"cuda:0"``, with ``.kind`` and ``.index``. No memory is read.

    Raises
    ------
    UnsupportedArrayError
        No backend owns the type of `x`.

    Examples
    --------
    >>> import numpy as np
    >>> device_of(np.zeros(2)) == "cpu"
    True
    """
    return _owner(x).array_info(x).device


def dtype_of(x: Array, /) -> str:
    """Name the dtype of an array.

    Parameters
    ----------
    x : array
        Any array of a registered library, convertible or not, of any shape and device.

    Returns
    -------
    str
        The canonical name, whatever the byte order; the library's own word where there is none. No
        memory is read.

    Raises
    ------
    UnsupportedArrayError
        No backend owns the type of `x`.

    Examples
    --------
    >>> import numpy as np
    >>> dtype_of(np.zeros(2, ">f4"))
    'float32'
    """
    return _owner(x).array_info(x).dtype


def array_namespace(*xs: Array) -> ModuleType:
    """Give the array API namespace of arrays of one backend.

    Parameters
    ----------
    *xs : array or number
        Arrays of one backend, of any shape, dtype and device; Python numbers are passed over.

    Returns
    -------
    module
        array-api-compat's namespace of that backend.

    Raises
    ------
    UnsupportedArrayError
        There is no array among `xs`, or they are of several backends.

    Examples
    --------
    >>> import numpy as np
    >>> array_namespace(np.zeros(2), 1.0).__name__
    'array_api_compat.numpy'
    """
    arrays = [x for x in xs if not is_number(x)]
    names = dict.fromkeys(_owner(x).name for x in arrays)
    if len(names) != 1:
        raise UnsupportedArrayError.build(
            "find one namespace",
            f"the arrays come from {' and '.join(names) or 'nowhere'}",
            "align(*xs) first" if names else "an array",
        )
    return get(*names).namespace(arrays[0])


def shares_memory(a: Array, b: Array, /) -> bool:
    """Say whether two arrays have a byte of memory in common, across libraries.

    Parameters
    ----------
    a, b : array
        As for `to_backend`, of any shape, strides, dtype and device.

    Returns
    -------
    bool
        Exact, not a bound; the work is at most linear in the memory that the two span. No memory is read.

    Raises
    ------
    UnsupportedArrayError
        One of them is no array in memory: sparse, fake, freed.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.zeros(6)
    >>> shares_memory(a[::2], a[2:]), shares_memory(a[::2], a[1::2])
    (True, False)
    """
    from xbridge._engine import verbs  # noqa: PLC0415 -- it imports NumPy

    return verbs.shares_memory(a, b)


def is_number(x: object) -> bool:
    """Whether `x` is a Python number, and no array scalar that passes for one."""
    return isinstance(x, (bool, int, float, complex)) and backend_for(type(x)) is None


def are_arrays(cls: type) -> bool:
    """Whether instances of a class are some backend's arrays, and no strings: NumPy has scalars that are."""
    return backend_for(cls) is not None and not issubclass(cls, (str, bytes))


def _owner(x: Array) -> Backend:
    backend = backend_for(type(x))
    if backend is None:
        raise UnsupportedArrayError.build(
            f"name the backend of a {type(x).__name__}", "no backend owns that type", "asarray(x)"
        )
    return backend
