"""An export has the values of its object: its own numbers, with no unit lost, and none rounded or missing."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE = 2**53 + 1
"""The first integer that a float64 rounds."""

CALLS: dict[str, Callable[[Any], Any]] = {
    "to_numpy": xbridge.to_numpy,
    "to_list": xbridge.to_list,
    "align": lambda x: xbridge.align(np.ones(2), x)[1],
    "a list": lambda x: xbridge.asarray([x, x])[0],
    "a tree": lambda x: tree.to_numpy({"x": x}, exporters=True)["x"],
    "a transfer": lambda x: xbridge.transfer(x, "numpy").result(),
}
"""Everything that reads an export."""
if find_spec("torch"):
    CALLS["to_torch"] = xbridge.to_torch


class Scaled:
    """Numbers times a scale. Whatever else is asked is asked of the numbers, as by a wrapper of arrays."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return self.raw * 0.5

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["raw"], name)


class Unit(NamedTuple):
    """A unit, as a library has it: an object whose text is its name."""

    name: str

    def __str__(self) -> str:
        return self.name


class Quantity:
    """Numbers in a unit, which nothing but an attribute tells."""

    def __init__(self, units: object) -> None:
        self.magnitude, self.units = np.array([1.0, 2.0]), units

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return self.magnitude


@pytest.mark.parametrize("name", CALLS)
def test_import_array__protocol_of_what_an_object_wraps_is_not_its_own(name: str) -> None:
    """A protocol counts only if the object has it, so a wrapper that scales gives scaled numbers."""
    x = Scaled(np.array([2.0, 4.0]))
    assert hasattr(x, "__dlpack__")
    made = CALLS[name](x)
    assert np.asarray(made).tolist() == [1.0, 2.0]
    if name == "to_torch":
        made[0] = 9
        assert x.raw.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("name", CALLS)
def test_import_array__unit_is_not_dropped(name: str) -> None:
    """Numbers in a unit are refused, and the advice names their magnitude; those in none are read."""
    for unit in ("km", Unit("metre"), Unit("metre / kilometre")):
        with pytest.raises(xbridge.UnsupportedArrayError, match="would be lost") as caught:
            CALLS[name](Quantity(unit))
        assert caught.value.hint == "x.magnitude"
    for nothing in (None, "", Unit("dimensionless"), 3, str.upper):
        assert np.asarray(CALLS[name](Quantity(nothing))).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_import_array__narwhals_is_refused_where_its_library_is(library: str) -> None:
    """A frame that narwhals wraps is read as the frame itself is."""
    nw, module = pytest.importorskip("narwhals"), pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    for columns in ({"a": [LARGE, 2], "b": [0.5, 1.5]}, {"a": [LARGE, None]}):
        frame = make(columns) if library != "pandas" else make(columns).convert_dtypes()
        for x in (frame, nw.from_native(frame)):
            with pytest.raises(xbridge.DTypeError):
                xbridge.to_numpy(x)
    assert xbridge.to_list(nw.from_native(make({"a": [1, LARGE]}))) == [[1], [LARGE]]


def test_import_array__length_that_raises_is_not_asked_again() -> None:
    """A lazy table refuses its length, and exports its values all the same."""

    class Lazy:
        def __len__(self) -> int:
            raise RuntimeError("use .count()")

        def __array__(self, dtype: object = None, copy: object = None) -> Any:
            return np.array([1.0, 2.0])

    assert xbridge.to_numpy(Lazy()).tolist() == [1.0, 2.0]


def test_import_array__text_is_not_asked_for_a_capsule() -> None:
    """An array of text is refused by its dtype, because a library may end the process in its export."""

    class Text:
        dtype = SimpleNamespace(name="string")  # its text is "<dtype: 'string'>" in TensorFlow

        def __dlpack_device__(self) -> tuple[int, int]:
            raise SystemExit

        __dlpack__ = __dlpack_device__

        def __array__(self, dtype: object = None, copy: object = None) -> Any:
            return np.array([b"a"], object)

    with pytest.raises(xbridge.DTypeError):
        xbridge.to_numpy(Text())
