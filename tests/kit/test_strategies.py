"""The strategies draw what they say, all that they say, and examples that a person can read."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from drawing import drawn, least
from hypothesis import given
from hypothesis import strategies as st
from inside import category, get_backend
from rawmemory import same_bits
from strategies import HOST_DTYPES
from toylib import Toy, make_backend

import xbridge
from xbridge import Device
from xbridge.testing.samples import numpy as known
from xbridge.testing.strategies import (
    arrays,
    arrays_together,
    devices,
    dtypes,
    host_arrays,
    layouts,
    samples,
    xp_dtypes,
)

# -- what is drawn is as it is said to be ---------------------------------------------------------


@given(st.data())
def test_samples__requested_dtype_shape_and_writability(data: st.DataObject) -> None:
    """The array has the dtype, shape and writability that were requested."""
    dtype, writable = data.draw(dtypes("numpy")), data.draw(st.booleans())
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    sample = data.draw(samples("numpy", dtypes=dtype, shapes=shape, writable=writable, requires_grad=False))
    assert (sample.array.dtype.name, sample.array.shape) == (dtype, shape)
    assert sample.array.flags.writeable == writable


@pytest.mark.parametrize("layout", known.cases)
def test_samples__layouts_by_name(layout: str) -> None:
    """Each layout can be requested by its name."""
    assert {sample.layout for sample in drawn(samples("numpy", layouts=layout), 20)} == {layout}


@pytest.mark.slow
def test_samples__everything_is_drawn_by_default() -> None:
    """Without options, every layout and dtype is drawn, with and without axes, elements and writability."""
    some = drawn(samples("numpy"), 1500)
    assert {sample.layout for sample in some} == set(known.cases)
    assert {sample.values.dtype.name for sample in some} == set(HOST_DTYPES)
    assert {sample.values.ndim for sample in some} == {0, 1, 2, 3, 4}
    assert {0 in sample.values.shape for sample in some} == {True, False}
    frozen = {sample.layout for sample in some if not sample.writable}
    assert {"C", "Fortran", "reversed", "broadcast", "byte-swapped", "read-only", "memmap"} <= frozen


def test_arrays__options_as_strategies_or_objects() -> None:
    """Options may be strategies, and dtypes may be objects of the library."""
    strategy = arrays(
        "numpy",
        dtypes=st.sampled_from(["int8", np.dtype("float32"), np.uint16]),
        shapes=st.sampled_from([(3,), (2, 2)]),
        layouts=layouts("numpy"),
        devices=devices("numpy"),
        elements=st.integers(0, 9),
    )
    some = drawn(strategy)
    assert {x.dtype.name for x in some} == {"int8", "float32", "uint16"}
    assert {x.shape for x in some} == {(3,), (2, 2)}
    assert {x.dtype.name for x in drawn(arrays("numpy", dtypes=np.float16), 10)} == {"float16"}
    assert {x.shape for x in drawn(arrays("numpy", shapes=3), 10)} == {(3,)}


def test_arrays__list_of_dtypes(own_registry: None) -> None:
    """Of a list of dtypes, those that the library has are drawn; it is refused if there are none."""
    some = drawn(arrays("numpy", dtypes=["float64", np.int8]))
    assert {x.dtype.name for x in some} == {"float64", "int8"}
    lacks = get_backend("numpy").unsupported_dtype("float31", Device("cpu"))
    xbridge.register_backend(
        "toylib", make_backend(unsupported_dtype=lambda dtype, device: lacks if dtype == "float64" else None)
    )
    some = drawn(arrays("toylib", dtypes=("float64", "int8")))
    assert {x.data.dtype.name for x in some} == {"int8"}
    with pytest.raises(xbridge.DTypeError, match=r"draw toylib arrays of 'float64': NumPy has no float31"):
        arrays("toylib", dtypes=["float64"])


def test_dtypes__kinds() -> None:
    """kinds= restricts the dtypes to one or several kinds."""
    for kind in ("bool", "int", "float", "complex"):
        names = set(drawn(dtypes("numpy", kinds=kind)))
        assert names == {name for name in HOST_DTYPES if category(name) == kind}
    assert set(drawn(dtypes("numpy", kinds=("bool", "complex")))) == {"bool", "complex64", "complex128"}


def test_devices__shrink_to_the_host(own_registry: None) -> None:
    """All devices of a backend are drawn, and the simplest one is the host."""
    assert set(drawn(devices("numpy"))) == {Device("cpu")}
    places = (Device("cpu"), Device("far:0"))
    xbridge.register_backend("toylib", make_backend(devices=lambda: places))
    assert set(drawn(devices("toylib"))) == set(places)
    assert least(devices("toylib")) == "cpu"


# -- arrays for one call go together ---------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_arrays_together__same_device_dtype_and_shape(library: str) -> None:
    """By default, arrays drawn together have the same device, dtype and shape."""
    if not xbridge.is_available(library):
        pytest.skip(f"{library} is not installed")
    for x, y, z in drawn(arrays_together(library, 3), 30):
        assert tuple(x.shape) == tuple(y.shape) == tuple(z.shape)
        assert xbridge.dtype_of(x) == xbridge.dtype_of(y) == xbridge.dtype_of(z)
        assert xbridge.device_of(x) == xbridge.device_of(y) == xbridge.device_of(z)


def test_arrays_together__shapes() -> None:
    """Shapes broadcast to that of the first array, or are the given ones."""
    some = drawn(arrays_together("numpy", 3, shapes="broadcastable"), 80)
    for group in some:
        assert np.broadcast_shapes(*(x.shape for x in group)) == group[0].shape
    assert {len({x.shape for x in group}) for group in some} >= {1, 2, 3}
    ((x, y),) = drawn(arrays_together("numpy", shapes=[(2, 3), (3,)]), 1)
    assert (x.shape, y.shape) == ((2, 3), (3,))


def test_arrays_together__dtypes() -> None:
    """Dtypes are ones that the standard promotes, or the given one for every array."""
    strict = pytest.importorskip("array_api_strict")
    some = drawn(arrays_together("array_api_strict", dtypes="promotable", devices="cpu"), 80)
    for x, y in some:
        strict.result_type(x, y)
    assert any(x.dtype != y.dtype for x, y in some)
    for dtype in ("float32", xp_dtypes("numpy", "float").filter(lambda word: word == "float32")):
        assert {x.dtype.name for pair in drawn(arrays_together("numpy", dtypes=dtype), 10) for x in pair} == {
            "float32"
        }


def test_xp_dtypes__follow_the_configuration() -> None:
    """Dtypes of the standard are drawn only if the library has them in its current configuration."""
    assert set(drawn(xp_dtypes("numpy", ("float", "complex")))) == {
        "float32",
        "float64",
        "complex64",
        "complex128",
    }
    if xbridge.is_available("jax"):
        import jax

        with jax.enable_x64(False):
            assert set(drawn(xp_dtypes("jax", "float"))) == {"float32"}


def test_arrays_together__of_a_dtype_that_one_device_lacks() -> None:
    """Arrays of a named dtype are drawn on the devices that have it."""
    pytest.importorskip("array_api_strict")
    for x, y in drawn(arrays_together("array_api_strict", dtypes="float64"), 30):
        assert x.dtype == y.dtype
        assert "float64" in str(x.dtype)


# -- what cannot be is refused when it is asked ---------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"dtypes": "float31"}, xbridge.DTypeError, "float31"),
        ({"dtypes": "datetime64[s]"}, xbridge.DTypeError, "datetime64"),
        ({"layouts": "revers"}, xbridge.OptionError, "try layouts='reversed'$"),
        ({"layouts": 3}, xbridge.OptionError, "try layouts='C'$"),
        ({"shapes": (2, -1)}, xbridge.OptionError, r"shape \(2, -1\)"),
        ({"shapes": "ab"}, xbridge.OptionError, "shape 'ab'"),
        ({"shapes": np.array([2, 3])}, xbridge.OptionError, r"try shapes=\(2, 3\)$"),
        ({"devices": "cuda:0"}, xbridge.DeviceError, "'cuda:0'"),
        ({"devices": "c p u"}, xbridge.DeviceError, "c p u"),
        ({"requires_grad": "yes"}, xbridge.OptionError, "requires_grad='yes'"),
        ({"elements": (1, 0)}, xbridge.OptionError, r"elements=\(1, 0\)"),
        ({"elements": (0, 10**400)}, xbridge.OptionError, "finite"),
        ({"elements": (np.float32("nan"), 1)}, xbridge.OptionError, "finite"),
        ({"elements": ("a", "b")}, xbridge.OptionError, "finite"),
        ({"nan": "loud"}, xbridge.OptionError, "; try "),
        ({"dtypes": ["float32", "nearest"]}, xbridge.DTypeError, "'nearest': that is not a numeric dtype"),
        ({"elements": (0, 300), "dtypes": "int8"}, xbridge.DTypeError, "int8"),
        ({"layouts": "wild", "shapes": (2,)}, xbridge.OptionError, r"layouts='wild'"),
        ({"layouts": "byte-swapped", "dtypes": "int8"}, xbridge.OptionError, "byte-swapped"),
        ({"layouts": "read-only", "writable": True}, xbridge.OptionError, "read-only"),
    ],
    ids=repr,
)
def test_arrays__refuse_impossible_options_at_once(
    asked: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Options that cannot be met are refused as soon as the strategy is made."""
    for strategy in (arrays, samples):
        with pytest.raises(error, match=words):
            strategy("numpy", **asked)


