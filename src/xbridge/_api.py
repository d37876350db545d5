"""The conversion functions that users call, with their fast path.

The conversion of an ordinary array takes little more than the library's own zero-copy call. So each function
first looks for a cached call by target and type, then for one by all arguments. If both decline, it loads the
backends, which fills the tables. If these decline too, the engine plans the conversion, and the modules that
it needs are imported. `xbridge._registry.call_cache` has the tables.
"""

# The functions that look calls up repeat some lines, because a helper would cost more than a look-up:
#
# - `more` and `other` take surplus arguments. To check them here saves a wrapper, and so another call.
# - Options are compared with `is None`, because `==` runs foreign code: NumPy's float64 dtype equals None.
# - What is no array is refused here again: programs ask in loops, and a plan takes four times as long.
# - A cached function that declines returns None, so that a miss needs no exception.
# - The key is written inline, which equals that of `CallOptions.key` and is made faster.
# - Imports of the engine are inside of the functions: `import xbridge` stays fast, and loads no NumPy.
# - `shorten` removes the frames of the package from an error before the user sees its traceback.

from __future__ import annotations

from xbridge._core.entry_points import MISSING, after_lookup, entry_point, marked, plan_call, shorten
from xbridge._core.literals import LITERALS
from xbridge._core.tracing import none_in_traces
from xbridge._registry.call_cache import (
    cache_version,
    decline,
    direct,
    direct_asarray,
    lookup,
    lookup_direct,
    lookup_refusal,
)
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.errors import FOREIGN_ERRORS, UnknownBackendError, UnsupportedArrayError, XBridgeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, Literal, TypedDict, Unpack, overload

    import jax
    import torch
    from dask.array import Array as DaskArray

    from xbridge._core.protocol import Array, Grad, HostArray

    class _Options(TypedDict, total=False):
        device: object
        dtype: object
        copy: bool | None
        grad: Grad
        order: Literal["C"] | None

    class _ArrayOptions(_Options, total=False):
        like: Array | None
        requires_grad: bool | None


_to_host = direct[HOST]
"""The table of `to_numpy`. `invalidate` clears and refills such a dict in place, so it can be kept here."""

_LISTED: set[object] = {*range(13), 14, 15, 23}
"""NumPy's numbers of the dtypes whose values are numbers in Python: not of `longdouble`, nor of objects.

The dtypes of ml_dtypes are entered when an array of them is listed first.
"""


def _convert(
    x: Any = MISSING,
    /,
    backend: Any = MISSING,
    *more: Any,
    device: Any = None,
    dtype: Any = None,
    copy: Any = None,
    grad: Any = None,
    order: Any = None,
    **other: Any,
) -> Any:
    if not (more or other):
        if device is None and dtype is None and copy is None and grad is None and order is None:
            # `type(x)` and not `isinstance`: a subclass may have another meaning, and is planned.
            try:
                convert = direct[backend][type(x)]
            except FOREIGN_ERRORS:  # no entry, or a backend whose hash raises: a list, or a foreign object
                convert = decline
            y = convert(x)
            if y is not None:
                return y
        key = ("convert", backend, type(x), device, dtype, copy, grad)
        y = lookup(key if order is None else (*key, None, None, order), copy)(x)
        if y is not None:
            return y
        if device is None and dtype is None and copy is None and grad is None and order is None:
            error = lookup_refusal(backend, x)
            if error is not None:
                raise error
    options = {"device": device, "dtype": dtype, "copy": copy, "grad": grad, "order": order}
    try:
        return plan_call(to_backend, (x, backend), more, **options, **other)
    except XBridgeError as error:
        shorten(error)
        raise


def _convert_to(backend: str) -> Callable[..., Any]:
    converters = direct.setdefault(backend, {})

    def convert_to(
        x: Any = MISSING,
        /,
        *more: Any,
        device: Any = None,
        dtype: Any = None,
        copy: Any = None,
        grad: Any = None,
        order: Any = None,
        **other: Any,
    ) -> Any:
        if not (more or other):
            if device is None and dtype is None and copy is None and grad is None and order is None:
                try:
                    convert = converters[type(x)]
                except KeyError:
                    convert = decline
                y = convert(x)
                if y is not None:
                    return y
            key = ("convert", backend, type(x), device, dtype, copy, grad)
            y = lookup(key if order is None else (*key, None, None, order), copy)(x)
            if y is not None:
                return y
            if device is None and dtype is None and copy is None and grad is None and order is None:
                error = lookup_refusal(backend, x)
                if error is not None:
                    raise error
        options = {"device": device, "dtype": dtype, "copy": copy, "grad": grad, "order": order}
        try:
            return plan_call(convert_to, (x,), more, **options, **other)
        except XBridgeError as error:
            shorten(error)
            raise

    return convert_to


