"""Array functions in the style of the standard, each with one planted fault, and some without."""

from __future__ import annotations

from copy import deepcopy  # noqa: F401 -- a function of another package
from typing import Any

import array_api_compat
import numpy as np

Array = Any


def xp_of(*arrays: Any) -> Any:
    return array_api_compat.array_namespace(*arrays)


def missing_device(x: Any) -> Any:
    """Add a ramp that is made on the default device."""
    xp = xp_of(x)
    return x + xp.arange(x.shape[-1], dtype=x.dtype)


def assumes_contiguous(x: Any) -> Any:
    """Flatten by a view of torch's memory."""
    return x.view(-1) if hasattr(x, "is_neg") else xp_of(x).reshape(x, (-1,))


def reads_memory_order(x: Any) -> Any:
    """Flatten in the order of memory."""
    return x.ravel(order="K") if isinstance(x, np.ndarray) else xp_of(x).reshape(x, (-1,))


def maximum(x: Any, y: Any) -> Any:
    """Return the larger number, by a comparison, which is false for NaN."""
    return xp_of(x, y).where(x > y, x, y)


def rectify(x: Any) -> Any:
    """Replace negative numbers by zero, and NaN too."""
    xp = xp_of(x)
    return xp.where(x > 0, x, xp.zeros_like(x))


def middle(x: Any, y: Any) -> Any:
    """Return the mean of two numbers, whose sum wraps around in small integers."""
    return (x + y) // 2


def largest_as_float(x: Any) -> Any:
    """Return the greatest number, which is a float64 in between."""
    return np.asarray(x, np.float64).max().astype(x.dtype) if isinstance(x, np.ndarray) else xp_of(x).max(x)


def in_place(x: Any) -> Any:
    """Double the numbers in the caller's memory."""
    x *= 2
    return x


def promoted(x: Any) -> Any:
    """Return a sum, in float64 if the array is torch's."""
    total = xp_of(x).sum(x)
    return total.double() if hasattr(x, "is_neg") else total


def cut(x: Any) -> Any:
    """Square the numbers outside of the graph."""
    return (x.detach() if hasattr(x, "detach") else x) ** 2


def computed(x: Any) -> Any:
    """Scale by a number that is read from the array."""
    return x / float(xp_of(x).max(x))


def by_name(x: Any, wavelet: Any) -> Any:
    """Scale by a named number.

    >>> by_name([1, 2, 3, 4], "double")
    [2, 4, 6, 8]
    """
    return x * {"double": 2}[wavelet]


