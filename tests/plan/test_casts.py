"""The place of a cast: who casts, before or after a move, and what is fused with a transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from facts import CPU, GPU0, HOST, array_of, library, options, steps_of

from xbridge._plan.casts import choose_caster
from xbridge._plan.rules import plan_between
from xbridge._plan.steps import Conversion
from xbridge.protocol import Gap

if TYPE_CHECKING:
    from xbridge import Device

HERE, THERE = (CPU,), (CPU, GPU0)
NARROW = ("float64", "float32")
WIDE = ("float32", "float64")


def conversion_of(source: Any, target: Any, dtypes: tuple[str, str], goal: Device = CPU) -> Any:
    """The two ends of a conversion from one dtype to another."""
    _, info = array_of(dtypes[0], source.places[-1])
    ends = source, target
    return Conversion(*ends, info, options(), dtypes[1], goal)


CASTERS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, str], Device, str]] = {
    # source, target, the two dtypes, the device of the result: who casts
    "no cast": ({}, {}, ("float32", "float32"), CPU, "numpy"),
    "the target": ({}, {"places": THERE}, NARROW, CPU, "target"),
    "a target of the host": ({}, {}, NARROW, CPU, "numpy"),
    "the host, which is as good": (
        {},
        {"places": THERE, "host_casts": frozenset([NARROW])},
        NARROW,
        CPU,
        "numpy",
    ),
    "the host, of fewer bytes to a device": (
        {},
        {"places": THERE, "host_casts": frozenset([NARROW])},
        NARROW,
        GPU0,
        "numpy",
    ),
    "the target, of fewer bytes to a device": (
        {},
        {"places": THERE, "host_casts": frozenset([WIDE])},
        WIDE,
        GPU0,
        "target",
    ),
    "the source, of fewer bytes from a device": ({"places": THERE}, {"places": THERE}, NARROW, CPU, "source"),
    "the target, of more bytes from a device": ({"places": THERE}, {"places": THERE}, WIDE, CPU, "target"),
    "not the source, if its numbers differ": (
        {"places": THERE, "same_casts": False},
        {"places": THERE},
        NARROW,
        CPU,
        "target",
    ),
    "the source, if the target lacks the first": ({}, {"lacks": ("float64",)}, NARROW, CPU, "source"),
    "the host, if both lack a dtype": (
        {"lacks": ("float32",)},
        {"lacks": ("float64",)},
        NARROW,
        CPU,
        "numpy",
    ),
}


@pytest.mark.parametrize("case", CASTERS)
def test_choose_caster__fewest_bytes_move(case: str) -> None:
    """The library casts that has both dtypes, and moves the fewest bytes, if the numbers are the same."""
    source, target, dtypes, goal, caster = CASTERS[case]
    conversion = conversion_of(library("source", **source), library("target", **target), dtypes, goal)
    assert choose_caster(conversion).name == caster


def test_choose_caster__lazy_source_casts_before_it_computes() -> None:
    """A lazy library casts first, if the host would give the same numbers without further transfers."""
    lazy = library("source")
    for target in (library("target", lacks=("float64",)), library("target", places=THERE)):
        assert choose_caster(conversion_of(lazy, target, NARROW), lazy=True) is lazy
    other = library("target", places=THERE, same_casts=False)
    assert choose_caster(conversion_of(lazy, other, NARROW), lazy=True) is other
    poor = library("source", lacks=("float32",))
    assert choose_caster(conversion_of(poor, library("target"), NARROW), lazy=True) is HOST
    # More bytes would go to the device.
    there = library("target", places=THERE)
    assert choose_caster(conversion_of(lazy, there, WIDE, GPU0), lazy=True) is there
    x, info = array_of("float64", address=0, materialized=False, itemsize=8)
    ends = lazy, library("target", lacks=("float64",))
    assert steps_of(plan_between(*ends, x, info, options(dtype="float32")))[:3] == [
        "source astype float32",
        "source materialize",
        "source to_numpy",
    ]
    checked = plan_between(*ends, x, info, options(dtype="float32", check_loss=True))
    assert steps_of(checked) == [
        "source materialize",
        "source to_numpy",
        "numpy check_cast float32",
        "numpy astype float32",
        "target from_numpy",
    ]


def steps_to_device(source: Any, target: Any, dtypes: tuple[str, str], shape: Any = (2, 3)) -> list[str]:
    x, info = array_of(dtypes[0], shape=shape)
    ends = source, target
    return steps_of(plan_between(*ends, x, info, options(dtype=dtypes[1], device=GPU0)))[1:]


def test_order_cast_and_move__narrower_array_moves() -> None:
    """An array is cast before it moves if it has fewer bytes then, and else after it."""
    target = library("target", places=THERE)
    narrow = ["target astype float32", "target to_device cuda:0"]
    assert steps_to_device(library("source"), target, NARROW)[-2:] == narrow
    wide = ["target to_device cuda:0", "target astype float64"]
    assert steps_to_device(library("source"), target, WIDE)[-2:] == wide


def test_order_cast_and_move__library_without_the_host_casts_on_its_device() -> None:
    """A library without arrays on the host moves first, because it casts nothing there."""
    target = library("target", places=(GPU0,), gaps={"host": Gap("never", "a GPU")})
    assert steps_to_device(library("source"), target, NARROW)[-2:] == [
        "target to_device cuda:0",
        "target astype float32",
    ]


STREAMS: dict[str, Any] = {"places": THERE, "streams_from": 24, "host_casts": frozenset([NARROW])}


def test_fuse_transfer__cast_on_the_host_streams() -> None:
    """A cast or a copy on the host and the move are one step, if the target streams such arrays."""
    target = library("target", **STREAMS)
    assert steps_to_device(library("source"), target, NARROW) == [
        "target stream_to_device cuda:0 float32",
    ]
    x, info = array_of(native=False)
    ends = library("source"), target
    plan = plan_between(*ends, x, info, options(device=GPU0))
    assert steps_of(plan)[1:] == ["target stream_to_device cuda:0"]
    assert plan.steps[-1].reason == "its bytes are in foreign order, and it moves from cpu to cuda:0"
    named = plan_between(*ends, x, info, options(device=GPU0, dtype=info.dtype))
    assert steps_of(named)[1:] == ["target stream_to_device cuda:0"]  # no cast, for a policy either


@pytest.mark.parametrize("shape", [(2, 2), (0, 3), (float("nan"), 3)], ids=["small", "empty", "unknown"])
def test_fuse_transfer__arrays_that_do_not_stream(shape: tuple[Any, ...]) -> None:
    """A small or empty array, or one of unknown size, moves after the cast."""
    made = steps_to_device(library("source"), library("target", **STREAMS), NARROW, shape)
    assert made[-3:] == ["numpy astype float32", "target from_numpy", "target to_device cuda:0"]


def test_cast_step__axis_order_is_that_of_the_target() -> None:
    """The host casts into rows for a library that does not keep another order."""
    target = library("target", gaps={"axis_order": Gap("never", "rows")})
    x, info = array_of("float64", itemsize=8)
    ends = library("source"), target
    plan = plan_between(*ends, x, info, options(dtype="float32"))
    assert steps_of(plan)[1] == "numpy astype float32 C"


@pytest.mark.parametrize(
    ("words", "checked"),
    [
        ({"dtype": "float32"}, False),
        ({"dtype": "float32", "check_loss": True}, True),
        ({"dtype": "default"}, True),
    ],
    ids=["named", "named, for exact values", "default"],
)
def test_check_step__dtype_that_was_not_named_loses_nothing(words: dict[str, Any], checked: bool) -> None:
    """Values are checked if the caller did not name the dtype, or asked for exact values."""
    x, info = array_of("float64", itemsize=8)
    ends = library("source"), library("target")
    plan = plan_between(*ends, x, info, options(**words))
    assert [step.action for step in plan.checks] == (["check_cast float32"] if checked else [])
    same, same_info = array_of("float32")
    assert plan_between(*ends, same, same_info, options(**words)).checks == ()
