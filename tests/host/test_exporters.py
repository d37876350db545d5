"""What belongs to no library but exports memory: buffers, array interfaces, `__array__`."""

from __future__ import annotations

import array
import ctypes
import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exporters import Exporter, array_only, interface_only
from rawmemory import write

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

A = np.arange(6.0)


# -- buffers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_to_numpy__typed_array_is_shared_and_keeps_its_dtype(code: str) -> None:
    """A typed array is shared and keeps its dtype."""
    numbers = array.array(code, [1, 2, 3])
    host = xbridge.to_numpy(numbers)
    assert (host.dtype.kind, host.itemsize) == (np.dtype(code).kind, numbers.itemsize)
    host[0] = 7
    assert list(numbers) == [7, 2, 3]
    assert np.shares_memory(xbridge.to_numpy(numbers, copy=False), host)


def test_to_numpy__shared_buffer_cannot_be_resized_under_the_result() -> None:
    """A shared buffer cannot be resized under the result."""
    numbers = array.array("d", [1, 2])
    host = xbridge.to_numpy(numbers)
    with pytest.raises(BufferError):
        numbers.append(3)
    del host
    numbers.append(3)


def view_of(a: Any) -> memoryview:
    """An array as a buffer."""
    return memoryview(a)


BUFFERS: dict[str, Callable[[], object]] = {
    "reversed": lambda: memoryview(array.array("h", [1, 2, 3]))[::-1],
    "read-only": lambda: view_of(A).toreadonly(),
    "two axes": lambda: view_of(np.arange(6, dtype="f4").reshape(2, 3)),
    "0-d": lambda: view_of(np.array(3, "c16")),
    "empty": lambda: view_of(np.ones((0, 3), "?")),
    "half": lambda: view_of(np.ones(2, "f2")),
    "foreign order": lambda: (ctypes.c_int32.__ctype_be__ * 2)(1, 2),
    "a C array": lambda: ((ctypes.c_int16 * 2) * 3).from_buffer_copy(bytes(range(12))),
    "a C number": lambda: ctypes.c_double(2.5),
    "bytes in a view": lambda: memoryview(b"ab"),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_to_numpy__typed_buffer_becomes_the_array_that_it_describes(name: str) -> None:
    """A typed buffer becomes the array that it describes."""
    buffer = BUFFERS[name]()
    view = view_of(buffer)
    host = xbridge.to_numpy(buffer)
    assert host.shape == view.shape
    assert host.astype(host.dtype.newbyteorder("=")).tolist() == np.array(view).tolist()
    assert host.flags.writeable is not view.readonly
    assert host.size == 0 or np.shares_memory(host, np.asarray(view))


def test_to_numpy__plain_bytes_have_no_dtype() -> None:
    """Plain bytes have no dtype."""
    closed = mmap.mmap(-1, 8)
    subclass = type("Raw", (bytes,), {})
    for x in (b"abcdefgh", bytearray(8), closed, subclass(b"abcdefgh")):
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"try numpy\.frombuffer"):
            xbridge.to_numpy(x)
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"frombuffer|item 0 is"):
            xbridge.asarray([x])


def test_to_numpy__buffer_that_is_gone_is_refused() -> None:
    """A buffer that is gone is refused."""
    view, mapped = memoryview(b"ab"), mmap.mmap(-1, 8)
    view.release()
    mapped.close()
    for x in (view, mapped):
        with pytest.raises(xbridge.UnsupportedArrayError, match=r"^cannot "):
            xbridge.to_numpy(x)


class Pair(ctypes.Structure):
    """No number."""

    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_int))


# From Python 3.13 on, "u" is deprecated for "w".
LETTERS = array.array("w" if "w" in array.typecodes else "u", "ab")


@pytest.mark.parametrize(
    "x",
    [memoryview(b"ab").cast("c"), LETTERS, (ctypes.py_object * 1)(), (Pair * 2)()],
    ids=["characters", "letters", "objects", "structures"],
)
def test_to_numpy__buffer_of_no_numbers_is_refused(x: object) -> None:
    """A buffer of no numbers is refused."""
    with pytest.raises(xbridge.DTypeError, match=r"^cannot "):
        xbridge.to_numpy(x)


