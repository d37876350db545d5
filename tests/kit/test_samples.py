"""What the test kit knows of each library is so: bits, flags and places are looked up in memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import get_backend
from rawmemory import bits, in_place, overlaps, same_bits, touched
from strategies import HOST_DTYPES, host_dtype
from toylib import Toy, complete, make_backend

import xbridge
from xbridge.testing.samples import LayoutCase
from xbridge.testing.samples import numpy as known
from xbridge.testing.samples.derived import DerivedSamples
from xbridge.testing.samples.lookup import samples_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rawmemory import Host

SHAPES = [(), (1,), (3,), (2, 3), (2, 1, 3), (2, 3, 2, 2), (0,), (2, 0, 3)]


def values_of(word: str, shape: tuple[int, ...]) -> Host:
    """Bits of every sort, no two elements alike as far as the dtype goes."""
    dtype = host_dtype(word)
    raw = np.random.default_rng(0).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if word == "bool":
        raw &= 1
    return raw.reshape(-1).view(dtype).reshape(shape)


def laid(case: LayoutCase, words: tuple[str, ...] = HOST_DTYPES) -> Iterator[tuple[Any, Host]]:
    """Arrays of a way in every dtype and shape, with what they hold."""
    for word in words:
        for shape in SHAPES:
            if case.takes(word, shape):
                values = values_of(word, shape)
                values = case.fold(values) if case.fold else values
                yield case.make(values), values


EVERY_LAYOUT = pytest.mark.parametrize(
    ("library", "name"),
    [
        (library, name)
        for library in ("numpy", "torch", "array_api_strict")
        if xbridge.is_available(library)
        for name in samples_of(library).cases
    ],
)


@EVERY_LAYOUT
def test_samples__hold_bits_and_read_them_back(library: str, name: str) -> None:
    """An array of any layout holds a copy of the bits that it was made of, and `read` returns another."""
    kit, backend = samples_of(library), get_backend(library)
    words = [word for word in HOST_DTYPES if not backend.unsupported_dtype(word, xbridge.Device("cpu"))]
    examples = list(laid(kit.cases[name], tuple(words)))
    assert examples
    for array, values in examples:
        info = backend.array_info(array)
        assert (info.dtype, info.requires_grad) == (values.dtype.name, kit.cases[name].tracked)
        plain = getattr(array, "_array", array)
        assert same_bits(plain, values)
        back = kit.read(array)
        assert same_bits(back, values)
        assert back.flags.carray
        assert back.dtype.isnative
        for other in (back, values):
            assert not np.intersect1d(touched(other), touched(plain)).size


@EVERY_LAYOUT
def test_samples__write_changes_every_element(library: str, name: str) -> None:
    """An array is writable exactly when its layout says so, and `write` changes all of it."""
    kit, case = samples_of(library), samples_of(library).cases[name]
    for array, values in laid(case, ("bool", "int32", "float32", "complex64")):
        plain = getattr(array, "_array", array)
        if not case.writable:
            with pytest.raises((ValueError, RuntimeError)):
                kit.write(array)
            assert same_bits(plain, values)
            continue
        kit.write(array)
        assert (bits(plain) != bits(values)).any(-1).all()
        if values.dtype == bool:
            assert in_place(plain).max(initial=0) <= 1


@pytest.mark.parametrize("name", [name for name, case in known.cases.items() if case.as_readonly])
def test_numpy_samples__as_readonly_keeps_the_memory(name: str) -> None:
    """`as_readonly` returns an array over the same memory that cannot be written."""
    case = known.cases[name]
    assert case.as_readonly
    for array, values in laid(case, ("int64", "complex64")):
        places = touched(array)
        frozen = case.as_readonly(array)
        assert np.array_equal(touched(frozen), places)
        assert same_bits(frozen, values)
        with pytest.raises(ValueError, match="read-only"):
            known.write(frozen)


def one_of(kit: Any, name: str, word: str = "complex64", shape: tuple[int, ...] = (2, 3, 2)) -> Any:
    """One array of a way."""
    case, values = kit.cases[name], values_of(word, shape)
    return case.make(case.fold(values) if case.fold else values)


one = partial(one_of, known)


def test_numpy_samples__layouts_are_what_they_are_called() -> None:
    """Each layout has the flags, strides or type that its name promises."""
    assert one("C").flags.carray
    assert one("Fortran").flags.farray
    assert not one("transposed").flags.forc
    assert one("transposed").base is not None
    assert one("strided").strides[-1] == 16
    assert all(stride < 0 for stride in one("reversed").strides)
    offset = one("offset")
    assert isinstance(offset.base, np.ndarray)
    assert in_place(offset).ctypes.data > in_place(offset.base).ctypes.data
    assert one("broadcast").strides[::2] == (0, 0)
    assert touched(one("overlapping")).size < one("overlapping").nbytes
    assert 0 not in one("overlapping").strides
    assert one("odd strides").strides[-1] % 8 == 4
    assert not one("unaligned").flags.aligned
    assert not one("byte-swapped").dtype.isnative
    assert not one("read-only").flags.writeable
    assert type(one("memmap")) is np.memmap
    assert one("wild", shape=(0, 2)).strides == (3, -10)
    assert one("longlong", "int64").dtype.char == "q"
    assert one("longlong", "uint64").dtype.char == "Q"


# -- libraries of which nothing is known ---------------------------------------------------------


def toys(**changes: Any) -> DerivedSamples:
    """What is known of toys, whose backend is not registered."""
    return DerivedSamples(complete(**changes))


READONLY: dict[str, Any] = {"gaps": {}, "assumes_immutable": False}


def test_derived_samples__repeating_memory_is_read_only() -> None:
    """Only a library with read-only arrays gets layouts whose elements share memory."""
    repeating = {"broadcast", "overlapping", "read-only"}
    assert not repeating & set(toys().cases)
    kit = toys(**READONLY)
    assert repeating <= set(kit.cases)
    for name in repeating:
        assert not kit.cases[name].writable
        assert all(not array.data.flags.writeable for array, _ in laid(kit.cases[name]))


def test_derived_samples__omit_unsupported_layouts_and_dtypes() -> None:
    """A library is given no layout or dtype that its backend does not accept."""
    kit = toys(
        accepts_layout=lambda info, layout: info.native_byteorder and min(layout.strides, default=0) >= 0
    )
    assert "byte-swapped" not in kit.cases
    assert "reversed" not in kit.cases
    assert kit.cases["strided"].takes("float64", (2,))
    lacking = toys(unsupported_dtype=lambda dtype, device: "no" if dtype == "int8" else None)
    assert not lacking.cases["C"].takes("int8", (2,))
    assert lacking.cases["C"].takes("int16", (2,))


def test_derived_samples__write() -> None:
    """Arrays of an immutable library cannot be written; others can, unless they are read-only."""
    kit = toys()
    assert not any(case.writable for case in kit.cases.values())
    with pytest.raises(ValueError, match="a Toy on cpu is read-only"):
        kit.write(Toy(np.ones(2)))
    kit = toys(**READONLY)
    for word in ("bool", "float64"):
        toy = kit.cases["strided"].make(values_of(word, (2, 3)))
        before = bits(toy.data)
        kit.write(toy)
        assert (bits(toy.data) != before).any(-1).all()
        as_readonly = kit.cases["strided"].as_readonly
        assert as_readonly
        frozen = as_readonly(toy)
        assert overlaps(frozen.data, toy.data)
        with pytest.raises(ValueError, match="a Toy on cpu is read-only"):
            kit.write(frozen)


def test_derived_samples__read_detaches_materializes_and_moves() -> None:
    """`read` detaches an array, materializes it and moves it to the host, in this order."""
    calls: list[str] = []
    numpy = get_backend("numpy")

    def step(name: str) -> Any:
        def run(x: Toy, *rest: object) -> Toy:
            calls.append(name)
            return Toy(x.data.copy())

        return run

    far = {
        "devices": lambda: (xbridge.Device("far:0"),),
        "array_info": lambda x: numpy.array_info(x.data)._replace(
            device=xbridge.Device("far:0"), requires_grad=True
        ),
        "memory_layout": lambda x: numpy.memory_layout(x.data)._replace(materialized="materialize" in calls),
        "detach": step("detach"),
        "materialize": step("materialize"),
        "to_device": step("to_device"),
    }
    array = np.arange(4.0)
    assert same_bits(toys(**far).read(Toy(array)), array)
    assert calls == ["detach", "materialize", "to_device"]
    with pytest.raises(ValueError, match="on far:0"):
        toys(**far).write(Toy(array))


@pytest.mark.usefixtures("own_registry")
def test_samples_of__follows_the_registry() -> None:
    """The samples are cached for a backend, and derived anew when it is replaced."""
    assert samples_of("numpy") is known
    xbridge.register_backend("toylib", make_backend())
    first = samples_of("toylib")
    assert isinstance(first, DerivedSamples)
    assert samples_of("toylib") is first
    xbridge.register_backend("toylib", make_backend(**READONLY), replace=True)
    assert "broadcast" not in first.cases
    assert "broadcast" in samples_of("toylib").cases