@pytest.mark.parametrize("word", ["dtype", "shape", "layout", "device"])
def test_arrays__options_in_the_singular(word: str) -> None:
    """An option that is written in the singular is refused with the plural, which works."""
    asked: Any = {word: "a"}
    for args, make in ((("numpy",), arrays), ((), host_arrays)):
        with pytest.raises(xbridge.CallError, match=f"try {word}s='a'"):
            make(*args, **asked)


def test_strategies__refuse_an_unknown_backend_at_once() -> None:
    """Every strategy refuses an unknown backend as soon as it is made."""
    for ask in (arrays, samples, dtypes, layouts, devices):
        with pytest.raises(xbridge.UnknownBackendError, match="nolib"):
            ask("nolib")


def test_dtypes__refuse_missing_kinds_at_once(own_registry: None) -> None:
    """Unknown kinds, and kinds of which a library has no dtype, are refused at once."""
    with pytest.raises(xbridge.OptionError, match="the kinds are bool, int, float, complex"):
        dtypes("numpy", kinds="real")
    lacks = get_backend("numpy").unsupported_dtype("float31", Device("cpu"))
    xbridge.register_backend(
        "toylib", make_backend(unsupported_dtype=lambda dtype, device: lacks if "complex" in dtype else None)
    )
    with pytest.raises(xbridge.OptionError, match="it has none of them"):
        dtypes("toylib", kinds="complex")
    with pytest.raises(xbridge.DTypeError, match="NumPy has no float31"):
        arrays("toylib", dtypes="complex64")


