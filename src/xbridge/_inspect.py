"""Questions about arrays and conversions. None reads an element or converts an array."""

# The questions about one array look up its type inline, because a call of a helper would take a third of
# their time. For the same reason a mistaken call of them raises Python's own error.

from __future__ import annotations

from xbridge._core.entry_points import entry_point
from xbridge._registry.call_cache import cache_version, lookup_refusal
from xbridge._registry.registry import backend_for, by_type, get, is_number
from xbridge.errors import OptionError, UnsupportedArrayError, shown, type_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, Literal, TypeVar, overload

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend, Grad
    from xbridge._plan.steps import Plan
    from xbridge.functions.explain import CallPlan

    T = TypeVar("T")

_RAISE: object = object()
"""The default of an argument that stands for an error."""


def is_array(x: object, /) -> bool:
    """Return whether `x` is an array of a registered library, convertible or not.

    The scalars of NumPy are; numbers, lists, data frames and other exporters are not. Nothing is imported but
    the backend of the library that made `x`, and no memory is read.

    Examples
    --------
    >>> import numpy as np
    >>> is_array(np.zeros(2)), is_array([0.0, 0.0]), is_array("text")
    (True, False, False)
    """
    return backend_for(type(x)) is not None


if TYPE_CHECKING:

    @overload
    def backend_of(x: Array, /) -> str: ...
    @overload
    def backend_of(x: object, /, *, default: T) -> str | T: ...


def backend_of(x: object, /, *, default: object = _RAISE) -> object:
    """Name the backend that owns an array.

    Parameters
    ----------
    x : array
        Any array of a registered library, convertible or not, of any shape, dtype and device.
    default : object, optional
        What is returned if `x` is not an array of a known library. Without it, that is an error.

    Returns
    -------
    str
        Such as ``"numpy"``, or `default`. No memory is read.

    Raises
    ------
    UnsupportedArrayError
        `x` is not an array of a known library, and there is no `default`.

    Examples
    --------
    >>> import numpy as np
    >>> backend_of(np.zeros(2)), backend_of(3, default=None)
    ('numpy', None)
    """
    try:
        return by_type[type(x)].name
    except KeyError:
        if default is _RAISE:
            return _owner(x, "backend_of").name
        backend = backend_for(type(x))
        return default if backend is None else backend.name


def device_of(x: Array, /) -> Device:
    """Return the device of an array.

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
        `x` is not an array of a known library.

    Examples
    --------
    >>> import numpy as np
    >>> device_of(np.zeros(2)) == "cpu"
    True
    """
    try:
        backend = by_type[type(x)]
    except KeyError:
        backend = _owner(x, "device_of")
    return backend.device_of(x)


def native_device(x: Array, /) -> Any:
    """Return the device of an array as an object of its own library.

    Parameters
    ----------
    x : array
        Any array of a registered library, convertible or not, of any shape and dtype.

    Returns
    -------
    device
        The object that functions of `array_namespace` take as ``device``, such as a ``torch.device``. None,
        which they take too, for an array whose library does not say: one of Dask, or a tracer of JAX.

    Raises
    ------
    UnsupportedArrayError
        `x` is not an array of a known library.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.ones(2)
    >>> array_namespace(x).zeros(2, device=native_device(x))
    array([0., 0.])
    """
    if type(x) not in by_type:
        _owner(x, "native_device")
    return getattr(x, "device", None)


def dtype_of(x: Array, /) -> str:
    """Name the dtype of an array.

    Parameters
    ----------
    x : array
        Any array of a registered library, convertible or not, of any shape and device.

    Returns
    -------
    str
        The canonical name, for any byte order, or the library's own name if there is none. No memory is
        read.

    Raises
    ------
    UnsupportedArrayError
        `x` is not an array of a known library.

    Examples
    --------
    >>> import numpy as np
    >>> dtype_of(np.zeros(2, ">f4"))
    'float32'
    """
    try:
        backend = by_type[type(x)]
    except KeyError:
        backend = _owner(x, "dtype_of")
    return backend.dtype_of(x)


@entry_point
def array_namespace(*xs: Array) -> ModuleType:
    """Return the array API namespace of arrays of one backend.

    Parameters
    ----------
    *xs : array or number
        Arrays of one backend, of any shape, dtype and device. Python numbers and None are passed over.

    Returns
    -------
    module
        array-api-compat's namespace of that backend, or the library's own.

    Raises
    ------
    UnsupportedArrayError
        There is no array among `xs`, they are of several backends, or one is masked.

    Notes
    -----
    A function of the standard may be missing or limited in a library:

    - JAX: arrays cannot be written, and the 64-bit dtypes need ``jax_enable_x64``.
    - Dask: there is no ``take_along_axis``, ``broadcast_shapes`` or ``from_dlpack``, and most of ``linalg``
      is missing. An FFT needs one chunk along its axis. A shape that depends on values is NaN until the
      array is computed.

    Examples
    --------
    >>> import numpy as np
    >>> array_namespace(np.zeros(2), 1.0).__name__
    'array_api_compat.numpy'
    """
    arrays = [x for x in xs if x is not None and not is_number(x)]
    names = dict.fromkeys(_plain_owner(x).name for x in arrays)
    if len(names) != 1:
        reason = f"the arrays come from {' and '.join(names)}" if names else "no argument is an array"
        hint = "align(*xs) first" if names else "array_namespace(asarray(x)), which is NumPy's"
        raise UnsupportedArrayError.build("find one namespace", reason, hint)
    return get(*names).namespace(arrays[0])