def _convert_to_host(
    x: Any = MISSING,
    /,
    *more: Any,
    dtype: Any = None,
    copy: Any = None,
    grad: Any = None,
    writable: Any = None,
    order: Any = None,
    **other: Any,
) -> Any:
    if not (more or other):
        if dtype is None and copy is None and grad is None and writable is None and order is None:
            try:
                convert = _to_host[type(x)]
            except KeyError:
                convert = decline
            host = convert(x)
            if host is not None:
                return host
        key: tuple[object, ...] = ("convert", HOST, type(x), None, dtype, copy, grad)
        if writable is not None or order is not None:
            key = (*key, None, writable) if order is None else (*key, None, writable, order)
        host = lookup(key, copy, None, writable)(x)
        if host is not None:
            return host
        if dtype is None and copy is None and grad is None and writable is None and order is None:
            error = lookup_refusal(HOST, x)
            if error is not None:
                raise error
    options = {"dtype": dtype, "copy": copy, "grad": grad, "writable": writable, "order": order}
    try:
        return plan_call(to_numpy, (x,), more, **options, **other)
    except XBridgeError as error:
        shorten(error)
        raise


def _make_array(  # noqa: PLR0913 -- the options of `asarray`
    obj: Any = MISSING,
    /,
    *more: Any,
    like: Any = None,
    backend: Any = None,
    device: Any = None,
    dtype: Any = None,
    copy: Any = None,
    grad: Any = None,
    requires_grad: Any = None,
    order: Any = None,
    **other: Any,
) -> Any:
    if not (more or other):
        key: tuple[object, ...]
        if requires_grad is None and order is None:
            if like is None and device is None and dtype is None and copy is None and grad is None:
                try:
                    convert = direct_asarray[backend][type(obj)]
                except FOREIGN_ERRORS:  # no entry, or a backend whose hash raises
                    convert = decline
                y = convert(obj)
                if y is not None:
                    return y
            key = ("asarray", backend, type(obj), type(like), device, dtype, copy, grad)
        else:
            key = ("asarray", backend, type(obj), type(like), device, dtype, copy, grad, requires_grad)
            key = key if order is None else (*key, None, order)
        repeat = lookup(key, copy, requires_grad)
        y = repeat(obj) if like is None else repeat(obj, like)
        if y is not None:
            return y
    options = {"device": device, "dtype": dtype, "copy": copy, "grad": grad, "requires_grad": requires_grad}
    try:
        return plan_call(asarray, (obj,), more, like=like, backend=backend, **options, order=order, **other)
    except XBridgeError as error:
        shorten(error)
        raise


def _align(
    *xs: Any,
    like: Any = None,
    backend: Any = None,
    device: Any = None,
    dtype: Any = None,
    copy: Any = None,
    grad: Any = None,
    **other: Any,
) -> Any:
    if not other:
        # Most calls have two arguments, whose types are read in a third of the time of a loop.
        types = (type(xs[0]), type(xs[1])) if len(xs) == 2 else tuple([type(x) for x in xs])
        key = ("align", backend, types, type(like), device, dtype, copy, grad)
        ys = lookup(key, copy)(xs, like)
        if ys is not None:
            return ys
    options = {"device": device, "dtype": dtype, "copy": copy, "grad": grad}
    try:
        return plan_call(align, xs, (), like=like, backend=backend, **options, **other)
    except XBridgeError as error:
        shorten(error)
        raise


def _convert_by_loading(x: Array, backend: str | ModuleType) -> Any:
    """Load the backends of a call without options, and convert; None if they were loaded, or decline."""
    version = cache_version()
    if backend_for(type(x)) is None:
        return None
    try:
        name = get(backend).name
    except UnknownBackendError:  # the engine knows what was meant
        return None
    return None if version == cache_version() else lookup_direct(name, type(x))(x)