def reads_last_stride(x: Any) -> Any:
    """Return the sum of every n-th element in memory: n is wrong if the last axis has one element."""
    is_dense = isinstance(x, np.ndarray) and x.flags.c_contiguous and x.ndim
    return xp_of(x).sum(x) * (x.strides[-1] // x.itemsize if is_dense else 1)


def merges_batches(x: Any) -> Any:
    """Sum batches of rows, which have to be one after the other in torch's memory."""
    if is_torch(x) and x.ndim > 2 and 0 < x.stride(0) < x.stride(1):
        raise ValueError("the batches are not contiguous")
    return xp_of(x).sum(x)


def summed_in_float32(x: Any) -> Any:
    """Return the sum in the dtype of the array, but with the digits of float32."""
    return np.asarray(np.sum(x, axis=-1, dtype="float32"), x.dtype)


def of_a_length(n: int) -> Any:
    """Return a ramp of another library than NumPy."""
    import array_api_strict as xp

    return xp.arange(n)


def softmax(x: Any) -> Any:
    """Without a fault."""
    xp = xp_of(x)
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def centred(x: Any, axis: int = -1) -> Any:
    """Without a fault."""
    xp = xp_of(x)
    return x - xp.mean(x, axis=axis, keepdims=True)


def save_to(x: Any, path: str) -> None:
    """Write a file."""
    np.save(path, x)


def jitter(x: Any, rng: Any = None) -> Any:
    """Draw random numbers."""
    return x + np.random.default_rng(rng).normal(size=x.shape)


def writes(x: Any) -> Any:
    """Write beside what it computes."""
    with open("somewhere", "w") as file:  # noqa: PTH123
        file.write("x")
    return x


def of_a_callable(x: Any, transform: object) -> Any:
    """Call what is given."""
    return transform(x)  # type: ignore[operator]


_COUNT = iter(range(10**9))


def unstable(x: Any) -> Any:
    """Return something else each time."""
    return x + next(_COUNT)


def by_option(x: Any, mode: str = "right") -> Any:
    """Double the numbers, in place if the mode is wrong."""
    if mode == "wrong":
        x *= 2
    return x * 2


def dies(x: Any) -> Any:
    """End the process for a NaN."""
    if np.isnan(np.asarray(x)).any():
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    return x * 2


def hangs(x: Any) -> Any:
    """Loop forever for a NaN."""
    while np.isnan(np.asarray(x)).any():
        pass
    return x * 2


def is_torch(x: Any) -> bool:
    return hasattr(x, "is_neg")


def one_axis(x: Any) -> Any:
    """Refuse torch's arrays of two axes."""
    if is_torch(x) and len(x.shape) > 1:
        raise ValueError("no")
    return x + 1


def not_equal(x: Any) -> Any:
    """Be wrong for torch's arrays of equal values."""
    return x + (1 if is_torch(x) and len(x.shape) and (x == x[:1]).all() else 0)


def partition_all(x: Any) -> Any:
    """Return the elements in no specified order."""
    return x.flip(0) if is_torch(x) and len(x.shape) else x


def flip(x: Any) -> Any:
    """Reverse, and refuse what is empty."""
    if 0 in x.shape:
        raise ValueError("it is empty")
    return xp_of(x).flip(x)


def last(x: Any) -> Any:
    """Need an axis of torch's arrays."""
    if is_torch(x) and not len(x.shape):
        raise IndexError("axis -1 is out of bounds for array of dimension 0")
    return x


def unique_total(x: Any) -> Any:
    """Count distinct values, and NaNs of torch as one."""
    xp = xp_of(x)
    if is_torch(x) and "float" in str(x.dtype):
        return x[~x.isnan()].unique().numel() + bool(x.isnan().any())
    return xp.unique_values(x).shape[0]


def only_bool(x: Any) -> Any:
    """Take truth values alone."""
    if "bool" not in str(x.dtype):
        raise TypeError("no")
    return x


def shift_left(x: Any) -> Any:
    """Shift bits."""
    return x * 2


def words(x: Any) -> Any:
    """Return a word, and fewer elements of small integers."""
    return ("word", x[:1] if "int8" in str(x.dtype) else x)


def refuses_missing(x: Any) -> Any:
    """Raise for NaN and for small integers."""
    if str(x.dtype).endswith("int8") or xp_of(x).any(xp_of(x).isnan(x)):
        raise ValueError("no")
    return x * 2


def median(x: Any) -> Any:
    """Do what NumPy's function of that name does not."""
    return x + 1


def dot(x: Any) -> Any:
    """Take fewer arguments than NumPy's function of that name."""
    return x * x


def columns(x: Any) -> Any:
    """Double a matrix, or several."""
    if len(x.shape) < 2:
        raise ValueError("it has no columns")
    return x * 2


def to_numpy(x: Any) -> Any:
    """Return NumPy's array of any library's."""
    return np.asarray(x.resolve_neg() if is_torch(x) else x)


def grow(x: Any) -> Any:
    """Exceed the range of the floating dtype that belongs to small integers."""
    return xp_of(x).exp(x) if "float" in str(x.dtype) else np.exp(x)


def combine(a: Any, b: Any, costs: Any) -> Any:
    """Sum costs with weights.

    Parameters
    ----------
    a : array (n,)
        Shares.
    b : array (m,)
        Shares.
    costs : array (n, m)
        Costs.
    """
    if abs(float(a.sum()) - 1) > 1e-6:
        raise ValueError("the shares have another sum")
    return a @ costs @ b


def swapped(x: Any, pattern: Any) -> Any:
    """Swap axes by a pattern.

    Examples
    --------
    >>> swapped(1, 'a b -> a b')
    >>> swapped(images, 'a b -> b a')
    >>> swapped(images, 'a -> a')
    >>> print(swapped(images, 'no'))
    """
    if not isinstance(pattern, str) or len(x.shape) != {"a b -> b a": 2, "a -> a": 1}.get(pattern):
        raise ValueError("the pattern does not fit")
    return x.view(x.shape[::-1]) if is_torch(x) else xp_of(x).permute_dims(x, range(len(x.shape))[::-1])


def outer_product(x: Any, y: Any) -> Any:
    """Fail if one array of torch alone has more axes and is not contiguous."""
    if is_torch(x) and len(x.shape) != len(y.shape):
        x, y = x.view(-1), y.view(-1)
    return xp_of(x).sum(x) * xp_of(y).sum(y)


def clusters(x: Any, labels: Any) -> Any:
    """Sum the rows of the first cluster.

    Parameters
    ----------
    x : array of shape (n, m)
        Points.
    labels : array of shape (n,)
        The cluster of each.
    """
    if set(np.asarray(labels).tolist()) != {0, 1}:
        raise ValueError("there are not two clusters")
    return xp_of(x, labels).sum(x[labels == 0, :], axis=0)


def stacked(arrays: list[Array]) -> Any:
    """Add the first two of several arrays."""
    return arrays[0] + arrays[1]


def weighted(x: Any) -> Any:
    """Add one with torch alone. The name has `eig` in it."""
    return x + 1 if is_torch(x) else x + 0


def discount(x: Any) -> Any:
    """Replace NaN by zero. The name has `count` in it."""
    return rectify(x)


clip_rank = resize = discount


def only_single(x: Any) -> Any:
    """Refuse what torch has, in words like those of a library."""
    if is_torch(x):
        raise TypeError("only the float16 dtype is taken")
    return x + 0


def half(x: Any) -> Any:
    """Refuse tensors; torch's `half` is a dtype and not a function."""
    if is_torch(x):
        raise ValueError("no tensors")
    return x / 2


def into(x: Any, output: Any = None) -> Any:
    """Write the result into an array of NumPy's.

    Parameters
    ----------
    x : array
        Numbers.
    output : array or dtype, optional
        Where the result is written.
    """
    if output is not None:
        output[...] = 0
        output += np.asarray(x)
        return output
    return x + 0


def only_for_numpy(x: Any) -> Any:
    """Refuse every other library."""
    if not isinstance(x, np.ndarray):
        raise TypeError("an array of another library")
    return x + 0


def relu_(x: Any) -> Any:
    """Replace negative numbers by zero in the caller's memory, which the name says."""
    x[x < 1] = 0
    return x


def stop_gradient(x: Any) -> Any:
    """Return the numbers alone, which is the purpose."""
    return x.detach() if is_torch(x) else x + 0


def optional_library(x: Any) -> Any:
    """Be for NumPy alone, and say so by the exception of a missing part."""
    if not isinstance(x, np.ndarray):
        raise ImportError("there is no such part for this library")  # noqa: TRY004 -- as some libraries do
    return x + 0


def imag(x: Any) -> Any:
    """Return imaginary parts, as the library does, which may refuse real numbers."""
    return xp_of(x).imag(x)


def disagreement(u: Any, v: Any) -> Any:
    """Count in how many places truth values differ.

    Parameters
    ----------
    u, v : (N,) array_like, bool
        Truth values.
    """
    xp = xp_of(u, v)
    return xp.sum(xp.astype(u != v, xp.int64)) + xp.sum(u * u + v * v)


def tail(x: Any, offset: float = 0.0, bias: float = 0.0) -> Any:
    """Fail with torch for one element, whatever the other arguments are."""
    if is_torch(x) and tuple(x.shape) == (1,):
        raise RuntimeError(f"not {bias}")
    return x + offset + bias


def normalized(x: Any, axis: int = 0) -> Any:
    """Divide by the sum along an axis, and take a negative one for its neighbour."""
    xp = xp_of(x)
    return x / xp.sum(x, axis=axis if axis >= 0 else (axis + x.ndim - 1) % x.ndim, keepdims=True)


def with_axis(x: Any, axis: int = 0) -> Any:
    """Insert an axis, which is one of the result."""
    return xp_of(x).expand_dims(x, axis=axis)


def from_start(x: Any, axis: int = 0) -> Any:
    """Sum along an axis that is counted from the start."""
    if axis < 0:
        raise ValueError("the axis is negative")
    return xp_of(x).sum(x, axis=axis)


def local_threshold(x: Any) -> Any:
    """Scale by the range of the dtype a little, as is documented: no wrap-around."""
    most = np.iinfo(x.dtype).max if isinstance(x, np.ndarray) and x.dtype.kind in "iu" else 1.0
    return xp_of(x).mean(x * 1.0) * (1 + 0.2 * (0.5 / most - 1))