# -- other libraries -----------------------------------------------------------------------------


@pytest.fixture
def toylib(own_registry: None) -> None:
    """A library of which the kit knows nothing, on two devices and with gradients."""
    numpy = get_backend("numpy")
    places = (Device("cpu"), Device("far:0"))

    def made(x: Toy, *, far: bool, tracked: bool) -> Toy:
        toy = Toy(x.data.copy() if far else x.data)
        vars(toy).update(far=far, tracked=tracked)
        return toy

    def is_far(x: Toy) -> bool:
        return bool(vars(x).get("far", False))

    changes: dict[str, Any] = {
        "devices": lambda: places,
        "assumes_immutable": False,
        "resolve_device": lambda device, near: device,
        "to_device": lambda x, device: made(x, far=True, tracked=False),
        "detach": lambda x: x,
        "require_grad": lambda x: made(x, far=is_far(x), tracked=True),
        "array_info": lambda x: numpy.array_info(x.data)._replace(device=places[is_far(x)]),
        "unsupported_dtype": lambda dtype, device: numpy.unsupported_dtype(
            "" if device != "cpu" and dtype == "int8" else dtype, device
        ),
    }
    xbridge.register_backend("toylib", make_backend(**changes))


@pytest.mark.usefixtures("toylib")
def test_samples__unknown_library_on_every_device() -> None:
    """Arrays of a library that the kit does not know are drawn on all of its devices."""
    some = drawn(samples("toylib"), 200)
    kinds = {(xbridge.device_of(sample.array), sample.tracked, sample.writable) for sample in some}
    assert kinds == {
        (place, *flags) for place in ("cpu", "far:0") for flags in ((False, True), (True, False))
    }
    for sample in some:
        assert same_bits(sample.array.data, sample.values)
        assert sample.values.dtype.isnative
        assert sample.values.flags.carray
        assert sample.tracked == vars(sample.array).get("tracked", False)