def _plan_conversion(x: Array, backend: str | ModuleType, **options: Any) -> Any:
    """Convert an array by a plan, and cache the call if it can be repeated."""
    given = [option for option in options.values() if option is not None]
    if not given:
        y = _convert_by_loading(x, backend)
        if y is not None:
            return y
    from xbridge._engine import repeat, verbs  # noqa: PLC0415 -- they import NumPy
    from xbridge._plan.options import CallOptions  # noqa: PLC0415 -- as above

    version = cache_version()
    try:
        return verbs.to_backend(x, backend, CallOptions(**options))
    except UnsupportedArrayError as error:
        if not given:
            repeat.cache_refusal(backend, x, error, version)
        raise


# The overloads are for type checkers, which take Any for the arrays of a library that is not installed.


if TYPE_CHECKING:

    @overload
    def to_backend(x: Array, /, backend: Literal["numpy"], **options: Unpack[_Options]) -> HostArray: ...
    @overload
    def to_backend(x: Array, /, backend: Literal["torch"], **options: Unpack[_Options]) -> torch.Tensor: ...
    @overload
    def to_backend(x: Array, /, backend: Literal["jax"], **options: Unpack[_Options]) -> jax.Array: ...
    @overload
    def to_backend(x: Array, /, backend: Literal["dask"], **options: Unpack[_Options]) -> DaskArray: ...
    @overload
    def to_backend(x: Array, /, backend: str | ModuleType, **options: Unpack[_Options]) -> Array: ...


@after_lookup(_convert)
def to_backend(
    x: Array,
    /,
    backend: str | ModuleType,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    order: Literal["C"] | None = None,
) -> Array:
    """Convert an array to another library, or within its own.

    Parameters
    ----------
    x : array
        An array of any registered library and any shape, a NumPy scalar, or an exporter of ``__dlpack__``,
        ``__array_interface__``, ``__array__`` or a typed buffer. Numbers and lists belong to `asarray`.
    backend : str or module
        The target library: its name, such as ``"numpy"`` or ``"torch"``, its module, or an array namespace
        of it, as `array_namespace` gives.
    device : str, int or device object, optional
        ``"cpu"``, ``"cuda:1"``, ``"gpu"`` for the target's accelerator, a number for its accelerator of that
        index, or any library's device object.
        None keeps the device of the array, or moves it to the host for a library with host memory only.
        Transfers to and from the host are complete on return.
    dtype : str, dtype object or mapping, optional
        A canonical name such as ``"float32"`` or ``"bfloat16"``, any library's dtype object or its ``str``,
        one of NumPy's codes such as ``"f4"``, or Python's ``bool``, ``int``, ``float``, ``complex``. None
        means the same dtype or an error. ``"nearest"`` means the same dtype if the target has it there, else
        the narrowest of its kind that holds every value, else the widest. ``"default"`` means no wider than
        the target's default dtype of that kind. With these two it is an error if a value would be lost. A
        mapping such as ``{"float64": "float32"}`` is for arrays of these dtypes; others keep theirs.
    copy : bool, optional
        None shares memory if that is safe, and copies once if it is not. True never shares. False
        shares or raises.
    grad : {None, "keep", "detach"}
        None keeps the graph in a conversion within a library. In one to another library the graph ends, and a
        shared result is read-only. "keep" keeps the graph or raises. "detach" gives a result without a graph.
    order : {None, "C"}
        "C" for a result that is contiguous in C order; one that is not so already is copied. None keeps the
        layout. JAX and Dask, whose arrays show no layout, do nothing.

    Returns
    -------
    array
        An array of the target library, of the same shape; `x` itself if it already is as requested.

    Raises
    ------
    UnknownBackendError, MissingLibraryError
        The target is not known, or not installed.
    UnsupportedArrayError
        `x` is not an array, or one whose memory cannot be read without losing its meaning.
    DTypeError, ValueLossError
        The target has no such dtype, or ``dtype="nearest"`` or ``"default"`` would lose a value.
    DeviceError
        The device does not exist, or the target has no arrays there.
    CopyError
        ``copy=False``, and memory cannot be shared.
    GradientError
        ``grad="keep"``, and the graph would end.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.arange(3.0)
    >>> t = to_backend(a, "torch")
    >>> t
    tensor([0., 1., 2.], dtype=torch.float64)
    >>> a[0] = 7.0  # the memory is shared
    >>> t[0].item()
    7.0
    >>> to_backend(a, "torch", dtype="float32", copy=True)
    tensor([7., 1., 2.])
    """
    return _plan_conversion(x, backend, device=device, dtype=dtype, copy=copy, grad=grad, order=order)


