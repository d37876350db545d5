"""Shared memory, round trips and changes are told, whatever the library.

What is shared is compared with what a write through one array does to the other.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.test_assertions import A, Host, said
from numpy.lib.stride_tricks import as_strided
from toylib import Toy, make_backend

import xbridge
from xbridge.backends import numpy as host
from xbridge.testing import (
    assert_independent,
    assert_roundtrip,
    assert_shares_memory,
    assert_unchanged,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import ArrayInfo


@pytest.fixture
def toy(own_registry: None) -> type[Toy]:
    """A library of a stranger."""
    xbridge.register_backend("toylib", make_backend())
    return Toy


# -- memory --------------------------------------------------------------------------------------


def shared(a: Any, b: Any) -> bool:
    """What one assertion says; the other must say the opposite."""
    try:
        assert_independent(a, b)
    except AssertionError:
        assert_shares_memory(a, b)
        return True
    with pytest.raises(AssertionError, match=r"no memory in common:\n  numpy .*: bytes 0x"):
        assert_shares_memory(a, b)
    return False


@st.composite
def windows(draw: st.DrawFn) -> tuple[Host, Host, Host]:
    """Memory, and two arrays in it."""
    memory = np.zeros(400, np.uint8)

    def window() -> Host:
        shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
        strides = [draw(st.integers(-20, 20)) for _ in shape]
        dtype = draw(st.sampled_from(["u1", "u2", "u4"]))
        return as_strided(memory[200 + draw(st.integers(-30, 30)) :][:8].view(dtype)[:1], shape, strides)

    return memory, window(), window()


@given(windows())
def test_assert_shares_memory__agrees_with_the_effect_of_a_write(drawn: tuple[Host, Host, Host]) -> None:
    """Two arrays share memory exactly when a write to one is visible in the other."""
    memory, a, b = drawn
    seen = shared(a, b)
    a.view(f"u{a.itemsize}")[...] = np.iinfo(f"u{a.itemsize}").max
    assert memory.any() == bool(a.size)
    assert seen == bool(b.any())


def test_assert_shares_memory__across_libraries(toy: type[Toy]) -> None:
    """Arrays of two libraries over the same memory share it; copies and scalars do not."""
    assert shared(A, toy(A[1:]))
    assert not shared(A, toy(A.copy()))
    assert not shared(A, A.copy())
    assert not shared(A[0, 0], A)
    assert not shared(np.float64(1), np.float64(1))


# -- there and back ------------------------------------------------------------------------------


def test_assert_roundtrip__lossless_library_passes(toy: type[Toy]) -> None:
    """A library that returns every array unchanged passes, in both directions."""
    for array in (A, A.T, np.array([np.nan, -0.0]), np.zeros((0, 2), "i1"), np.float64(2)):
        assert_roundtrip(array, "toylib")
        assert_roundtrip(array, "numpy")
        assert_roundtrip(Toy(np.asarray(array)), "numpy", copy=True)


WAYS = {
    "a value": ({"from_numpy": lambda a: Toy(a + 1)}, "on the way to toylib:", "values"),
    "the sign of zero": ({"from_numpy": lambda a: Toy(a + 0.0)}, "on the way to toylib:", "zeros"),
    "the dtype": ({"from_numpy": lambda a: Toy(a.astype("f4"))}, "on the way to toylib:", "dtype"),
    "the shape": ({"from_numpy": lambda a: Toy(a.T)}, "on the way to toylib:", "shape"),
    "a value on the way back": ({"to_numpy": lambda x: x.data + 1}, "on the way back from toylib:", "values"),
}


@pytest.mark.parametrize(("fault", "way", "what"), WAYS.values(), ids=WAYS)
def test_assert_roundtrip__reports_the_lossy_direction(
    own_registry: None, fault: dict[str, Any], way: str, what: str
) -> None:
    """The message says what was changed, and whether on the way there or back."""
    xbridge.register_backend("toylib", make_backend(**fault))
    with pytest.raises(AssertionError, match=what) as failure:
        assert_roundtrip(-0.0 * A, "toylib")
    assert said(failure)[0] == way


HERE, ELSEWHERE = xbridge.Device("cpu"), xbridge.Device("toy:0")


def placed(**changes: Any) -> Toy:
    """A toy on a device; `changes` replace verbs of its library, where each toy knows where it is."""

    def array_info(x: Toy) -> ArrayInfo:
        return host.array_info(x.data)._replace(device=getattr(x, "place", HERE))

    def move(x: Toy, device: xbridge.Device) -> Toy:
        y = Toy(x.data.copy())
        vars(y)["place"] = device
        return y

    def resolve_device(device: xbridge.Device, near: xbridge.Device) -> xbridge.Device:
        return device

    verbs = {"array_info": array_info, "to_device": move, "resolve_device": resolve_device, **changes}
    xbridge.register_backend("toylib", make_backend(devices=lambda: (HERE, ELSEWHERE), **verbs))
    return move(Toy(A), ELSEWHERE)


def test_assert_roundtrip__between_host_and_device(own_registry: None) -> None:
    """An array on a device survives the way to a host library, and vice versa."""
    assert_roundtrip(placed(), "numpy")
    assert_roundtrip(A, "toylib", device=ELSEWHERE)


def test_assert_roundtrip__device_lost_on_the_way_back(own_registry: None) -> None:
    """An array that does not return to its device is reported."""
    toy = placed(to_device=lambda x, device: Toy(x.data.copy()))
    with pytest.raises(AssertionError, match=r"^on the way back from numpy:\nthe arrays differ in device:"):
        assert_roundtrip(toy, "numpy")


def test_assert_roundtrip__refused_conversion_raises_its_own_error() -> None:
    """A conversion that is refused raises its own error, not an AssertionError."""
    with pytest.raises(xbridge.UnknownBackendError):
        assert_roundtrip(A, "nolib")
    with pytest.raises(xbridge.DeviceError):
        assert_roundtrip(A, "numpy", device="cuda")


# -- unchanged -----------------------------------------------------------------------------------


def set_value(a: Host) -> None:
    a[1, 1] = 7.0


def swap_bytes(a: Host) -> None:
    a[...] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5 and later, where it can be set too
        a.dtype = a.dtype.newbyteorder()  # type: ignore[misc] # it can be set


def set_shape(a: Host) -> None:
    a.resize((3, 2), refcheck=False)


def lock(a: Host) -> None:
    a.flags.writeable = False


CHANGES = {
    "a value": (set_value, r"1 of 6 values:\n"),
    "the shape": (set_shape, r"shape: \(2, 3\) became \(3, 2\)\n"),
    "the byte order": (swap_bytes, r"native_byteorder: True became False\n"),
    "the flags": (lock, r"writable: True became False\n  flags: "),
}


def changes(a: Host, change: Callable[[Host], None], error: Exception) -> None:
    change(a)
    raise error


@pytest.mark.parametrize(("change", "what"), CHANGES.values(), ids=CHANGES)
def test_assert_unchanged__reports_what_changed(change: Callable[[Host], None], what: str) -> None:
    """A change of the values, shape, byte order or flags is reported for the array by its index."""
    array = A.copy()
    with pytest.raises(AssertionError, match=rf"^array 1 was changed:\n.*{what}"), assert_unchanged(A, array):
        change(array)


def test_assert_unchanged__reports_every_changed_array() -> None:
    """The message lists all arrays that were changed, and no others."""
    arrays = [A.copy(), A.copy(), A.copy()]
    with pytest.raises(AssertionError) as failure, assert_unchanged(*arrays):
        arrays[0][...] = arrays[2][...] = 0
    assert [line for line in said(failure) if "was changed" in line] == [
        "array 0 was changed:",
        "array 2 was changed:",
    ]


@pytest.mark.parametrize("change", [np.sum, set_value])
def test_assert_unchanged__exception_in_the_block(change: Callable[[Host], None]) -> None:
    """An exception in the block is raised as it is, with the report of a change, if any, as a note."""
    error, array = ValueError("no"), A.copy()
    with pytest.raises(ValueError) as failure, assert_unchanged(array):
        changes(array, change, error)
    assert failure.value is error
    assert error.__context__ is None
    notes = [note.splitlines()[:2] for note in getattr(error, "__notes__", [])]
    report = ["array 0 was changed:", "the arrays differ in 1 of 6 values:"]
    assert notes == ([report] if change is set_value else [])
