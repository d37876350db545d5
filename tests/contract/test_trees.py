"""What a tree converts, keeps and casts is the same for every pair of libraries, and in the background."""

from __future__ import annotations

from array import array
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARIES = [name for name in ("numpy", "torch", "jax", "dask", "array_api_strict") if find_spec(name)]
PAIRS = list(product(LIBRARIES, LIBRARIES))
WAYS: dict[str, Callable[..., Any]] = {
    "tree": tree.to_backend,
    "transfer": lambda x, *args, **options: xbridge.transfer(x, *args, **options).result(),
    "prefetch": lambda x, *args, **options: next(iter(xbridge.prefetch([x], *args, **options))),
}
MAPPED = {"float32": "complex64", np.dtype("int32"): "int16"}
OBJECTS = np.array(["a", None], object)

pytestmark = [
    pytest.mark.parametrize("way", WAYS),
    pytest.mark.parametrize(("source", "target"), PAIRS),
]


def made_by(library: str, values: Any, dtype: str = "float32") -> Any:
    return xbridge.to_backend(np.array(values, dtype), library)


def test_tree__only_arrays_of_the_named_libraries_are_converted(source: str, target: str, way: str) -> None:
    """With `only`, arrays of the named libraries are converted, and all others are the same objects."""
    batch = {name: made_by(name, [1, 2]) for name in LIBRARIES}
    module = xbridge.array_namespace(batch[target])
    for only in (source, [source], (source, module)):
        made = WAYS[way]({**batch, "n": 3}, target, only=only)
        names = {source, target} if only == (source, module) else {source}
        assert made.pop("n") == 3
        for name, x in batch.items():
            assert xbridge.backend_of(made[name]) == (target if name in names else name)
            assert name in names or made[name] is x
    assert tree.to_backend(batch[source], target, only=()) is batch[source]
    made = WAYS[way]({**batch, "buffer": array("f", [1])}, target, only=source, exporters=True)
    assert xbridge.backend_of(made.pop("buffer")) == target
    assert all(made[name] is x for name, x in batch.items() if name != source)  # arrays are no exporters
    named = tree.map(xbridge.backend_of, {**batch, "n": 3}, only=source)
    assert named[source] == source
    assert all(named[name] is x for name, x in batch.items() if name != source)
    (aligned,) = tree.align(batch, backend=target, only=source)
    assert [xbridge.backend_of(aligned[name]) for name in (source, target)] == [target, target]
    assert all(aligned[name] is x for name, x in batch.items() if name not in (source, target))


def test_tree__what_the_target_cannot_have_is_kept_if_asked(source: str, target: str, way: str) -> None:
    """With `unsupported="keep"`, objects stay what they are; by default they are an error."""
    dates = np.array(["2020-01-01"], "M8[D]")
    batch = {"x": made_by(source, [1, 2]), "objects": OBJECTS, "more": [dates, made_by(source, [3])]}
    made = WAYS[way](batch, target, unsupported="keep")
    assert made["objects"] is OBJECTS
    assert made["more"][0] is dates
    assert {xbridge.backend_of(y) for y in (made["x"], made["more"][1])} == {target}
    assert xbridge.to_list(made["more"][1]) == [3]
    ((y, *kept),) = tree.align([batch["x"], OBJECTS, dates], backend=target, unsupported="keep")
    assert (xbridge.backend_of(y), kept[0] is OBJECTS, kept[1] is dates) == (target, True, True)
    if target != "numpy":  # whose own they are
        with pytest.raises(xbridge.DTypeError):
            WAYS[way](batch, target)
    with pytest.raises(xbridge.OptionError):
        WAYS[way](batch, target, unsupported="drop")
    with pytest.raises(xbridge.DeviceError):  # no matter of dtypes
        WAYS[way](batch, target, device="nowhere", unsupported="keep")


def test_tree__arrays_without_axes_become_numbers_if_asked(source: str, target: str, way: str) -> None:
    """With `scalars="python"`, arrays without axes become Python numbers; `scalars=True` is the way back."""
    batch = {"loss": made_by(source, 0.5), "n": made_by(source, 3, "int32"), "x": made_by(source, [1.5])}
    made = WAYS[way]({**batch, "text": np.str_("a")}, target, scalars="python")
    assert (made["loss"], type(made["loss"]), made["n"], type(made["n"])) == (0.5, float, 3, int)
    assert (xbridge.backend_of(made["x"]), made["text"]) == (target, "a")
    back = WAYS[way](made, source, scalars=True)
    assert {xbridge.backend_of(back[key]) for key in batch} == {source}
    assert {key: xbridge.to_list(back[key]) for key in batch} == {"loss": 0.5, "n": 3, "x": [1.5]}


def test_tree__numbers_are_of_arrays_converted_as_asked(source: str, target: str, way: str) -> None:
    """What arrays without axes do with the other options, they do with `scalars="python"` too."""
    batch = {"x": made_by(source, 0.7), "y": made_by(source, [1.0])}
    assert WAYS[way](batch, target, dtype="int32", scalars="python")["x"] == 0
    for options in ({"device": "nowhere"}, {"copy": "no"}, {"dtype": "int32", "copy": False}):
        with pytest.raises(xbridge.XBridgeError):
            WAYS[way](batch, target, **options)
        with pytest.raises(xbridge.XBridgeError):
            WAYS[way](batch, target, scalars="python", **options)
    nothing = np.array(None, dtype=object)
    for x in (np.datetime64("2024"), np.array("2024", "M8[D]"), np.ma.array(1.0, mask=True), nothing):
        kept = WAYS[way]({**batch, "t": x}, target, scalars="python", unsupported="keep")
        assert isinstance(kept["x"], float)
        assert kept["t"] is x or (target == "numpy" and kept["t"] == x)  # NumPy has dates
        if target != "numpy":
            with pytest.raises(xbridge.XBridgeError, match=r"^at tree\['t'\]: "):
                WAYS[way]({**batch, "t": x}, target, scalars="python")


def test_tree__dtypes_are_mapped_one_by_one(source: str, target: str, way: str) -> None:
    """A mapping names a dtype for arrays of each dtype, in trees as in the calls of one array."""
    xs = [made_by(source, [1, 2], dtype) for dtype in ("float32", "int32", "int8")]
    for made in (
        WAYS[way](xs, target, dtype=MAPPED),
        [xbridge.to_backend(x, target, dtype=MAPPED) for x in xs],
        [xbridge.asarray(x, backend=target, dtype=MAPPED) for x in xs],
        xbridge.align(*xs, backend=target, dtype=MAPPED),
    ):
        assert [xbridge.backend_of(y) for y in made] == [target] * 3
        assert [xbridge.dtype_of(y) for y in made] == ["complex64", "int16", "int8"]
        assert [xbridge.to_list(y) for y in made] == [[1, 2]] * 3
    seen: list[str] = []
    call = xbridge.aligned(backend=target, dtype=MAPPED)(lambda x: seen.append(xbridge.dtype_of(x)))
    for x in xs * 2:
        call(x)
    assert seen == ["complex64", "int16", "int8"] * 2
    plans = [xbridge.explain(x, target, dtype=MAPPED) for x in xs]
    assert [plan.target.dtype for plan in plans] == ["complex64", "int16", "int8"]
