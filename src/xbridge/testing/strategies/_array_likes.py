"""Strategy of array-likes: whatever `xbridge.asarray` takes."""

from __future__ import annotations

from array import array as typed_array
from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis import strategies as st

from xbridge import is_available, known_backends
from xbridge.extend import DTYPES, get_backend
from xbridge.testing.strategies._arrays import arrays, host_arrays
from xbridge.testing.strategies._names import ORDER

if TYPE_CHECKING:
    from xbridge.protocol import Array, HostArray
    from xbridge.testing.strategies._spec import Shapes

    Backends: TypeAlias = st.SearchStrategy[str] | str | None

_COMMON = tuple(name for name in ORDER if not DTYPES[name].is_extended)
"""The dtypes that every exchange protocol has."""

_PYTHONS = ("int64", "float64", "complex128", "bool")
"""The dtypes of Python's own numbers."""

_NUMBERS: st.SearchStrategy[complex] = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.booleans(), st.complex_numbers()
)


class _Exporter:
    """An object that exports an array by one protocol only."""

    def __init__(self, array: HostArray) -> None:
        self._array = array

    def __repr__(self) -> str:
        """Return a form for printed examples."""
        return f"{type(self).__name__}({self._array!r})"


class DLPackOnly(_Exporter):
    """An object with `__dlpack__`."""

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class InterfaceOnly(_Exporter):
    """An object with `__array_interface__`."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._array.__array_interface__


class MethodOnly(_Exporter):
    """An object with `__array__`."""

    def __array__(self, dtype: object = None, copy: object = None) -> HostArray:
        return self._array


def array_likes(*, backends: Backends = None, shapes: Shapes = None) -> st.SearchStrategy[Any]:
    """Strategy of everything that `xbridge.asarray` takes.

    Parameters
    ----------
    backends : str or strategy of str, optional
        Backends whose arrays are included; by default every backend that is installed.
    shapes : tuple of int or int, or strategy, optional
        The shapes of arrays. Numbers are included by default, and for ``()``.

    Returns
    -------
    SearchStrategy
        Python numbers, nested lists and tuples of them, NumPy scalars, arrays, lists of arrays, typed
        buffers, and objects that export an array by one protocol alone. `asarray` accepts all of them.

    Raises
    ------
    XBridgeError
        As for `arrays`.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(array_likes(), lambda x: True)
    0
    >>> find(array_likes(), lambda x: isinstance(x, memoryview)).format
    'd'
    """
    common = st.sampled_from(_COMMON)
    whole = host_arrays(dtypes=common, shapes=shapes, layouts="C", writable=True)
    nested = host_arrays(dtypes=st.sampled_from(_PYTHONS), shapes=shapes).map(lambda x: x.tolist())
    some = _arrays_of(backends, shapes)
    kinds: list[st.SearchStrategy[Any]] = [
        nested,
        nested.map(_tuples),
        some,
        some.map(lambda x: [x, x]),
        some.map(lambda x: ([x],)),
        host_arrays(dtypes="float64", shapes=shapes).map(lambda x: typed_array("d", x.tobytes())),
        whole.map(lambda x: x.data),
        whole.map(DLPackOnly),
        host_arrays(dtypes=common, shapes=shapes).map(InterfaceOnly),
        host_arrays(shapes=shapes).map(MethodOnly),
    ]
    if shapes is None or shapes == ():
        kinds = [_NUMBERS, *kinds, host_arrays(shapes=()).map(lambda x: x[()])]
    return st.one_of(kinds)


def _backends(asked: Backends) -> st.SearchStrategy[str]:
    """Return a strategy of the given names, or of all backends that are installed."""
    if isinstance(asked, st.SearchStrategy):
        return asked
    names = (
        [name for name in known_backends() if is_available(name)]
        if asked is None
        else [get_backend(asked).name]
    )
    return st.sampled_from(names)


def _arrays_of(backends: Backends, shapes: Shapes) -> st.SearchStrategy[Array]:
    made: dict[str, st.SearchStrategy[Array]] = {}

    def known(name: str) -> st.SearchStrategy[Array]:
        if name not in made:
            made[name] = arrays(name, shapes=shapes, requires_grad="any", nan="any")
        return made[name]

    return _backends(backends).flatmap(known)


def _tuples(nested: Any) -> Any:
    """Replace lists by tuples."""
    return tuple(map(_tuples, nested)) if isinstance(nested, list) else nested
