"""Every form of message from reading what is no array yet, word for word: exporters, capsules and lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exporters import Exporter, capsule
from messages import NO_IMPORTER, message_of

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

A = np.arange(3.0)


def dlpack(**changes: Any) -> Call:
    return lambda: xbridge.to_numpy(capsule(A, **changes))


def exporter(**words: object) -> Call:
    return lambda: xbridge.to_numpy(Exporter(**words))


def listed(*things: object, **options: Any) -> Call:
    return lambda: xbridge.asarray(list(things), **options)


def released() -> memoryview:
    view = memoryview(b"ab")
    view.release()
    return view


DLPACK = "cannot read a Exporter through DLPack"
READ = "cannot read a Exporter"
LIST = "cannot make an array of this list"

FORMS: list[tuple[Call, type[xbridge.XBridgeError], str, str]] = [
    (
        dlpack(version=(2, 0)),
        xbridge.UnsupportedArrayError,
        DLPACK,
        "it speaks DLPack 2; try numpy.asarray(x)",
    ),
    (
        dlpack(name=b"another"),
        xbridge.UnsupportedArrayError,
        DLPACK,
        (
            "__dlpack__ returned a capsule that was used before, or that is not one of DLPack's; "
            "try numpy.asarray(x)"
        ),
    ),
    (
        dlpack(device=(2, 77)),
        xbridge.DeviceError,
        DLPACK,
        f"its memory is on cuda:77; try moving it to the cpu first{NO_IMPORTER}",
    ),
    (
        dlpack(device=(2, 77), announced=(1, 0)),
        xbridge.UnsupportedArrayError,
        DLPACK,
        "its capsule contradicts itself; try numpy.asarray(x)",
    ),
    (
        dlpack(axes=65),
        xbridge.UnsupportedArrayError,
        DLPACK,
        "its capsule contradicts itself; try numpy.asarray(x)",
    ),
    (
        dlpack(no_shape=True),
        xbridge.UnsupportedArrayError,
        DLPACK,
        "its capsule has no shape; try numpy.asarray(x)",
    ),
    (
        dlpack(data=0),
        xbridge.UnsupportedArrayError,
        DLPACK,
        "its capsule has no memory; try numpy.asarray(x)",
    ),
    (
        dlpack(shape=(2,), strides=(2**62,)),
        xbridge.UnsupportedArrayError,
        DLPACK,
        (
            "its capsule spans no memory of this machine: Python int too large to convert to C long; "
            "try numpy.asarray(x)"
        ),
    ),
    (
        dlpack(code=3),
        xbridge.DTypeError,
        DLPACK,
        "NumPy has no dtype for type code 3 of 64 bits, 1 lanes; try casting it in its own library first",
    ),
    (
        dlpack(lanes=2),
        xbridge.DTypeError,
        DLPACK,
        "NumPy has no dtype for type code 2 of 64 bits, 2 lanes; try casting it in its own library first",
    ),
    (
        exporter(__dlpack__=lambda **_: 1, __dlpack_device__=lambda: (1, 0)),
        xbridge.UnsupportedArrayError,
        DLPACK,
        "__dlpack__ returned int; try numpy.asarray(x)",
    ),
    (
        exporter(__dlpack__=lambda: 1, __dlpack_device__=dict),
        xbridge.UnsupportedArrayError,
        DLPACK,
        (
            "the export failed with ValueError('not enough values to unpack (expected 2, got 0)'); "
            "try numpy.asarray(x)"
        ),
    ),
    (
        exporter(__array_interface__={**A.__array_interface__, "mask": A}),
        xbridge.UnsupportedArrayError,
        READ,
        "its mask would be lost; try filling it in its own library first",
    ),
    (
        exporter(__array__=list),
        xbridge.UnsupportedArrayError,
        READ,
        "its __array__ returned a list; try converting it in its own library first",
    ),
    (
        lambda: xbridge.to_numpy(Exporter(__array__=lambda copy: 1 / 0), copy=False),
        xbridge.CopyError,
        "cannot share the memory of a Exporter",
        "__array__(copy=False) failed with ZeroDivisionError('division by zero'); try copy=None",
    ),
    (
        lambda: xbridge.to_numpy(released()),
        xbridge.UnsupportedArrayError,
        "cannot read a memoryview",
        (
            "its export failed with ValueError('operation forbidden on released memoryview object'); "
            "try a buffer that is still there"
        ),
    ),
    (listed([A], []), xbridge.OptionError, LIST, "its rows differ in length; try rows of one length"),
    (
        listed([A[0], 1.0], {}),
        xbridge.OptionError,
        LIST,
        "it holds arrays and numbers at different depths; try rows of one length",
    ),
    (
        listed([A[0], 1.0], Exporter(shape=(2, 2), __iter__=lambda: iter("ab"))),
        xbridge.OptionError,
        LIST,
        "it holds a table beside rows; try rows of one length",
    ),
    (listed(A, 1.0), xbridge.OptionError, LIST, "it holds shapes (3,), (); try arrays of one shape"),
    (
        listed(A, A.astype("M8[D]")),
        xbridge.DTypeError,
        "cannot stack arrays of float64 and datetime64[D]",
        "they have no common dtype; try leaving out what is datetime64[D]",
    ),
    (
        listed(10**400, 0.5, dtype="float64"),
        xbridge.ValueLossError,
        LIST,
        "its integers are larger than any float; try smaller ones",
    ),
    (
        listed(300, dtype="int8"),
        xbridge.ValueLossError,
        "cannot make a int8 array of this list",
        "an integer does not fit; try dtype='int64'",
    ),
    (
        listed(2**53 + 1, 1j),
        xbridge.ValueLossError,
        "cannot make a float64 array of this list",
        "an integer would be rounded in float64; try dtype='complex128' to say that it may be",
    ),
]


@pytest.mark.parametrize(("call", "error", "asked", "said"), FORMS, ids=[form[3][:70] for form in FORMS])
def test_a_message_says_what_was_asked_why_not_and_what_to_type(
    call: Call, error: type[xbridge.XBridgeError], asked: str, said: str
) -> None:
    assert message_of(call, error) == f"{asked}: {said}"
