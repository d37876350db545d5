"""The rules from facts to plans: what is shared, copied, cast and moved, and what is refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from facts import CPU, GPU0, HOST, SHARDED, array_of, library, options, steps_of

import xbridge
from xbridge import Device
from xbridge._plan.rules import destination, plan_between, plan_within
from xbridge._plan.steps import Op
from xbridge.protocol import Backend, Gap, Transfers

READERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = {
    # the target, the array, the options: what the host does between the two libraries
    "plain memory": ({}, {}, {}, []),
    "read-only memory": ({}, {"writable": False}, {}, ["numpy as_readonly"]),
    "memory with a graph": ({}, {"requires_grad": True}, {}, ["numpy as_readonly"]),
    "elements that share memory": ({}, {"strides": (0, 4)}, {}, ["numpy as_readonly"]),
    "copy=True": ({}, {}, {"copy": True}, ["numpy copy"]),
    "writable=True of plain memory": ({}, {}, {"writable": True}, []),
    "writable=False of plain memory": ({}, {}, {"writable": False}, []),
    "writable=False of new memory": ({}, {}, {"writable": False, "copy": True}, ["numpy copy"]),
    "writable=True of read-only memory": ({}, {"writable": False}, {"writable": True}, ["numpy copy"]),
    "writable=False for a compiler": ({}, {}, {"writable": False, "compiled": True}, ["numpy copy"]),
    "for a compiler, plain": ({}, {}, {"compiled": True}, []),
    "for a compiler, read-only": ({}, {"writable": False}, {"compiled": True}, ["numpy copy"]),
    "for a compiler, to a library without read-only": (
        {"readonly": False},
        {},
        {"compiled": True},
        ["numpy copy"],
    ),
    "read-only for a library without": ({"readonly": False}, {"writable": False}, {}, ["numpy copy"]),
    "a graph for a library without read-only": (
        {"readonly": False},
        {"requires_grad": True},
        {},
        ["numpy copy"],
    ),
    "overlap for a library without read-only": ({"readonly": False}, {"strides": (0, 4)}, {}, ["numpy copy"]),
    "read-only, unsafe": ({"readonly": False}, {"writable": False}, {"unsafe": True}, ["numpy as_readonly"]),
    "foreign byte order": ({}, {"native": False}, {}, ["numpy copy"]),
    "unaligned memory": ({}, {"aligned": False}, {}, ["numpy copy"]),
    "strides that the target has not": ({"strided": False}, {"strides": (-12, 4)}, {}, ["numpy copy"]),
    "an axis order that the target changes": (
        {"strided": False, "gaps": {"axis_order": Gap("never", "rows")}},
        {"strides": (4, 8)},
        {},
        ["numpy copy C"],
    ),
}


@pytest.mark.parametrize("case", READERS)
def test_plan_between__shares_memory_unless_a_reason_forbids_it(case: str) -> None:
    """Memory on the host is shared, shown read-only or copied, by the facts about both ends."""
    target, array, words, on_host = READERS[case]
    source = library("source")
    x, info = array_of(**array)
    plan = plan_between(source, library("target", **target), x, info, options(**words))
    detach = ["source detach"] if info.requires_grad else []
    is_shown = words.get("writable") is False and not words.get("compiled")
    last = ["numpy as_readonly"] if is_shown else []
    assert steps_of(plan) == [*detach, "source to_numpy", *on_host, "target from_numpy", *last]
    assert plan.shares_memory is not any("copy" in step for step in on_host)


REASONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mutable": ({"assumes_immutable": True}, {}),
    "byte_order": ({}, {"native": False}),
    "alignment": ({}, {"aligned": False}),
    "strides": ({"strided": False}, {"strides": (-12, 4)}),
    "read_only": ({"readonly": False}, {"writable": False}),
    "overlap": ({"readonly": False}, {"strides": (0, 4)}),
    "requires_grad": ({"readonly": False}, {"requires_grad": True}),
    "no_sharing": ({"gaps": {"sharing": Gap("never", "it always copies")}}, {}),
}


@pytest.mark.parametrize("kind", REASONS)
def test_plan_between__copy_false_is_refused_with_the_reason_of_the_copy(kind: str) -> None:
    """A plan that has to copy gives its reason, and with `copy=False` that reason is the error."""
    target, array = REASONS[kind]
    x, info = array_of(**array)
    ends = library("source"), library("target", **target)
    plan = plan_between(*ends, x, info, options())
    (why,) = [step.copy_reason for step in plan.steps if step.copy_reason]
    assert why.kind == kind
    with pytest.raises(xbridge.CopyError) as caught:
        plan_between(*ends, x, info, options(copy=False))
    assert caught.value.reason == why.message


def test_plan_between__copy_false_of_an_empty_array() -> None:
    """An empty array has no memory, so a copy of it is no reason to refuse; a cast is."""
    x, info = array_of(shape=(0, 3), writable=False)
    ends = library("source"), library("target", readonly=False)
    assert steps_of(plan_between(*ends, x, info, options(copy=False)))
    with pytest.raises(xbridge.CopyError, match="float32 becomes float64"):
        plan_between(*ends, x, info, options(copy=False, dtype="float64"))


def test_plan_between__immutable_target_copies_mutable_source() -> None:
    """A library that assumes immutable memory gets a copy of memory that may change, once."""
    x, info = array_of()
    target = library("target", assumes_immutable=True)
    mutable = library("source")
    assert steps_of(plan_between(mutable, target, x, info, options()))[1] == "numpy copy"
    immutable = library("source", assumes_immutable=True)
    assert "numpy copy" not in steps_of(plan_between(immutable, target, x, info, options()))
    unsafe = plan_between(mutable, target, x, info, options(unsafe=True))
    assert "numpy copy" not in steps_of(unsafe)


def test_plan_between__immutable_target_casts_a_copy() -> None:
    """A cast may read memory after it returns, so it gets a copy; a move to a device is complete."""
    x, info = array_of("float64", itemsize=8)
    target = library("target", assumes_immutable=True, places=(CPU, GPU0))
    cast = plan_between(library("source"), target, x, info, options(dtype="float32"))
    assert steps_of(cast)[1:] == ["numpy copy", "target from_numpy", "target astype float32"]
    moved = plan_between(library("source"), target, x, info, options(device=GPU0))
    assert steps_of(moved)[1:] == ["target from_numpy", "target to_device cuda:0"]


def test_plan_between__new_memory_is_writable() -> None:
    """Memory that the source has made for this conversion may be written by the result."""
    x, info = array_of(address=0, materialized=False)
    plan = plan_between(library("source"), library("target"), x, info, options())
    assert steps_of(plan) == [
        "source materialize",
        "source to_numpy",
        "numpy as_writable",
        "target from_numpy",
    ]
    (why,) = [step.copy_reason for step in plan.steps if step.copy_reason]
    assert why.kind == "lazy"
    pending, _ = array_of(materialized=False)
    plan = plan_between(library("source"), library("target"), pending, info, options())
    assert plan.steps[0].copy_reason is not None
    assert plan.steps[0].copy_reason.kind == "pending"


def test_plan_between__target_that_makes_its_own_memory_gets_a_view() -> None:
    """The host does not copy for a target that copies by itself."""
    target = library("target", readonly=False, not_sharing=lambda: "a mode without values")
    x, info = array_of(writable=False)
    plan = plan_between(library("source"), target, x, info, options())
    assert steps_of(plan) == ["source to_numpy", "target from_numpy"]
    assert plan.steps[-1].reason == "a mode without values"
    swapped, swapped_info = array_of(native=False)
    plan = plan_between(library("source"), target, swapped, swapped_info, options())
    assert steps_of(plan) == ["source to_numpy", "numpy copy", "target from_numpy"]


GPUS: dict[str, Any] = {"places": (CPU, GPU0), "exchanges": True}


def test_plan_between__memory_stays_on_the_device_that_both_have() -> None:
    """Device memory passes by DLPack; the source makes a copy if there has to be one."""
    x, info = array_of(device=GPU0)
    source, target = library("source", **GPUS), library("target", **GPUS)
    ends = source, target
    assert steps_of(plan_between(*ends, x, info, options())) == ["source to_dlpack", "target from_dlpack"]
    copied = plan_between(*ends, x, info, options(copy=True))
    assert steps_of(copied) == ["source copy", "source to_dlpack", "target from_dlpack"]
    cast = plan_between(*ends, x, info, options(dtype="float16"))
    assert steps_of(cast) == [
        "source copy",
        "source to_dlpack",
        "target from_dlpack",
        "target astype float16",
    ]
    frozen = library("frozen", assumes_immutable=True, **GPUS)
    assert steps_of(plan_between(frozen, target, x, info, options(dtype="float16")))[0] == "frozen to_dlpack"


def test_plan_between__c_order_is_made_where_the_memory_is() -> None:
    """Memory in another order is copied on the host or on its device, by the source if it can."""
    there, here = array_of(device=GPU0, strides=(4, 8)), array_of(strides=(4, 8))
    source, target = library("source", ordered=True, **GPUS), library("target", ordered=True, **GPUS)
    asked = options(order="C")
    passed = ["source to_dlpack", "target from_dlpack"]
    assert steps_of(plan_between(source, target, *there, asked)) == ["source as_c_order", *passed]
    unordered = library("source", **GPUS)
    by_target = ["source copy", *passed, "target as_c_order"]
    assert steps_of(plan_between(unordered, target, *there, asked)) == by_target
    on_host = ["source to_numpy", "numpy as_c_order", "target from_numpy"]
    assert steps_of(plan_between(source, target, *here, asked)) == on_host
    assert steps_of(plan_between(source, target, *array_of(device=GPU0), asked)) == passed
    assert steps_of(plan_between(source, library("target", **GPUS), *there, asked)) == passed


def test_plan_between__source_casts_on_a_device_what_the_target_lacks() -> None:
    """If the target lacks the dtype of the source, the source casts; if it lacks both, it is refused."""
    x, info = array_of("bfloat16", GPU0, itemsize=2)
    source = library("source", **GPUS)
    target = library("target", lacks=("bfloat16",), **GPUS)
    plan = plan_between(source, target, x, info, options(dtype="float32"))
    assert steps_of(plan) == ["source astype float32", "source to_dlpack", "target from_dlpack"]
    poor = library("source", lacks=("float32",), **GPUS)
    with pytest.raises(xbridge.DTypeError, match="source has no float32"):
        plan_between(poor, target, x, info, options(dtype="float32"))


def test_plan_between__memory_moves_by_the_host() -> None:
    """Without an exchange, the source moves to the host, and the target to its device."""
    x, info = array_of(device=GPU0)
    source = library("source", places=(CPU, GPU0))
    target = library("target", places=(CPU, GPU0))
    assert steps_of(plan_between(source, target, x, info, options())) == [
        "source to_device cpu",
        "source to_numpy",
        "numpy as_writable",
        "target from_numpy",
        "target to_device cuda:0",
    ]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "keep a graph": ({}, {"requires_grad": True}, {"grad": "keep"}, xbridge.GradientError, "cannot leave"),
    "gradients of integers": (
        {},
        {"requires_grad": True},
        {"grad": "keep", "dtype": "int64"},
        xbridge.GradientError,
        "no gradient flows through int64",
    ),
    "a new leaf of integers": (
        {},
        {},
        {"requires_grad": True, "dtype": "int64"},
        xbridge.GradientError,
        "no gradient flows through int64",
    ),
    "a new leaf of a graph": (
        {},
        {"requires_grad": True},
        {"requires_grad": True},
        xbridge.GradientError,
        "would cut the graph",
    ),
    "a new leaf without autograd": (
        {"autograd": False, "gaps": {"autograd": Gap("never", "it has no gradients")}},
        {},
        {"requires_grad": True},
        xbridge.GradientError,
        "it has no gradients",
    ),
    "the imaginary part": (
        {},
        {"dtype": "complex64", "itemsize": 8},
        {"dtype": "float32"},
        xbridge.DTypeError,
        "drops the imaginary part",
    ),
    "a dtype": ({"lacks": ("float32",)}, {}, {}, xbridge.DTypeError, "target has no float32"),
    "a device": ({}, {}, {"device": GPU0}, xbridge.DeviceError, "no device cuda:0 here, only cpu"),
    "several devices": ({}, {"device": SHARDED}, {}, xbridge.DeviceError, "only if a device is named"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_plan_between__refuses_what_facts_rule_out(case: str) -> None:
    """The errors that follow from facts alone are raised by the plan."""
    target, array, words, error, message = REFUSED[case]
    x, info = array_of(**array)
    with pytest.raises(error, match=message):
        plan_between(library("source"), library("target", **target), x, info, options(**words))


NEAREST: list[tuple[dict[str, Any], str]] = [
    ({}, "dtype='nearest', or x"),
    ({"copy": False}, "dtype='nearest', copy=None"),
    ({"copy": False, "unsafe": True}, "to_backend(x, 'target', dtype='nearest')"),
]


@pytest.mark.parametrize(("words", "hint"), NEAREST, ids=["a call", "copy=False", "unsafe_share"])
def test_plan_between__hint_for_a_missing_dtype_is_a_near_one(words: dict[str, Any], hint: str) -> None:
    """The error for a dtype that the target lacks names the nearest one, in a call that takes it."""
    x, info = array_of("float64", itemsize=8)
    target = library("target", lacks=("float64",))
    with pytest.raises(xbridge.DTypeError) as caught:
        plan_between(library("source"), target, x, info, options(**words))
    assert caught.value.hint == hint


WITHIN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = {
    "nothing to do": ({}, {}, {}, []),
    "copy=True": ({}, {}, {"copy": True}, ["lib copy"]),
    "a cast": ({}, {}, {"dtype": "float64", "copy": True}, ["lib astype float64"]),
    "a checked cast": (
        {},
        {"dtype": "float64", "itemsize": 8},
        {"dtype": "default"},
        ["lib check_cast float32", "lib astype float32"],
    ),
    "detach": ({}, {"requires_grad": True}, {"grad": "detach"}, ["lib detach"]),
    "detach without read-only arrays": (
        {"readonly": False},
        {"requires_grad": True},
        {"grad": "detach"},
        ["lib detach", "lib copy"],
    ),
    "writable=True": ({}, {"writable": False}, {"writable": True}, ["lib copy"]),
    "writable=True of writable memory": ({}, {}, {"writable": True}, []),
    "a new leaf": ({}, {}, {"requires_grad": True}, ["lib require_grad"]),
    "a named byte order": ({}, {"native": False}, {"dtype": "float32"}, ["lib astype float32"]),
    "an own dtype": ({}, {"dtype": "ours"}, {"dtype": "default"}, []),
}


@pytest.mark.parametrize("case", WITHIN)
def test_plan_within__has_only_steps_of_the_library(case: str) -> None:
    """Within one library nothing is read on the host, and nothing is done that was not asked for."""
    facts, array, words, steps = WITHIN[case]
    x, info = array_of(**array)
    assert steps_of(plan_within(library(**facts), x, info, options(**words))) == steps


def test_plan_within__leaf_of_a_graph_stays() -> None:
    """`requires_grad=True` of an array whose graph begins with it changes nothing."""
    x, info = array_of(requires_grad=True)
    made = library(is_leaf=lambda _: True)
    assert steps_of(plan_within(made, x, info, options(requires_grad=True))) == []
    inner = library(is_leaf=lambda _: False)
    with pytest.raises(xbridge.GradientError, match="would cut the graph"):
        plan_within(inner, x, info, options(requires_grad=True))


def test_plan_within__array_that_cannot_be_read_is_refused_if_it_changes() -> None:
    """An array that has lost its memory stays as it is, and is refused if it has to be copied."""
    x, info = array_of()
    made = library(lost="its storage was freed")
    assert steps_of(plan_within(made, x, info, options())) == []
    with pytest.raises(xbridge.DTypeError, match="its storage was freed"):
        plan_within(made, x, info, options(copy=True))


def test_plan_within__kept_graph_needs_gradients() -> None:
    """`grad="keep"` is refused where no graph is recorded, if there is anything to record."""
    x, info = array_of(requires_grad=True)
    made = library(grad_enabled=False)
    assert steps_of(plan_within(made, x, info, options(grad="keep"))) == []
    with pytest.raises(xbridge.GradientError, match="while gradients are off"):
        plan_within(made, x, info, options(grad="keep", copy=True))


METAL, PLAIN = Device("mps:0"), Device("mps")
DESTINATIONS: dict[str, tuple[dict[str, Any], Device | None, Device, Device]] = {
    "the array's": ({"places": (CPU, GPU0)}, None, GPU0, GPU0),
    "the named one": ({"places": (CPU, GPU0)}, CPU, GPU0, CPU),
    "a library of the host": ({}, None, GPU0, CPU),
    "a library without the host": (
        {"places": (GPU0,), "gaps": {"host": Gap("never", "a GPU")}},
        None,
        CPU,
        Device("gpu"),
    ),
    "its accelerator of that index": ({"places": (CPU, METAL)}, Device("gpu:0"), CPU, METAL),
    "its accelerator without an index": (
        {"places": (CPU, Device("mps"))},
        Device("gpu:0"),
        CPU,
        Device("mps"),
    ),
    "an accelerator that is not there": ({"places": (CPU, METAL)}, Device("gpu:1"), CPU, Device("gpu:1")),
}


@pytest.mark.parametrize("case", DESTINATIONS)
def test_destination__is_the_named_device_or_the_nearest(case: str) -> None:
    """A result goes to the named device, or stays where the array is, or where the target's arrays are."""
    facts, asked, near, expected = DESTINATIONS[case]
    assert destination(library(**facts), asked, near) == expected


@pytest.mark.parametrize("op", get_args(Op))
def test_step__op_is_a_backend_or_host_function(op: str) -> None:
    """Every operation a step can name exists in the backend protocol, its transfers or `_host`."""
    assert op in vars(Backend) | vars(Transfers) or callable(getattr(HOST, op))
