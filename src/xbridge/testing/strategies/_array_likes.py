"""Strategies of inputs of xbridge: array-likes, whole conversions, and unsupported arrays."""

from __future__ import annotations

from array import array as typed_array
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hypothesis import note
from hypothesis import strategies as st

from xbridge import is_available, known_backends
from xbridge.errors import OptionError
from xbridge.extend import CPU, DTYPES, get_backend
from xbridge.testing.samples.lookup import samples_of
from xbridge.testing.strategies._arrays import arrays, host_arrays
from xbridge.testing.strategies._names import ORDER, dtypes_of

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


class Conversion(NamedTuple):
    """A call of `xbridge.to_backend`."""

    array: Array
    """The source."""
    target: str
    """The name of the target backend."""
    options: dict[str, Any]
    """Keywords with valid values; a combination may be impossible."""


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


def conversions(*, backends: Backends = None, targets: Backends = None) -> st.SearchStrategy[Conversion]:
    """Strategy of calls of `xbridge.to_backend`: an array, a target and keywords.

    Parameters
    ----------
    backends, targets : str or strategy of str, optional
        The sources and the targets; by default every backend that is installed.

    Returns
    -------
    SearchStrategy of Conversion
        Each keyword has a valid value. A combination may be impossible, and then raises an
        `xbridge.XBridgeError`.

    Raises
    ------
    XBridgeError
        As for `arrays`.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(conversions(backends="numpy", targets="numpy"), lambda call: call.options)
    Conversion(array=array(0.), target='numpy', options={'device': None})
    """
    sources = _arrays_of(backends, None)
    return _backends(targets).flatmap(
        lambda target: st.builds(Conversion, sources, st.just(target), _options(target))
    )


def refusals(backend: str) -> st.SearchStrategy[Array]:
    """Strategy of unsupported arrays, whose memory alone does not give their values.

    Parameters
    ----------
    backend : str
        The name of a backend.

    Returns
    -------
    SearchStrategy of array
        Such as masked arrays, or sparse, meta and fake tensors. Their kind is noted in each example.

    Raises
    ------
    UnknownBackendError, MissingLibraryError
        There is no such backend, or it is not installed.
    OptionError
        The test kit has no such arrays of the backend.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(refusals("numpy"), lambda x: x.dtype == "object")
    array([None, 1], dtype=object)
    """
    refused = samples_of(backend).refused
    if not refused:
        raise OptionError.build(
            f"draw unsupported {backend} arrays",
            "the test kit has none",
            f"arrays({backend!r}), or a module of samples in its backend",
        )

    def make(what: str) -> Array:
        note(f"{backend} array: {what}")
        return refused[what]()

    return st.sampled_from(tuple(refused)).map(make)


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


@cache
def _options(target: str) -> st.SearchStrategy[dict[str, Any]]:
    backend = get_backend(target)
    return st.fixed_dictionaries(
        {},
        optional={
            "device": st.sampled_from([None, *backend.devices()]),
            "dtype": st.sampled_from([None, "default", "nearest", *dtypes_of(backend, CPU)]),
            "copy": st.sampled_from([None, True, False]),
            "grad": st.sampled_from([None, "keep", "detach"]),
        },
    )


def _tuples(nested: Any) -> Any:
    """Replace lists by tuples."""
    return tuple(map(_tuples, nested)) if isinstance(nested, list) else nested
