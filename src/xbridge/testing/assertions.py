"""Assertions about arrays of any library: the same, close, in the same memory or not, unchanged.

None of them converts an array, so that a fault in a conversion cannot hide itself. Values are read by the
library's own means, and memory is compared by address. Each returns None or raises an `AssertionError` with
the differences and their positions, under ``python -O`` too.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from xbridge import to_backend
from xbridge.errors import XBridgeError
from xbridge.extend import get_backend
from xbridge.testing._diff import (
    Tolerance,
    differences,
    fail_if,
    get_library,
    less,
    look,
    look_in,
    overlap,
    places,
    resolve,
    same_bits,
    same_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from xbridge.protocol import Array, Backend, HostArray
    from xbridge.testing._diff import Bools, Look


def assert_same(
    actual: Array,
    expected: Array,
    /,
    *,
    check_backend: bool = True,
    check_dtype: bool = True,
    check_device: bool | None = None,
    check_shape: bool = True,
    check_grad: bool = False,
) -> None:
    """Assert that two arrays of any library are the same, bit for bit.

    Parameters
    ----------
    actual, expected : array
        Arrays of any registered library, any shape, dtype, device and memory layout, or NumPy scalars. Both
        may require grad. Nothing is converted or changed.
    check_backend : bool
        Whether they must come from one library. The arrays of ``numpy_readonly`` count as NumPy's.
    check_dtype : bool
        Whether they must have one dtype and hold the same bits: NaNs with another payload are different,
        and so are zeros with another sign. False compares them as numbers: exactly, so that 2**53 + 1 is
        not a float64, but any NaN equals any other, and zeros of both signs are equal. Byte order is ignored.
    check_device : bool, optional
        Whether they must be on one device. By default they must be if they come from one library.
    check_shape : bool
        Whether they must have one shape. False lets them broadcast.
    check_grad : bool
        Whether both or neither must require grad.

    Raises
    ------
    AssertionError
        They are different. The message has the differences and the first few values, or their bits if
        they print the same.
    UnsupportedArrayError, DTypeError
        One of them is a Python number, a list, or an array that xbridge refuses to read.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([1.0, 0.0, np.nan])
    >>> assert_same(a, a.copy())
    >>> assert_same(a, np.array([1.0, -0.0, np.nan]))
    Traceback (most recent call last):
    AssertionError: the arrays differ in 1 of 3 values:
      actual    numpy float64 array of shape (3,) on cpu
      expected  numpy float64 array of shape (3,) on cpu
      at    actual  expected
      (1,)  0.0     -0.0      different zeros: 0x0000000000000000 and 0x8000000000000000
    >>> assert_same(a, np.float32([1.0, -0.0, np.nan]), check_dtype=False)
    """
    __tracebackhide__ = True
    a, b = look(actual), look(expected)
    info = _choose_facts(
        a, b, backend=check_backend, dtype=check_dtype, device=check_device, shape=check_shape
    )
    info += ["grad"] if check_grad else []
    fail_if(differences(a, b, info, same_bits if check_dtype else same_numbers))


def assert_close(  # noqa: PLR0913 -- independent options
    actual: Array,
    expected: Array,
    /,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    ulp: float | None = None,
    equal_nan: bool = True,
    check_backend: bool = True,
    check_dtype: bool = True,
    check_device: bool | None = None,
) -> None:
    """Assert that two arrays of any library have the same shape and close values.

    A value is close if it is the expected one, such as an infinity of the same sign, or if both are finite
    and ``abs(actual - expected) <= atol + rtol * abs(expected)``: in float64, but of integers exactly.

    Parameters
    ----------
    actual, expected : array
        As for `assert_same`.
    rtol, atol : float, optional
        By default those of `torch.testing.assert_close`: 1e-7 and 1e-7 for float64, 1.3e-6 and 1e-5 for
        float32, 1e-3 and 1e-5 for float16, 1.6e-2 and 1e-5 for bfloat16, for a complex dtype those of its
        parts; for the float8 kinds one step from value to value. Integers, truth values and
        float8_e8m0fnu must be equal. Of two dtypes, the coarser decides.
    ulp : float, optional
        The tolerance in units in the last place, instead of `rtol` and `atol`: for numbers from 1 to 2, what
        `numpy.testing.assert_array_max_ulp` counts.
    equal_nan : bool
        Whether a NaN is close to a NaN. A complex number is NaN if a part of it is.
    check_backend, check_dtype, check_device
        As for `assert_same`.

    Raises
    ------
    AssertionError
        They are not close. The message has the first few wrong values and the largest errors.
    OptionError
        A tolerance is not a number from 0 up, or `ulp` is given with another one.
    UnsupportedArrayError, DTypeError
        As for `assert_same`.

    Examples
    --------
    >>> import numpy as np
    >>> assert_close(np.float32([1.0, 2.0]), np.float32([1.0, 2.000001]))
    >>> assert_close(np.float32([1.0, 2.0]), np.float32([1.0, 2.000001]), ulp=8)
    >>> assert_close(np.array([1, 2]), np.array([1, 4]), atol=1)
    Traceback (most recent call last):
    AssertionError: the arrays differ in 1 of 2 values:
      actual    numpy int64 array of shape (2,) on cpu
      expected  numpy int64 array of shape (2,) on cpu
      at    actual  expected
      (1,)  2       4
      allowed: 1.0 + 0.0 * abs(expected), equal_nan=True
      largest absolute error: 2.0 at (1,)
      largest relative error: 0.5 at (1,)
    """
    __tracebackhide__ = True
    a, b = look(actual), look(expected)
    near = Tolerance.of(a.dtype, b.dtype, rtol=rtol, atol=atol, ulp=ulp, equal_nan=equal_nan)
    info = _choose_facts(a, b, backend=check_backend, dtype=check_dtype, device=check_device, shape=True)
    fail_if(differences(a, b, info, near.agree, explain=near.explain))


def assert_less(
    lower: Array | float,
    upper: Array | float,
    /,
    *,
    or_equal: bool = False,
) -> None:
    """Assert that the numbers of an array are below others, as `numpy.testing.assert_array_less` does.

    Parameters
    ----------
    lower, upper : array or number
        Arrays of any registered library, or a bound for all numbers of one. They are compared exactly,
        as they broadcast, whatever their libraries, devices and dtypes. A NaN is below nothing.
    or_equal : bool
        Whether equal numbers are allowed.

    Raises
    ------
    AssertionError
        A number is not below the other. The message has the first few of them.
    UnsupportedArrayError, DTypeError
        As for `assert_same`.

    Examples
    --------
    >>> import numpy as np
    >>> assert_less(np.array([0.0, 0.5]), 1)
    >>> assert_less(np.array([0.0, 1.0]), 1)
    Traceback (most recent call last):
    AssertionError: lower is not below upper in 1 of 2 values:
      lower  numpy float64 array of shape (2,) on cpu
      upper  numpy int64 array of shape () on cpu
      at    lower  upper
      (1,)  1.0    1
    """
    __tracebackhide__ = True
    a, b = (look(np.asarray(x) if isinstance(x, int | float) else x) for x in (lower, upper))

    def agree(x: HostArray, y: HostArray) -> Bools:
        return less(x, y) | (same_numbers(x, y) & ~np.isnan(x) if or_equal else False)

    head, *lines = differences(a, b, [], agree, names=("lower", "upper")) or [""]
    fail_if([head.replace("the arrays differ", "lower is not below upper"), *lines] if lines else [])


def assert_shares_memory(a: Array, b: Array, /) -> None:
    """Assert that two arrays of any library have a byte of memory in common.

    Parameters
    ----------
    a, b : array
        Arrays of any registered library, any shape, dtype, device and memory layout. Their addresses are
        compared, exactly; no memory is read.

    Raises
    ------
    AssertionError
        They have no byte in common. Empty arrays and scalars have no address.
    UnsupportedArrayError, DTypeError
        One of them is not an array, or xbridge refuses to read it.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.zeros(6)
    >>> assert_shares_memory(a[::2], a[2:])
    """
    __tracebackhide__ = True
    if not overlap(a, b):
        fail_if(places(a, b), "the arrays have no memory in common")


def assert_independent(a: Array, b: Array, /) -> None:
    """Assert that two arrays of any library have no byte of memory in common.

    Parameters
    ----------
    a, b : array
        As for `assert_shares_memory`.

    Raises
    ------
    AssertionError
        They have a byte in common.
    UnsupportedArrayError, DTypeError
        As for `assert_shares_memory`.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.zeros(6)
    >>> assert_independent(a, a.copy())
    >>> assert_independent(a[::2], a[1::2])  # interleaved, without a common byte
    """
    __tracebackhide__ = True
    if overlap(a, b):
        fail_if(places(a, b), "the arrays have memory in common")


def assert_derivative(f: Callable[..., Any], /, *args: Any, rtol: float | None = None, **kwargs: Any) -> None:
    """Assert that the derivatives of an aligned function match its values, in every library.

    Parameters
    ----------
    f : callable
        A function that `aligned` made.
    *args, **kwargs
        The arguments of a call. Floating and complex arrays among `args` are moved. Use float64 if the
        library of the function has it.
    rtol : float, optional
        The tolerance, relative to the size of the derivative's terms. The default is the error of central
        differences. An iterative solver may need a larger one, such as the tolerance of its iteration.

    Raises
    ------
    AssertionError
        A gradient, a tangent or a gradient under `vmap` differs from central differences, or is not the
        adjoint of the tangent.
    GradientError
        There is no gradient.
    OptionError
        No argument is a floating or complex array.

    Examples
    --------
    >>> import numpy as np, xbridge
    >>> double = xbridge.aligned(backend="numpy", vjp=lambda g, y, x: 2 * g)(lambda x: 2 * x)
    >>> assert_derivative(double, np.ones(2))
    >>> wrong = xbridge.aligned(backend="numpy", vjp=lambda g, y, x: g)(lambda x: 2 * x)
    >>> assert_derivative(wrong, np.ones(2))
    Traceback (most recent call last):
    AssertionError: the derivative is wrong:
      ...
    """
    __tracebackhide__ = True
    from xbridge.testing._derivatives import faults  # noqa: PLC0415 -- only derivatives need it

    lines = list(dict.fromkeys(faults(f, args, kwargs, rtol)))
    if lines:
        raise AssertionError("\n  ".join(["the derivative is wrong:", *lines]))


def assert_roundtrip(
    x: Array,
    backend: str,
    /,
    *,
    device: object = None,
    copy: bool | None = None,
    grad: Literal["keep", "detach"] | None = None,
) -> None:
    """Assert that an array is the same after a conversion to another library and back.

    Both conversions must keep bits, dtype and shape, and the device if the library has devices.

    Parameters
    ----------
    x : array
        As for `assert_same`.
    backend : str
        The name of the other library.
    device
        The device of the target, as for `to_backend`. The way back goes to the original device.
    copy, grad
        As for `to_backend`, in both conversions.

    Raises
    ------
    AssertionError
        A conversion changed the array. The message has the conversion and the differences.
    XBridgeError
        As for `to_backend`, if a conversion raises.

    Examples
    --------
    >>> import numpy as np
    >>> assert_roundtrip(np.arange(6.0).reshape(2, 3).T, "torch")
    """
    __tracebackhide__ = True
    before, target = look(x), get_backend(backend)
    stays = ["device"] if device is None and not target.host_only else []
    there = to_backend(x, backend, device=device, copy=copy, grad=grad)
    _hold(there, before._replace(backend=target.name), stays, f"on the way to {target.name}")
    back = to_backend(there, before.backend, device=before.device, copy=copy, grad=grad)
    _hold(back, before, ["device"], f"on the way back from {target.name}")


def assert_unchanged(x: Array, /, *others: Array) -> AbstractContextManager[None]:
    """Assert that a block of code does not change arrays.

    It compares the bits of the values, dtype, byte order, shape, address, strides, flags and device. Of
    autograd it compares `requires_grad`, the step that made the array and the count of its changes.

    Parameters
    ----------
    x, *others : array
        As for `assert_same`. They are read when the block begins and when it ends.

    Returns
    -------
    context manager
        Its value is None. If the block raises, the exception passes with the report as a note. So a call
        that is expected to raise belongs inside, ``with assert_unchanged(x): with raises(...): ...``.

    Raises
    ------
    AssertionError
        An array was changed. The message has its number, the differences and the first few values.
    UnsupportedArrayError, DTypeError
        As for `assert_same`, when the block begins.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.array([2.0, 1.0])
    >>> with assert_unchanged(a):
    ...     b = np.sort(a)
    >>> with assert_unchanged(a):
    ...     a.sort()
    Traceback (most recent call last):
    AssertionError: array 0 was changed:
    the arrays differ in 2 of 2 values:
      before  numpy float64 array of shape (2,) on cpu
      after   numpy float64 array of shape (2,) on cpu
      at    before  after
      (0,)  2.0     1.0
      (1,)  1.0     2.0
    """
    return _Unchanged((x, *others))


def _hold(arrived: Array, wanted: Look, also: list[str], where: str) -> None:
    """Assert that one conversion of a round trip kept the array."""
    __tracebackhide__ = True
    info, names = ["backend", "dtype", "shape", *also], ("arrived", "wanted")
    fail_if(differences(look(arrived), wanted, info, same_bits, names=names), where)


def _choose_facts(a: Look, b: Look, **info: bool | None) -> list[str]:
    """List the facts that must be equal; by default the devices, if both are of one library."""
    if info["device"] is None:
        info["device"] = get_library(a.backend) == get_library(b.backend)
    return [fact for fact, asked in info.items() if asked]


# -- snapshots -----------------------------------------------------------------------------------
# Libraries store flags and counts that show changes under names of their own. Every name is read from every
# array, and an array without it is skipped.

_MARKS: dict[str, Callable[[Array], object]] = {
    "flags": attrgetter("flags.num"),
    "requires_grad": attrgetter("requires_grad"),
    "grad_fn": attrgetter("grad_fn"),
    "version": attrgetter("_version"),
}

_State: TypeAlias = "tuple[Look, dict[str, object]]"


class _Unchanged(AbstractContextManager[None]):
    """A context that compares arrays at the end of a block with their snapshots at its beginning."""

    def __init__(self, arrays: tuple[Array, ...]) -> None:
        self._entered = [resolve(x, "watch") for x in arrays]
        self._before: list[_State] = []

    def __enter__(self) -> None:
        self._before = [_state(backend, x) for backend, x in self._entered]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        reports = [
            f"array {number} was changed:\n" + "\n".join(lines)
            for number, (before, entered) in enumerate(zip(self._before, self._entered, strict=True))
            if (lines := _changes(before, *entered))
        ]
        if error is not None:
            for report in reports:
                error.add_note(report)
        elif reports:
            raise AssertionError("\n".join(reports))


def _state(backend: Backend, x: Array) -> _State:
    """Return the snapshot of an array: its look and its marks."""
    marks: dict[str, object] = {**backend.memory_layout(x)._asdict(), **backend.array_info(x)._asdict()}
    for name, read in _MARKS.items():
        with suppress(AttributeError, RuntimeError):
            marks[name] = read(x)
    return look_in(backend, x), marks


def _changes(before: _State, backend: Backend, x: Array) -> list[str]:
    """List the differences from a snapshot, line by line."""
    try:
        after = _state(backend, x)
    except XBridgeError as error:
        return [f"  {error}"]
    marks = {name: (mark, after[1].get(name)) for name, mark in before[1].items()}
    lines = [f"  {name}: {old} became {new}" for name, (old, new) in marks.items() if old != new]
    return [*lines, *differences(before[0], after[0], ["shape"], same_bits, names=("before", "after"))]
