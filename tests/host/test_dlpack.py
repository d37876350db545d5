"""Objects that export DLPack and nothing else, well-behaved and otherwise."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exporters import Exporter, capsule, dlpack_only
from rawmemory import same_bits, write
from strategies import EXTENDED, HOST_DTYPES

import xbridge

if TYPE_CHECKING:
    from collections.abc import Callable

A = np.arange(6.0)


def test_from_dlpack__dlpack_memory_is_written_only_where_a_versioned_capsule_allows_it() -> None:
    """DLPack memory is written only where a versioned capsule allows it."""
    for make in (capsule, dlpack_only):
        a = A.copy()
        write(xbridge.to_numpy(make(a)))
        assert (a != A).all()
    for x in (
        capsule(A, flags=1),
        capsule(A, name=b"dltensor"),
        capsule(A, shape=(3,), strides=(0,)),
        dlpack_only(np.broadcast_to(A, (2, 6))),
        Exporter(__dlpack__=lambda stream=None: A.__dlpack__(), __dlpack_device__=A.__dlpack_device__),
    ):
        host = xbridge.to_numpy(x)
        assert np.shares_memory(host, A) or host.ndim == 2
        assert not host.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            host.flags.writeable = True


def test_from_dlpack__asks_again_if_the_exporter_knows_no_keywords() -> None:
    """An exporter in C++ that takes `stream` alone refuses other keywords in pybind11's words."""

    def export(*_: object, **keywords: object) -> object:
        if keywords.keys() - {"stream"}:
            raise TypeError("__dlpack__(): incompatible function arguments")
        return A.__dlpack__()

    x = Exporter(__dlpack__=export, __dlpack_device__=A.__dlpack_device__)
    assert np.shares_memory(xbridge.to_numpy(x), A)


def test_from_dlpack__capsule_that_says_it_is_a_copy_shares_nothing() -> None:
    """A capsule that says it is a copy shares nothing."""
    with pytest.raises(xbridge.CopyError, match="try copy=None"):
        xbridge.to_numpy(capsule(A, flags=2), copy=False)
    assert xbridge.to_numpy(capsule(A, flags=2)).tolist() == A.tolist()


CAPSULES: dict[str, tuple[Callable[[], Exporter], list[Any]]] = {
    "reversed": (lambda: capsule(A[::-1]), [5, 4, 3, 2, 1, 0]),
    "transposed": (lambda: capsule(A.reshape(2, 3).T), [[0, 3], [1, 4], [2, 5]]),
    "no strides": (lambda: capsule(A, shape=(2, 3), no_strides=True), [[0, 1, 2], [3, 4, 5]]),
    "an offset": (lambda: capsule(A, offset=8, shape=(2,), strides=(2,)), [1, 3]),
    "pinned": (lambda: capsule(A[:1], device=(3, 0)), [0]),
    "pinned by ROCm": (lambda: capsule(A[:1], device=(11, 0)), [0]),
    "the next minor version": (lambda: capsule(A[:1], version=(1, 99)), [0]),
    "empty without memory": (lambda: capsule(A, data=0, shape=(0,)), []),
    "one element again and again": (lambda: capsule(A[1:], shape=(3,), strides=(0,)), [1, 1, 1]),
    "truth values": (lambda: capsule(A[:2] > 0), [False, True]),
}


@pytest.mark.parametrize("name", CAPSULES)
def test_from_dlpack__capsule_is_read_as_it_is_written(name: str) -> None:
    """A capsule is read as it is written."""
    make, expected = CAPSULES[name]
    assert xbridge.to_numpy(make()).tolist() == expected


def test_from_dlpack__unaligned_memory_is_seen_as_such() -> None:
    """Unaligned memory is seen as such."""
    raw = np.zeros(17, "u1")
    raw[1:].view("f8")[:] = [1.5, 2.5]
    host = xbridge.to_numpy(capsule(raw, offset=1, shape=(2,), strides=(1,), code=2, bits=64))
    assert not host.flags.aligned
    assert host.tolist() == [1.5, 2.5]