@after_lookup(_convert_to_host)
def to_numpy(
    x: Array,
    /,
    *,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    writable: bool | None = None,
    order: Literal["C"] | None = None,
) -> HostArray:
    """Convert an array of any library and device, with or without a graph, to NumPy.

    Parameters
    ----------
    x : array
        An array of any library, a NumPy scalar, or an exporter. Numbers and lists belong to `asarray`.
    dtype, copy, grad, order
        As for `to_backend`. NumPy has no graph, so ``grad="keep"`` raises for an array with one.
    writable : bool, optional
        True for a writable result: memory that would be shared read-only is copied instead. False for a
        read-only result, over the same memory if it can be shared. None for a result that is writable
        wherever the contract allows it.

    Returns
    -------
    numpy.ndarray
        It shares the memory of `x` if that is host memory and no option requires a copy. It is then
        read-only if `x` is read-only or immutable, repeats memory, or is tracked by autograd. Otherwise its
        memory is new and writable, unless ``writable=False``. A memmap or matrix keeps its class.

    Raises
    ------
    XBridgeError
        As for `to_backend`.

    Examples
    --------
    >>> import torch
    >>> t = torch.ones(3, requires_grad=True)
    >>> a = to_numpy(t)
    >>> a
    array([1., 1., 1.], dtype=float32)
    >>> a.flags.writeable  # a write would corrupt gradients in silence
    False
    >>> to_numpy(t, writable=True).flags.writeable  # one copy
    True
    >>> to_numpy(torch.ones(3), writable=False).flags.writeable  # no copy
    False
    """
    host: HostArray = _plan_conversion(
        x, HOST, dtype=dtype, copy=copy, grad=grad, writable=writable, order=order
    )
    return host


@after_lookup(_convert_to("torch"))
def to_torch(
    x: Array,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    order: Literal["C"] | None = None,
) -> torch.Tensor:
    """Convert an array of any library to PyTorch.

    The parameters, the result and the errors are those of ``to_backend(x, "torch")``.

    Examples
    --------
    >>> import numpy as np
    >>> to_torch(np.arange(3.0), dtype="float32")
    tensor([0., 1., 2.])
    """
    tensor: torch.Tensor = _plan_conversion(
        x, "torch", device=device, dtype=dtype, copy=copy, grad=grad, order=order
    )
    return tensor


@after_lookup(_convert_to("jax"))
def to_jax(
    x: Array,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    order: Literal["C"] | None = None,
) -> jax.Array:
    """Convert an array of any library to JAX.

    The parameters, the result and the errors are those of ``to_backend(x, "jax")``. JAX has 64-bit dtypes
    only if they are enabled.

    Examples
    --------
    >>> import numpy as np
    >>> to_jax(np.arange(3.0), dtype="float32")
    Array([0., 1., 2.], dtype=float32)
    """
    array: jax.Array = _plan_conversion(
        x, "jax", device=device, dtype=dtype, copy=copy, grad=grad, order=order
    )
    return array


@after_lookup(_convert_to("cupy"))
def to_cupy(
    x: Array,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    order: Literal["C"] | None = None,
) -> Array:
    """Convert an array of any library to CuPy.

    The parameters, the result and the errors are those of ``to_backend(x, "cupy")``.
    """
    return _plan_conversion(x, "cupy", device=device, dtype=dtype, copy=copy, grad=grad, order=order)


@after_lookup(_convert_to("dask"))
def to_dask(
    x: Array,
    /,
    *,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    order: Literal["C"] | None = None,
) -> DaskArray:
    """Convert an array of any library to Dask.

    The parameters, the result and the errors are those of ``to_backend(x, "dask")``.

    Examples
    --------
    >>> import numpy as np
    >>> to_dask(np.arange(3.0)).sum().compute().item()
    3.0
    """
    return _plan_conversion(x, "dask", device=device, dtype=dtype, copy=copy, grad=grad, order=order)


