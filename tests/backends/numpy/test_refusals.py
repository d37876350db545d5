"""NumPy arrays that mean more than their numbers, or have none: refused on the way out, with the way out."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import DTYPES, get_backend, native_dtype
from toylib import Toy, make_backend

import xbridge
from xbridge.testing.samples.numpy import refused

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.usefixtures("own_registry")

U, D = xbridge.UnsupportedArrayError, xbridge.DTypeError


MASKED = [name for name in refused if "mask" in name]


@pytest.mark.parametrize("name", MASKED)
def test_to_numpy__refuses_masked_arrays(name: str) -> None:
    """A masked array is refused by every verb, since its mask would be lost."""
    xbridge.register_backend("toylib", make_backend())
    x = refused[name]()
    calls: list[Callable[[], object]] = [
        lambda: xbridge.to_numpy(x),
        lambda: xbridge.to_numpy(x, copy=True),
        lambda: xbridge.asarray(x),
        lambda: xbridge.asarray([x]),
        lambda: xbridge.to_list(x),
        lambda: xbridge.align(np.ones(2), x),
        lambda: xbridge.to_backend(x, "toylib"),
        lambda: xbridge.to_backend(x, "toylib", dtype="float32"),
    ]
    for call in calls:
        with pytest.raises(
            U,
            match=r"its mask .*would be lost; try (x\.filled\(value\)|x\.data)$",
        ):
            call()
    assert xbridge.backend_of(x) == "numpy"


LEAVING: dict[str, tuple[type[xbridge.XBridgeError], str]] = {
    **dict.fromkeys(("units", "units, 0-d", "a mapped subclass", "characters"), (U, "x.view(numpy.ndarray)")),
    "records": (U, "x['f0']"),
    **dict.fromkeys(("objects", "strings", "bytes", "new strings"), (D, "x.astype(float)")),
    **dict.fromkeys(("dates", "durations"), (D, "x.astype('int64')")),
    "structures": (D, "x['a']"),
    "raw bytes": (D, "x.view(dtype), with the dtype of the items"),
}


@pytest.mark.parametrize("name", LEAVING)
@pytest.mark.parametrize(
    "options", [{}, {"copy": True}, {"dtype": "float32"}, {"dtype": "default"}], ids=repr
)
def test_to_backend__refuses_arrays_without_plain_numbers(name: str, options: dict[str, Any]) -> None:
    """Subclasses, objects, dates and records do not leave NumPy; the hint says what to do."""
    xbridge.register_backend("toylib", make_backend())
    make, (error, hint) = refused[name], LEAVING[name]
    calls: list[Callable[[], object]] = [
        lambda: xbridge.to_backend(make(), "toylib", **options),
        lambda: xbridge.asarray(make(), backend="toylib", **options),
        lambda: xbridge.asarray([make()], backend="toylib", **options),
        lambda: xbridge.to_list(make()),
        lambda: xbridge.align(Toy(np.ones(2)), make()),
    ]
    for call in calls:
        with pytest.raises(error) as caught:
            call()
        assert caught.value.hint == hint


@pytest.mark.parametrize("items", [[2**53 + 1], [2**63], [True, False], [-1, True]], ids=repr)
def test_to_backend__hint_for_whole_numbers_in_objects_keeps_them(items: list[int]) -> None:
    """Python integers in an array of objects are cast to integers, as far as NumPy has a dtype for them."""
    xbridge.register_backend("toylib", make_backend())
    x = np.array(items, object)
    with pytest.raises(D) as caught:
        xbridge.to_backend(x, "toylib")
    made = eval(caught.value.hint, {"x": x})
    assert made.tolist() == items


def test_to_backend__hint_for_objects_that_are_not_all_whole_is_a_float() -> None:
    """A float among many integers is not cut: the hint for all of them is a cast to float."""
    xbridge.register_backend("toylib", make_backend())
    with pytest.raises(D, match=r"; try x\.astype\(float\)$"):
        xbridge.to_backend(np.array([1] * 5000 + [1.5], object), "toylib")


@pytest.mark.parametrize("name", LEAVING)
def test_to_numpy__passes_any_numpy_array(name: str) -> None:
    """What cannot leave NumPy is accepted within NumPy, as it is or copied."""
    x = refused[name]()
    assert xbridge.to_numpy(x) is x
    assert xbridge.asarray(x) is x
    assert xbridge.asarray(x, copy=False, device="cpu", grad="detach") is x
    assert xbridge.align(x, np.ones(2))[0] is x
    copied = xbridge.to_numpy(x, copy=True)
    assert (type(copied), copied.dtype) == (type(x), x.dtype)
    assert copied.tolist() == x.tolist()
    assert not np.shares_memory(copied, x)
    assert (xbridge.backend_of(x), xbridge.device_of(x)) == ("numpy", "cpu")
    assert xbridge.shares_memory(x, x)


@pytest.mark.parametrize(
    ("word", "known"),
    [
        *((word, True) for word in ("longdouble", "clongdouble", "datetime64[s]", "timedelta64[ns]")),
        *((word, False) for word in ("<U4", "S3", "object", "void", "V8", "float99")),
    ],
)
def test_unsupported_dtype__knows_numpy_dtypes(word: str, known: bool) -> None:
    """NumPy has the dtypes of numbers and times that it defines, and no others."""
    lacks = get_backend("numpy").unsupported_dtype(word, xbridge.Device("cpu"))
    assert (lacks and lacks.reason) == (None if known else f"NumPy has no {word}")


@pytest.mark.parametrize("word", ["int1", "uint1"])
def test_dtype_of__small_dtype_stays_in_numpy(word: str) -> None:
    """A dtype of ml_dtypes without a canonical name stays in NumPy."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    xbridge.register_backend("toylib", make_backend())
    x = np.zeros(2, getattr(ml_dtypes, word))
    assert xbridge.to_numpy(x) is x
    assert xbridge.dtype_of(x) == word
    for call in (xbridge.to_list, lambda x: xbridge.to_backend(x, "toylib")):
        with pytest.raises(D, match=rf"{word} is not a numeric dtype; try x\.astype\('float32'\)$"):
            call(x)


def test_to_numpy__refuses_a_cast_that_numpy_lacks() -> None:
    """A pair of dtypes that NumPy cannot cast is an error."""
    pytest.importorskip("ml_dtypes")
    pairs = [
        (one, other)
        for one, other in permutations([word for word in DTYPES if word.startswith("float8")], 2)
        if not np.can_cast(native_dtype(one), native_dtype(other), "unsafe")
    ]
    assert pairs
    for one, other in pairs:
        with pytest.raises(xbridge.DTypeError):
            xbridge.to_numpy(np.ones(3, native_dtype(one)), dtype=other)


def test_stack_many__needs_like_arrays() -> None:
    """Arrays of one shape are stacked in one call, in their common dtype; others are declined."""
    stack_many: Any = get_backend("numpy").fast.stack_many
    one, swapped = np.ones(2), np.ones(2, ">f8")
    assert stack_many([one, one[::-1]]).tolist() == [[1, 1], [1, 1]]
    assert stack_many([swapped]).dtype.isnative
    assert stack_many([np.ones(2, "f4"), one]).dtype == "float64"
    for other in (np.ones(3), np.ones((2, 1)), swapped, np.ones((0, 2))):
        assert stack_many([one, other]) is None
    for odd in (np.array(["a"]), np.array([None]), np.ones(1, "M8[s]"), np.ones((1,) * 64)):
        assert stack_many([odd, odd]) is None