U, D, V = xbridge.UnsupportedArrayError, xbridge.DTypeError, xbridge.DeviceError
BROKEN: dict[str, tuple[dict[str, Any], type[xbridge.XBridgeError]]] = {
    "a future major version": ({"version": (2, 0)}, U),
    "another name": ({"name": b"used_dltensor_versioned"}, U),
    "two lanes": ({"lanes": 2}, D),
    "half a byte": ({"code": 0, "bits": 4}, D),
    "a truth value of one bit": ({"code": 6, "bits": 1}, D),
    "a truth value of 64 bits": ({"code": 6, "bits": 64}, D),
    "an opaque handle": ({"code": 3}, D),
    "a complex of halves": ({"code": 5, "bits": 32}, D),
    "quadruple precision": ({"code": 2, "bits": 128}, D),
    "another float8": ({"code": 15, "bits": 8}, D),
    "a GPU": ({"device": (2, 0)}, V),
    "a GPU said to be the host": ({"device": (2, 0), "announced": (1, 0)}, U),
    "negative axes": ({"axes": -1}, U),
    "too many axes": ({"axes": 65}, U),
    "a negative length": ({"shape": (-6,)}, U),
    "a negative length and an empty one": ({"shape": (-6, 0), "no_strides": True}, U),
    "more than there is memory": ({"shape": (2**62,), "strides": (0,)}, U),
    "more than there is memory, of nothing": ({"shape": (2**62, 2**62, 0), "no_strides": True}, U),
    "strides beyond all memory": ({"shape": (2,), "strides": (2**62,)}, U),
    "no memory": ({"data": 0}, U),
}


@pytest.mark.parametrize("name", BROKEN)
def test_from_dlpack__capsule_that_cannot_be_read_is_refused(name: str) -> None:
    """A capsule that cannot be read is refused."""
    changes, error = BROKEN[name]
    with pytest.raises(error, match=r"^cannot read an Exporter"):
        xbridge.to_numpy(capsule(A, **changes))


@pytest.mark.parametrize("answer", [None, 1, "capsule", object(), A], ids=lambda x: type(x).__name__)
def test_from_dlpack__object_that_is_not_a_capsule_is_refused(answer: object) -> None:
    """An object that is not a capsule is refused."""
    with pytest.raises(xbridge.UnsupportedArrayError, match="returned"):
        xbridge.to_numpy(Exporter(__dlpack__=lambda **_: answer, __dlpack_device__=lambda: (1, 0)))


@pytest.mark.parametrize("device", [None, 1, (), ("cpu", 0), (None, 0)], ids=repr)
def test_from_dlpack__object_that_is_not_a_dlpack_device_is_refused(device: object) -> None:
    """An object that is not a DLPack device is refused."""
    with pytest.raises(xbridge.UnsupportedArrayError, match="the export failed"):
        xbridge.to_numpy(Exporter(__dlpack__=A.__dlpack__, __dlpack_device__=lambda: device))


@pytest.mark.slow
def test_from_dlpack__exporter_lives_as_long_as_a_view_of_its_memory() -> None:
    """The exporter lives as long as a view of its memory."""
    owner: Any = np.arange(4.0).view(type("Mine", (np.ndarray,), {}))
    gone = weakref.ref(owner)
    host = xbridge.to_numpy(dlpack_only(owner))[1:].view("u8")
    del owner
    gc.collect()
    assert gone() is not None
    assert host.view("f8").tolist() == [1.0, 2.0, 3.0]
    del host
    gc.collect()
    assert gone() is None


# -- other libraries' capsules -------------------------------------------------------------------


@pytest.mark.parametrize("word", [word for word in EXTENDED if word in HOST_DTYPES])
def test_from_dlpack__what_numpy_cannot_import_comes_bit_for_bit_and_shared(word: str) -> None:
    """What NumPy cannot import comes bit for bit and shared."""
    torch, ml_dtypes = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    dtype = getattr(torch, word, None)
    if dtype is None:
        pytest.skip("torch lacks it")
    raw = torch.arange(256, dtype=torch.uint8).reshape(-1, dtype.itemsize)
    tensor = raw.view(dtype).reshape(-1)
    try:
        tensor.__dlpack__()
    except RuntimeError as error:
        pytest.skip(f"this torch does not export it: {error}")
    host = xbridge.to_numpy(dlpack_only(tensor))
    assert host.dtype == getattr(ml_dtypes, word)
    assert same_bits(host, tensor)
    assert np.shares_memory(host.view("u1"), raw.numpy())


def test_from_dlpack__what_numpy_knows_through_a_missing_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What NumPy knows through a missing library says what to install."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(xbridge.MissingLibraryError) as caught:
        xbridge.to_numpy(capsule(A, code=4, bits=16))
    assert str(caught.value) == (
        "cannot hold bfloat16 in host memory: NumPy knows it through ml_dtypes, which is not installed; "
        "try pip install ml_dtypes"
    )


@pytest.mark.parametrize(
    ("protocols", "hint"),
    [({}, ""), ({"__array__": lambda: A}, "numpy.asarray(x)")],
    ids=["no other protocol", "an array method"],
)
def test_to_numpy__advice_for_a_capsule_needs_another_protocol(protocols: dict[str, Any], hint: str) -> None:
    """`numpy.asarray` is advised only for an object that it does not make an object of."""
    x = Exporter(__dlpack__=lambda **_: 1, __dlpack_device__=lambda: (1, 0), **protocols)
    with pytest.raises(xbridge.UnsupportedArrayError) as caught:
        xbridge.to_numpy(x)
    assert caught.value.hint == hint