if TYPE_CHECKING:
    # The first overload is for calls with `**options`, whose names a type checker does not know.

    @overload
    def asarray(obj: Array, /, *, backend: None = None, **options: Unpack[_ArrayOptions]) -> Array: ...
    @overload
    def asarray(
        obj: Array, /, *, backend: Literal["numpy"], **options: Unpack[_ArrayOptions]
    ) -> HostArray: ...
    @overload
    def asarray(
        obj: Array, /, *, backend: Literal["torch"], **options: Unpack[_ArrayOptions]
    ) -> torch.Tensor: ...
    @overload
    def asarray(obj: Array, /, *, backend: Literal["jax"], **options: Unpack[_ArrayOptions]) -> jax.Array: ...
    @overload
    def asarray(
        obj: Array, /, *, backend: Literal["dask"], **options: Unpack[_ArrayOptions]
    ) -> DaskArray: ...
    @overload
    def asarray(
        obj: Array, /, *, backend: str | ModuleType | None, **options: Unpack[_ArrayOptions]
    ) -> Array: ...


@after_lookup(_make_array)
def asarray(  # noqa: PLR0913 -- the options of `to_backend`, and three of its own
    obj: Array,
    /,
    *,
    like: Array | None = None,
    backend: str | ModuleType | None = None,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
    requires_grad: bool | None = None,
    order: Literal["C"] | None = None,
) -> Array:
    """Make an array from arrays, exporters, numbers, or nested lists of these.

    Parameters
    ----------
    obj : array, number, or nested list or tuple of them
        Numbers become the target's default dtypes, with ``dtype="nearest"`` too. Arrays in a list keep their
        dtype. Those of several dtypes are promoted, by the target's own rules if all are the target's, else
        by NumPy's. They must have one shape and one device, and are stacked in one pass.
    like : array, optional
        An array whose library is the target. The result is on its device, unless `backend` names another
        library. Its dtype is not used.
    backend : str or module, optional
        The target, which takes precedence over `like`. With neither, an array stays in its library, a list of
        arrays goes to the library and device of the first one, and anything else becomes a NumPy array.
    device, dtype, copy, grad, order
        As for `to_backend`. A list is always copied.
    requires_grad : bool, optional
        True makes the result a new leaf of a floating or complex dtype, over the same memory if `copy`
        allows; `obj` itself is never changed. If it already is such a leaf and as requested, it is the
        result. False means ``grad="detach"``.

    Returns
    -------
    array
        An array of the target library; `obj` itself if it already is as requested.

    Raises
    ------
    OptionError
        The list is ragged, or an option has a value it cannot take.
    ValueLossError
        An integer in a list would be rounded, or fits no integer dtype.
    GradientError
        ``requires_grad=True`` with a target or dtype without gradients, or for an array that keeps its graph.
    XBridgeError
        As for `to_backend`.

    Examples
    --------
    >>> asarray([1, 2, 3])
    array([1, 2, 3])
    >>> asarray([[1.0, 2.0], [3.0, 4.0]], backend="torch", requires_grad=True)
    tensor([[1., 2.],
            [3., 4.]], requires_grad=True)
    """
    given = (like, device, dtype, copy, grad, requires_grad, order)
    if type(obj) in LITERALS and all(option is None for option in given):
        from xbridge._engine import literals  # noqa: PLC0415 -- it imports NumPy

        y = literals.make_array(obj, backend)
        if y is not None:
            return y
    from xbridge._engine import verbs  # noqa: PLC0415 -- as above
    from xbridge._plan.options import CallOptions  # noqa: PLC0415 -- as above

    options = CallOptions(
        device=device, dtype=dtype, copy=copy, grad=grad, requires_grad=requires_grad, order=order
    )
    return verbs.asarray(obj, like, backend, options)


