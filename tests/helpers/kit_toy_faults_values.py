"""Faults in the values of arrays and in casts, by the test that must notice them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_toy_backend as good
import numpy as np
from kit_toy import Tile
from kit_toy_planting import as_if_dense, layout, same, through

from xbridge.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit_toy import Host
    from kit_toy_planting import Faults


def misspelt(host: Host) -> Tile:
    return Tile(host).plian  # type: ignore[attr-defined,no-any-return]


def quiet(values: Host) -> Host:
    """Every NaN becomes the usual one."""
    if values.dtype.kind == "f" or values.dtype.name == "bfloat16":
        with np.errstate(invalid="ignore"):
            return np.where(np.isnan(values), values.dtype.type("nan"), values).astype(values.dtype)
    return values


def _narrowed(values: Host) -> Host:
    with np.errstate(all="ignore"):
        return values.astype("f4")


def unsigned(values: Host) -> Host:
    """Every zero becomes the positive one."""
    with np.errstate(all="ignore"):
        return values + values.dtype.type(0) if values.dtype.kind == "f" else values


def flushed(values: Host) -> Host:
    """What is subnormal becomes zero."""
    if values.dtype.kind != "f":
        return values
    with np.errstate(all="ignore"):
        return np.where(np.abs(values) < np.finfo(values.dtype).tiny, values * 0, values).astype(values.dtype)


def _cast(x: Tile, dtype: str) -> Tile:
    """Cut the last bits off where they should be rounded."""
    if (x.dtype.name, dtype) != ("float64", "float32"):
        return good.astype(x, dtype)
    bits = x.values().view("u8") & np.uint64(0xFFFFFFFFE0000000)
    return x.like(bits.view("f8").astype("f4"))


def _cast_rounding(x: Tile, dtype: str) -> Tile:
    """Round to the nearest integer, where everybody cuts off."""
    values = x.values()
    whole = np.rint(values) if dtype.startswith(("int", "uint")) and values.dtype.kind == "f" else values
    with np.errstate(all="ignore"):
        return x.like(whole.astype(dtype))


def _saturated(x: Tile, dtype: str) -> Tile:
    """Keep the sign of integers out of the smallest."""
    made = good.astype(x, dtype)
    if (x.dtype.name, dtype) != ("int16", "int8"):
        return made
    return made.like(np.where(x.values() == -128, np.int8(127), made.values()))


def _checked(x: Tile, other: Tile, dtype: str) -> Tile:
    """The tile, if another one passes the check."""
    good.check_cast(other, dtype)
    return x


def _reread(values: Host, dtype: str) -> Host:
    fits = values.dtype.itemsize == np.dtype(dtype if hasattr(np, dtype) else "f2").itemsize
    return values.view(dtype) if fits and hasattr(np, dtype) else good.astype(Tile(values), dtype).values()


def _overwritten(x: Tile, made: Tile) -> Tile:
    if x.memory.flags.writeable and x.memory.dtype.kind == "f":
        x.memory[...] = 0
    return made


def _translated(call: Callable[[], Any], error: type[Exception]) -> Any:
    try:
        return call()
    except OverflowError as found:
        raise error(str(found)) from found


VALUES: Faults = {
    "test_materialize_keeps_every_bit": {
        "the sign of a negation is lost": {
            "materialize": lambda x: same(good.materialize(same(x, neg=False)))
        },
        "a conjugate negates the real part": {
            "materialize": lambda x: good.materialize(same(x, neg=x.neg or x.conj, conj=x.neg))
        },
        "settle does nothing": {"materialize": lambda x: x},
        "subnormals are flushed": {"materialize": through(good.materialize, flushed)},
    },
    "test_to_numpy_keeps_every_bit": {
        "a negation passes for done": layout(materialized=lambda x: not x.conj),
        "a conjugate passes for done": layout(materialized=lambda x: not x.neg),
        "a view without axes gets one": {
            "to_numpy": lambda x: np.atleast_1d(x.memory),
            "fast_to_numpy": lambda x: None,
        },
    },
    "test_memory_layout_points_at_the_bytes": {
        "everything passes for pending": layout(materialized=lambda x: False),
    },
    "test_a_copy_keeps_every_bit": {
        "a copy keeps the pending sign and negates": {"copy": lambda x: same(good.copy(x), neg=x.neg)},
        "the payload of NaN is lost in a copy": {"copy": through(good.copy, quiet)},
        "the sign of zero is lost in a copy": {"copy": through(good.copy, unsigned)},
    },
    "test_from_numpy_keeps_every_bit": {
        "the payload of NaN is lost from the host": {
            "from_numpy": through(good.from_numpy, quiet),
            "fast_from_numpy": lambda host: None,
        },
        "an array without axes gets one": {
            "from_numpy": lambda host: Tile(np.atleast_1d(host)),
            "fast_from_numpy": lambda host: None,
        },
        "strides are ignored from the host": {
            "from_numpy": lambda host: Tile(as_if_dense(host)),
            "fast_from_numpy": lambda host: None,
        },
        "one dtype is narrowed from the host": {
            "from_numpy": lambda host: Tile(_narrowed(host) if host.dtype == "f8" else host),
            "fast_from_numpy": lambda host: None,
        },
        "unsigned bytes become signed": {
            "from_numpy": lambda host: Tile(host.view("i1") if host.dtype == "u1" else host),
            "fast_from_numpy": lambda host: None,
        },
    },
    "test_a_cast_within_the_library_rounds_like_numpy": {
        "the sign of zero is lost in a cast": {"astype": through(good.astype, unsigned)},
    },
    "test_arrays_are_stacked_in_order": {
        "a stack is in the wrong order": {"stack": lambda arrays, shape: good.stack(arrays[::-1], shape)},
        "a stack ignores its shape": {"stack": lambda arrays, shape: good.stack(arrays, (len(arrays),))},
        "a stack is along the last axis": {
            "stack": lambda arrays, shape: arrays[0].like(np.stack([x.values() for x in arrays], -1))
        },
    },
    "test_any_number_of_arrays_is_stacked": {
        "a stack of many ends with its first": {
            "stack": lambda arrays, shape: good.stack(
                arrays if len(arrays) <= 8 else [*arrays[:-1], arrays[0]], shape
            )
        },
        "a stack of one is a view": {
            "stack": lambda arrays, shape: (
                good.stack(arrays, shape)
                if len(arrays) > 1
                else same(arrays[0], memory=arrays[0].memory[(None,) * len(shape)])
            )
        },
        "what is pending on all but the first is forgotten in a stack": {
            "stack": lambda arrays, shape: good.stack(
                [arrays[0], *(same(x, neg=False, conj=False) for x in arrays[1:])], shape
            )
        },
    },
    "test_gradients_flow_from_a_stack_to_each_of_its_arrays": {
        "the history of all but the first ends in a stack": {
            "stack": lambda arrays, shape: good.stack([arrays[0], *map(good.detach, arrays[1:])], shape)
        },
        "the history of all but the last ends in a stack": {
            "stack": lambda arrays, shape: good.stack([*map(good.detach, arrays[:-1]), arrays[-1]], shape)
        },
    },
    "test_accepted_layouts_keep_every_bit": {
        "byte order is ignored": {
            "accepts_layout": lambda info, layout: good.accepts_layout(
                info._replace(native_byteorder=True), layout
            ),
            "from_numpy": lambda host: Tile(host.view(host.dtype.newbyteorder("="))),
        },
    },
    "test_the_fast_path_from_numpy_agrees_with_the_plan": {
        "byte order is ignored on the hot path": {
            "fast_from_numpy": lambda host: good.fast_from_numpy(host.view(host.dtype.newbyteorder("=")))
        },
        "a name is misspelt on the hot path": {"fast_from_numpy": misspelt},
    },
}


CASTS: Faults = {
    "test_a_cast_within_the_library_rounds_like_numpy": {
        "a cast cuts off where it should round": {"astype": _cast},
        "a cast rounds where it should cut off": {"astype": _cast_rounding},
        "a cast reads the bits": {"astype": lambda x, dtype: x.like(_reread(x.values(), dtype))},
        "the least integer becomes the largest": {"astype": _saturated},
        "a cast is to another dtype": {
            "astype": lambda x, dtype: good.astype(x, "float32" if dtype == "float64" else dtype)
        },
    },
    "test_every_layout_is_cast_to_the_same_values": {
        "a cast ignores what is pending": {
            "astype": lambda x, dtype: good.astype(same(x, neg=False, conj=False), dtype)
        },
    },
    "test_a_conversion_does_not_change_its_source": {
        "a cast works in place": {"astype": lambda x, dtype: _overwritten(x, good.astype(x, dtype))},
    },
    "test_declared_host_casts_match_numpy_bit_for_bit": {
        "the host rounds once, the library twice": {
            "astype": lambda x, dtype: good.astype(
                good.astype(x, "float32") if dtype == "float16" else x, dtype
            ),
            "host_casts": frozenset({("float64", "float16")}),
        },
        "the host casts otherwise": {
            "astype": through(good.astype, flushed),
            "host_casts": frozenset({("float64", "float32")}),
        },
        "the library says it casts as the host does, and does not": {
            "astype": through(good.astype, flushed),
            "cast_matches_numpy": lambda dtype, other, device: (dtype, other) == ("float32", "float16"),
        },
    },
    "test_check_cast_raises_if_a_value_would_be_lost": {
        "no loss is noticed": {"check_cast": lambda x, dtype: x},
        "every cast is a loss": {
            "check_cast": lambda x, dtype: _checked(x, Tile(np.full(1, 3e300)), "float32")
        },
        "only large values are losses": {
            "check_cast": lambda x, dtype: _checked(x, Tile(np.maximum(x.values().real, 0)), dtype)
        },
        "the first elements are looked at": {
            "check_cast": lambda x, dtype: _checked(x, Tile(x.values().reshape(-1)[:4]), dtype)
        },
        "one element alone is never lost": {
            "check_cast": lambda x, dtype: good.check_cast(x, dtype) if x.shape else x
        },
        "a check gives a copy": {"check_cast": lambda x, dtype: good.copy(good.check_cast(x, dtype))},
        "infinity is a loss": {
            "check_cast": lambda x, dtype: _checked(x, Tile(np.nan_to_num(x.values().real)), dtype)
        },
        "the wrong error for a loss": {
            "check_cast": lambda x, dtype: _translated(lambda: good.check_cast(x, dtype), OptionError)
        },
    },
    "test_check_cast_detects_loss_in_every_layout_and_on_every_device": {
        "no loss is noticed between strides": {
            "check_cast": lambda x, dtype: good.check_cast(x, dtype) if x.memory.flags.c_contiguous else x
        },
        "no loss is noticed in what is pending": {
            "check_cast": lambda x, dtype: x if x.neg or x.conj else good.check_cast(x, dtype)
        },
        "no loss is noticed far from the host": {
            "check_cast": lambda x, dtype: good.check_cast(x, dtype) if x.place == "host" else x
        },
    },
    "test_the_namespace_makes_arrays_of_the_library": {
        "the default is another float": {
            "default_dtype": lambda kind, device: (
                "float64" if kind == "float" else good.default_dtype(kind, device)
            )
        },
    },
    "test_default_dtypes_are_supported_and_of_their_category": {
        "the default is of another category": {
            "default_dtype": lambda kind, device: (
                "float32" if kind == "int" else good.default_dtype(kind, device)
            )
        },
    },
}


FAULTS = {**VALUES, **CASTS}
