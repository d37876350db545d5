"""Names of dtypes, devices and layouts of a backend.

A name is checked when it is given, so that a misspelt one fails in the line of the test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from xbridge import extend
from xbridge.errors import DeviceError, DTypeError, OptionError, XBridgeError
from xbridge.extend import CPU, DTYPES, category, get_backend
from xbridge.testing.samples.lookup import dtypes_of, samples_of

if TYPE_CHECKING:
    from xbridge import Device
    from xbridge.protocol import Backend

_KINDS = ("bool", "int", "float", "complex")
_FAMILIAR = ("float64", "float32", "int64", "int32", "bool", "complex128", "uint8", "bfloat16")
"""The most readable dtypes, to which examples shrink."""

ORDER = tuple(dict.fromkeys((*_FAMILIAR, *(word for word, it in DTYPES.items() if not it.is_packed))))
"""All dtypes of whole bytes, the most readable first."""


def dtypes(backend: str, *, kinds: Iterable[str] | None = None) -> st.SearchStrategy[str]:
    """Strategy of the canonical names of a backend's dtypes.

    Parameters
    ----------
    backend : str
        Its name.
    kinds : str or iterable of str, optional
        Any of ``"bool"``, ``"int"`` (signed or not), ``"float"`` and ``"complex"``; None means all.

    Returns
    -------
    SearchStrategy of str
        Such as ``"float64"``, to which it shrinks. The dtypes that NumPy has only through ``ml_dtypes`` are
        included if that is installed, for any backend.

    Raises
    ------
    UnknownBackendError, MissingLibraryError
        There is no such backend, or it is not installed.
    OptionError
        There is no such kind, or the backend has no dtype of it.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(dtypes("numpy", kinds="complex"), lambda dtype: True)
    'complex128'
    """
    asked = _KINDS if kinds is None else kinds
    chosen = tuple(asked) if isinstance(asked, Iterable) and not isinstance(asked, str) else (asked,)
    for kind in chosen:
        if kind not in _KINDS:
            raise OptionError.build(
                f"draw dtypes of kind {kind!r}", f"the kinds are {', '.join(_KINDS)}", f"kinds={_KINDS[2]!r}"
            )
    names = [name for name in dtypes_of(get_backend(backend)) if category(name) in chosen]
    if not names:
        raise OptionError.build(
            f"draw dtypes of {backend} with kinds={kinds!r}", "it has none of them", "kinds=None"
        )
    return st.sampled_from(sorted(names, key=ORDER.index))


def devices(backend: str) -> st.SearchStrategy[Device]:
    """Strategy of the devices of a backend that are present, the host first.

    Parameters
    ----------
    backend : str
        Its name.

    Returns
    -------
    SearchStrategy of xbridge.Device
        It shrinks to ``"cpu"``.

    Raises
    ------
    UnknownBackendError, MissingLibraryError
        There is no such backend, or it is not installed.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(devices("numpy"), lambda device: True)
    'cpu'
    """
    return st.sampled_from(get_backend(backend).devices())


def layouts(backend: str) -> st.SearchStrategy[str]:
    """Strategy of the names of the memory layouts that a backend's arrays can have.

    Parameters
    ----------
    backend : str
        Its name.

    Returns
    -------
    SearchStrategy of str
        Such as ``"C"``, ``"reversed"`` or ``"leaf"``. It shrinks to the plainest, which comes first.

    Raises
    ------
    UnknownBackendError, MissingLibraryError
        There is no such backend, or it is not installed.

    Examples
    --------
    >>> from hypothesis import find
    >>> find(layouts("numpy"), lambda layout: layout != "C")
    'Fortran'
    """
    return st.sampled_from(tuple(samples_of(backend).cases))


def read_dtypes(backend: Backend, asked: object) -> str | st.SearchStrategy[str]:
    """Return the name of a dtype, or a strategy of the dtypes of a list that the backend has."""
    if not isinstance(asked, list | tuple):
        return read_dtype(backend, asked)
    if not asked:
        raise OptionError.build(
            f"draw {backend.name} arrays", "dtypes= is an empty list", "dtypes=['float32', 'float64']"
        )
    here = dtypes_of(backend)
    names = [_read_dtype(backend, one) for one in asked]
    found = [name for name in names if name in here]
    for name, one in zip(names, asked, strict=True):
        if name not in (here if not found else DTYPES):
            read_dtype(backend, one)  # raises
    return st.sampled_from(found)


def read_dtype(backend: Backend, dtype: object) -> str:
    """Return the canonical name of a dtype that a backend has."""
    name = _read_dtype(backend, dtype)
    lack = backend.unsupported_dtype(name, CPU) if name in DTYPES else None
    doing = f"draw {backend.name} arrays of {dtype!r}"
    if lack:
        raise lack.error.build(doing, lack.reason, lack.hint.replace("dtype=", "dtypes="))
    if name not in dtypes_of(backend):
        raise DTypeError.build(doing, "that is not a numeric dtype", "dtypes='float32'")
    return name


def _read_dtype(backend: Backend, dtype: object) -> str | None:
    """Read the name of a dtype, as a conversion does."""
    with _plural():
        return extend.check_options((backend,), dtype=dtype).dtype


@contextmanager
def _plural() -> Iterator[None]:
    """Raise errors with the plural names of the options."""
    try:
        yield
    except XBridgeError as error:
        raise type(error)(re.sub("; try (dtype|device)=", r"; try \1s=", str(error))) from error


def read_device(backend: Backend, device: object) -> Device:
    """Return a present device of a backend."""
    home = backend.devices()[0]
    with _plural():
        asked = extend.check_options((backend,), device=device).device
        found = backend.resolve_device(home if asked in (None, CPU) else asked, home)
    if found not in backend.devices():
        raise DeviceError.build(
            f"draw {backend.name} arrays on {found!r}",
            f"the devices here are {', '.join(backend.devices())}",
            "devices='cpu'",
        )
    return found


def read_layout(backend: Backend, layout: object) -> str:
    """Return the name of a layout of a backend's arrays."""
    names = tuple(samples_of(backend.name).cases)
    if not isinstance(layout, str) or layout not in names:
        near = (get_close_matches(str(layout), names, n=1) or names)[0]
        asked = f"draw {backend.name} arrays with layout {layout!r}"
        raise OptionError.build(asked, f"the layouts are {', '.join(names)}", f"layouts={near!r}")
    return layout


def read_shape(_backend: Backend, shape: object) -> tuple[int, ...]:
    """Return a shape; a number means one axis."""
    sides: tuple[Any, ...] = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if not all(type(side) is int and side >= 0 for side in sides):
        raise OptionError.build(
            f"draw arrays of shape {shape!r}", "a side is an integer from 0 on", "shapes=(2, 3)"
        )
    return sides