@entry_point
def shares_memory(a: Array, b: Array, /) -> bool:
    """Return True if two arrays have a byte of memory in common, across libraries.

    Parameters
    ----------
    a, b : array
        As for `to_backend`, of any shape, strides, dtype and device.

    Returns
    -------
    bool
        Exact, not a bound, as of `numpy.shares_memory`. No memory is read. It may take long for
        arrays of many interleaved axes.

    Raises
    ------
    UnsupportedArrayError
        One of them is not an array in memory: sparse, fake, freed.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.zeros(6)
    >>> shares_memory(a[::2], a[2:]), shares_memory(a[::2], a[1::2])
    (True, False)
    """
    from xbridge._engine import verbs  # noqa: PLC0415 -- it imports NumPy

    return verbs.shares_memory(a, b)


if TYPE_CHECKING:

    @overload
    def explain(
        x: Array,
        /,
        backend: str | ModuleType,
        *,
        device: object = None,
        dtype: object = None,
        copy: bool | None = None,
        grad: Grad = None,
        requires_grad: bool | None = None,
        writable: bool | None = None,
        order: Literal["C"] | None = None,
    ) -> Plan: ...
    @overload
    def explain(fn: Callable[..., object], x: object, /, *args: object, **kwargs: object) -> CallPlan: ...


@entry_point  # type: ignore[misc] # a function may have arguments of any names
def explain(  # noqa: PLR0913 -- the options of all conversions
    x: Any,
    /,
    backend: Any,
    *args: object,
    device: object = None,
    dtype: object = None,
    copy: Any = None,
    grad: Any = None,
    requires_grad: Any = None,
    writable: Any = None,
    order: Any = None,
    **kwargs: object,
) -> Any:
    """Plan a conversion, or a call of an aligned function, without running it.

    Parameters
    ----------
    x : array or callable
        As for `to_backend`. None of its elements is read. Or a function that `aligned` made.
    backend : str or module
        The target library. For a function, this and all others are its arguments.
    *args, **kwargs
        The other arguments of a function.
    device, dtype, copy, grad, requires_grad, order
        As for `to_backend` and `asarray`.
    writable : bool, optional
        As for `to_numpy`, which alone has it.

    Returns
    -------
    Plan or CallPlan
        The plan that the conversion would run, a frozen value: the facts of both ends, the steps in
        order, each with its bytes and its reason, and the verdict. A conversion that would raise an error
        has a plan as well, and its `error` is that error. For a function: the plan of each array argument,
        and where the derivative, batches and shapes come from.

    Raises
    ------
    UnknownBackendError, MissingLibraryError, OptionError
        There is no such target or option, so there is nothing to plan.
    UnsupportedArrayError
        `x` is not an array, or it is an exporter that would have to copy or compute to show its memory.

    Examples
    --------
    >>> import numpy as np
    >>> plan = explain(np.arange(6.0)[::-1], "numpy", dtype="float32")
    >>> print(plan)
    from  numpy float64 (6,) on cpu  48 bytes  writable
    1     numpy astype float32       24 bytes  float64 becomes float32
    to    numpy float32 (6,) on cpu  24 bytes  writable
    so    new memory, writable; values may change
    >>> plan.steps[0].nbytes, plan.shares_memory, plan.error
    (24, False, None)
    """
    from functools import partial  # noqa: PLC0415 -- an import of xbridge takes less time without it

    from xbridge._engine import verbs  # noqa: PLC0415 -- it imports NumPy
    from xbridge._plan.options import CallOptions  # noqa: PLC0415 -- as above

    asked = {"device": device, "dtype": dtype, "copy": copy, "grad": grad, "requires_grad": requires_grad}
    has_vars = issubclass(type(x), (type(explain), partial))  # a proxy may raise
    function = vars(x).get("__xbridge__") if has_vars else None
    if function is not None and x.__wrapped__ is function.fn:
        named = {**asked, "writable": writable, "order": order}
        given = {word: value for word, value in named.items() if value is not None}
        return function.explain(backend, *args, **given, **kwargs)
    if args or kwargs:
        more = ", ".join([*map(shown, args), *(f"{word}={shown(value)}" for word, value in kwargs.items())])
        reason = "a conversion has one target and its options, and only aligned functions have others"
        raise OptionError.build(f"explain {type_of(x)} with {more}", reason, "explain(x, 'torch')")
    return verbs.explain(x, backend, CallOptions(**asked, writable=writable, order=order))


def _plain_owner(x: Array) -> Backend:
    """Return the backend of an array that its library accepts as it is; raise for scalars and exporters."""
    backend = _owner(x, "array_namespace")
    refused = backend.unsupported(x, leaving=False)
    if refused:
        action = f"find the namespace of {type_of(x)}"
        raise refused.error.build(action, refused.reason, refused.hint)
    return backend


def _owner(x: Array, asked: str) -> Backend:
    """Return the backend of an array; raise the error of the function that was asked if there is none."""
    backend = backend_for(type(x))
    if backend is None:
        error = lookup_refusal(asked, x)
        if error is None:
            from xbridge._engine import repeat, source  # noqa: PLC0415 -- only an error needs it

            version, error = cache_version(), source.ownerless_error(x, asked)
            repeat.cache_refusal(asked, x, error, version)
        raise error from None
    return backend