@after_lookup(_align)
def align(
    *xs: Array,
    like: Array | None = None,
    backend: str | ModuleType | None = None,
    device: object = None,
    dtype: object = None,
    copy: bool | None = None,
    grad: Grad = None,
) -> tuple[Array, ...]:
    """Bring arrays of several libraries and devices to one backend and one device.

    Parameters
    ----------
    *xs : array, number or list
        Arrays as for `to_backend`. Numbers are returned unchanged, because they adapt to any array, and
        so is None. Lists become arrays.
    like : array, optional
        An array whose library is the target, and whose device is used unless `backend` names another library.
    backend : str or module, optional
        The target, which takes precedence over `like`. With neither, it is the library of the first array;
        if there are several libraries, that of the first array that requires grad or is traced. Lists and
        NumPy scalars do not decide.
    device : str, int or device object, optional
        The device for all. None means that of `like`, or of the first array of the target library.
    dtype, copy, grad
        As for `to_backend`, for each array.

    Returns
    -------
    tuple
        One result for each argument, in order; the argument itself if it already is as requested.

    Raises
    ------
    XBridgeError
        As for `to_backend`; messages call the second argument ``xs[1]``. Or `like` is not an array.

    Examples
    --------
    >>> import numpy as np, torch
    >>> a, b, c = align(torch.ones(2), np.array([1.0, 2.0]), 3)
    >>> a + b * c
    tensor([4., 7.], dtype=torch.float64)
    """
    from xbridge._engine import verbs  # noqa: PLC0415 -- it imports NumPy
    from xbridge._plan.options import CallOptions  # noqa: PLC0415 -- as above

    return verbs.align(xs, like, backend, CallOptions(device=device, dtype=dtype, copy=copy, grad=grad))


@marked
def to_list(x: Array, /) -> Any:
    """List the values of an array from any library, device or graph as Python numbers.

    Parameters
    ----------
    x : array
        As for `to_backend`, of any shape.

    Returns
    -------
    list or number
        As many levels of lists as `x` has axes, with exact values.

    Raises
    ------
    UnsupportedArrayError, DTypeError
        `x` cannot be read, or Python has no such numbers.

    Examples
    --------
    >>> import torch
    >>> to_list(torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
    [1.0, 1.0]
    """
    try:
        convert = _to_host[type(x)]
    except KeyError:
        convert = decline
    host = convert(x)
    if host is None:
        host = lookup(("convert", HOST, type(x), None, None, None, None))(x)
    values = _list_values(host)
    if values is not None:
        return values
    from xbridge._engine import verbs  # noqa: PLC0415 -- it imports NumPy

    try:
        return verbs.to_list(x, host, _LISTED)
    except XBridgeError as error:
        shorten(error)
        raise


@none_in_traces
def _list_values(host: HostArray | None) -> Any:
    """Return the values of a host array as numbers; None if NumPy's list might have other objects."""
    is_listed = host is not None and (host.dtype.num in _LISTED or host.dtype in _LISTED)
    return host.tolist() if is_listed else None  # type: ignore[union-attr] # it is not None then


if TYPE_CHECKING:

    @overload
    def unsafe_share(x: Array, /, backend: Literal["numpy"]) -> HostArray: ...
    @overload
    def unsafe_share(x: Array, /, backend: Literal["torch"]) -> torch.Tensor: ...
    @overload
    def unsafe_share(x: Array, /, backend: Literal["jax"]) -> jax.Array: ...
    @overload
    def unsafe_share(x: Array, /, backend: Literal["dask"]) -> DaskArray: ...
    @overload
    def unsafe_share(x: Array, /, backend: str | ModuleType) -> Array: ...


@entry_point
def unsafe_share(x: Array, /, backend: str | ModuleType) -> Array:
    """Convert an array without a copy, even where the contract would copy to be safe.

    The caller is then responsible for what the contract prevents: writes to memory that was read-only or that
    a graph needs, writes to elements that share memory, and changes of memory that a library assumes to be
    immutable and reads later.

    Parameters
    ----------
    x : array
        As for `to_backend`.
    backend : str or module
        The target library.

    Returns
    -------
    array
        The target's array over the memory of `x`. It is read-only if the target has read-only arrays.

    Raises
    ------
    CopyError
        The target cannot use this memory: its strides, alignment or byte order, or a library that has
        copied nevertheless.
    XBridgeError
        As for `to_backend`.

    Examples
    --------
    >>> import numpy as np, torch
    >>> ones = np.broadcast_to(1.0, 3)  # one element, three times
    >>> unsafe_share(ones, "torch").data_ptr() == ones.ctypes.data
    True
    """
    from xbridge._engine import verbs  # noqa: PLC0415 -- it imports NumPy

    return verbs.unsafe_share(x, backend)