# -- array interfaces ----------------------------------------------------------------------------


def test_to_numpy__array_interface_is_shared_as_it_says() -> None:
    """An array interface is shared as it says."""
    a = A.copy()
    write(xbridge.to_numpy(interface_only(a)))
    assert (a != A).all()
    frozen = xbridge.to_numpy(interface_only(A, data=(A.ctypes.data, True)))
    assert np.shares_memory(frozen, A)
    assert not frozen.flags.writeable
    assert xbridge.to_numpy(interface_only(A[::-1])).tolist() == A[::-1].tolist()
    assert xbridge.to_numpy(interface_only(np.array([1, 2], ">i2"))).tolist() == [1, 2]


def test_to_numpy__mask_of_an_array_interface_is_not_lost() -> None:
    """The mask of an array interface is not lost."""
    mask = interface_only(np.array([True, False] * 3))
    with pytest.raises(xbridge.UnsupportedArrayError, match="mask"):
        xbridge.to_numpy(interface_only(A, mask=mask))


@pytest.mark.parametrize(
    "interface", [3, {}, {"typestr": "<f8", "shape": (-1,), "version": 3}, {"typestr": "<z9", "shape": ()}]
)
def test_to_numpy__array_interface_that_makes_no_sense_is_refused(interface: object) -> None:
    """An array interface that makes no sense is refused."""
    with pytest.raises(xbridge.UnsupportedArrayError, match="cannot read an Exporter: its export failed"):
        xbridge.to_numpy(Exporter(__array_interface__=interface))


# -- __array__ -----------------------------------------------------------------------------------


def test_to_numpy__result_of_an_array_method_is_read_only() -> None:
    """The result of an array method is read-only."""
    host = xbridge.to_numpy(array_only(A))
    assert np.shares_memory(host, A)
    with pytest.raises(ValueError, match="read-only"):
        host[0] = 9
    with pytest.raises(ValueError, match="WRITEABLE"):
        host.flags.writeable = True
    assert xbridge.to_numpy(array_only(A), copy=True).flags.writeable
    assert np.shares_memory(xbridge.to_numpy(array_only(A), copy=False), A)


def test_to_numpy__array_method_that_cannot_promise_to_share_is_not_trusted_to() -> None:
    """An array method that cannot promise to share is not trusted to."""
    with pytest.raises(xbridge.CopyError, match="try copy=None"):
        xbridge.to_numpy(Exporter(__array__=lambda dtype=None: A), copy=False)
    promises = Exporter(__array__=lambda dtype=None, copy=None: A if copy is False else A.copy())
    assert np.shares_memory(xbridge.to_numpy(promises, copy=False), A)


ANSWERS = [None, 1, [1.0], np.float64(1), np.ma.masked_array(A, A > 2)]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda x: type(x).__name__)
def test_to_numpy__array_method_that_returns_no_array_is_refused(answer: object) -> None:
    """An array method that returns no array is refused."""
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"^cannot "):
        xbridge.to_numpy(array_only(answer))


# -- everything else -----------------------------------------------------------------------------


NOTHING = [None, ..., {}, set(), "text", object(), np, len, slice(1), np.dtype("f4"), np.ndarray, array.array]


@pytest.mark.parametrize("x", NOTHING, ids=lambda x: type(x).__name__)
def test_asarray__what_exports_nothing_is_refused_by_every_verb(x: object) -> None:
    """What exports nothing is refused by every verb."""
    for call in (xbridge.to_numpy, xbridge.asarray, xbridge.to_list):
        with pytest.raises(xbridge.UnsupportedArrayError, match="cannot "):
            call(x)
    with pytest.raises(xbridge.XBridgeError, match="cannot "):
        xbridge.asarray([x])
    if x is not None:  # which passes through
        with pytest.raises(xbridge.XBridgeError, match="cannot "):
            xbridge.align(x)
