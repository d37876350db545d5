"""From every library to every other: exactly what the contract says, or refused with what it says.

What must happen is foretold by `pair_contract.py`. That it happened is seen by what the libraries themselves
read, by addresses, and by a write to the result.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from contract.pair_contract import (
    LIBRARIES,
    Asked,
    cast,
    is_guarded,
    is_pending,
    left_open,
    library,
    place,
    refusals,
    shares,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inside import DTYPES, get_backend, native_dtype

import xbridge
from xbridge.testing.conformance._cases import (
    common_dtypes,
    disjoint,
    edge_values,
    error_of,
    read,
    refused_write,
    same_bits,
    same_memory,
    same_values,
    variants,
)
from xbridge.testing.samples.lookup import make_sample, samples_of
from xbridge.testing.strategies._arrays import samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge.protocol import Array, HostArray


def places(name: str) -> list[str]:
    """The devices of a library in the memory of the host; those with a number are of another kind."""
    return [str(device) for device in get_backend(name).devices() if device.index is None]


HERE = [name for name in xbridge.known_backends() if xbridge.is_available(name) and places(name)]
SHAPES = st.sampled_from([(), (5,), (2, 3), (0, 2), (2, 3, 2), (1, 2, 1), (1,)])
"""Few, because JAX compiles each cast for each of them."""

PAIRS = list(product(HERE, repeat=2))
TRIED = [(*pair, wide) for pair in PAIRS for wide in ((False, True) if "jax" in pair else (False,))]
"""Those with JAX with its 64 bits as well."""

LEAVING = [(source, target) for source, target in PAIRS if source != target and samples_of(source).refused]


def with_bits(wide: bool) -> Any:
    """JAX with its 64 bits for a while."""
    if not wide:
        return nullcontext()
    import jax

    return jax.enable_x64(True)


@st.composite
def calls(draw: st.DrawFn, source: str, target: str) -> Asked:
    """Any array of a library, and any options of a call that converts it to another one."""
    sample = draw(samples(source, shapes=SHAPES, devices=st.sampled_from(places(source))))
    own = [sample.values.dtype.name] * 5
    options = {
        "dtype": st.sampled_from([None, "default", "default", "nearest", "nearest", *own, *DTYPES]),
        "copy": st.sampled_from([None, True, False]),
        "device": st.sampled_from([None, *places(target), "cpu", "nowhere:7"]),
        "grad": st.sampled_from([None, "keep", "detach"]),
        "requires_grad": st.sampled_from([None, True, False]),
    }
    return Asked(source, target, sample, draw(st.fixed_dictionaries({}, optional=options)))


@pytest.mark.hypothesis  # which draws inside of the test
@pytest.mark.parametrize(("source", "target", "wide"), TRIED)
def test_to_backend__follows_the_contract(source: str, target: str, wide: bool) -> None:
    """Every conversion between two libraries is exact, or is refused as documented."""
    xbridge.to_backend(xbridge.asarray([True], backend=source), target)  # from now on there is a hot path
    with with_bits(wide):
        run_examples(calls(source, target), f"{source}_to_{target}_{wide}")


def run_examples(asked: st.SearchStrategy[Asked], name: str) -> None:
    """Check a quarter of the examples that the current settings ask for: there are many pairs."""

    def trial(example: Asked) -> None:
        check(example)

    trial.__name__ = name  # Hypothesis stores failures under this name
    count = -(-settings().max_examples // 4)
    patient = settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    patient(given(asked)(trial))()


def each_dtype(source: str, target: str) -> Iterator[Asked]:
    """Small numbers of each dtype, with the options that depend on it."""
    cases = samples_of(source).cases
    for dtype, word in product(common_dtypes(source), (None, "default", "nearest")):
        values = np.arange(1, 7).reshape(2, 3).astype(native_dtype(dtype))
        layout = next(
            layout for layout, case in cases.items() if case.takes(dtype, values.shape) and not case.fold
        )
        options = {"dtype": word} if word else {}
        yield Asked(source, target, make_sample(source, layout, values), options)


def each_layout(source: str, target: str) -> Iterator[Asked]:
    """Each way of lying, with the options that depend on it."""
    named: tuple[dict[str, Any], ...] = ({}, {"copy": True}, {"copy": False}, {"dtype": "", "grad": "detach"})
    for options, (layout, case), shape in product(named, samples_of(source).cases.items(), [(2, 3), (0, 2)]):
        for dtype in [word for word in ("float32", "complex64", "int64") if case.takes(word, shape)][:1]:
            for sample in variants(source, layout, edge_values(dtype, shape)):
                own = {"dtype": dtype} if "dtype" in options else {}
                yield Asked(source, target, sample, {**options, **own})


@pytest.mark.parametrize(("source", "target", "wide"), TRIED)
def test_to_backend__converts_every_dtype_and_layout(source: str, target: str, wide: bool) -> None:
    """Every dtype and memory layout converts as documented."""
    with with_bits(wide):
        for asked in each_dtype(source, target):
            check(asked)
    for asked in each_layout(source, target) if not wide else ():
        check(asked)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_to_backend__casts_on_host_if_neither_library_can(dtype: str) -> None:
    """A cast that neither library has is done in host memory."""
    jnp = pytest.importorskip("jax.numpy")
    pytest.importorskip("array_api_strict")
    x = jnp.asarray([1, 1000], "bfloat16")  # which the other lacks, as JAX lacks 64 bits
    there = xbridge.to_backend(x, "array_api_strict", dtype=dtype)
    assert same_bits(read("array_api_strict", there), np.array([1, 1000], dtype))
    back = xbridge.to_backend(there, "jax", dtype="bfloat16")
    assert same_bits(read("jax", back), read("jax", x))


def test_to_backend__cast_from_read_only_library_is_writable() -> None:
    """The result of a cast is writable even if the source library has only read-only arrays."""
    pytest.importorskip("array_api_strict")
    x = xbridge.to_backend(np.ones(2, "float16"), "numpy_readonly")  # whose dtype the other lacks
    assert not refused_write("array_api_strict", xbridge.to_backend(x, "array_api_strict", dtype="float32"))


def test_to_backend__immutable_memory_is_always_shared() -> None:
    """Immutable memory is shared by the first call and by those that take the fast path."""
    jnp = pytest.importorskip("jax.numpy")
    pytest.importorskip("dask")
    x = jnp.arange(3)
    for _ in range(2):  # the first decides, the second takes the hot path
        assert same_memory(place("dask", xbridge.to_backend(x, "dask")), place("jax", x))


@pytest.mark.parametrize(("source", "target"), LEAVING)
def test_to_backend__refused_samples_go_nowhere(source: str, target: str) -> None:
    """An array that must not leave its library is refused by every target."""
    for what, make in samples_of(source).refused.items():
        refused = error_of(xbridge.to_backend, make(), target)
        assert isinstance(refused, (xbridge.UnsupportedArrayError, xbridge.DTypeError)), what


@pytest.mark.parametrize("source", HERE)
def test_to_numpy__writable_is_the_default_result_or_a_copy(source: str) -> None:
    """With `writable=True` the result shares exactly if the default result is writable."""
    for asked in each_layout(source, "numpy"):
        x, usually = asked.sample.array, xbridge.to_numpy(asked.sample.array)
        with (
            xbridge.record() if asked.options.get("copy") else nullcontext()
        ):  # the plan, and then the fast road
            result = xbridge.to_numpy(x, writable=True)
        assert result.flags.writeable
        assert same_bits(read("numpy", result), asked.sample.values)
        if usually.flags.writeable and not is_pending(asked):
            assert same_memory(place("numpy", result), place("numpy", usually))
        elif result.size:
            samples_of("numpy").write(result)
            assert same_bits(read(source, x), asked.sample.values)


def check(asked: Asked) -> None:
    x, before = asked.sample.array, get_backend(asked.source).array_info(asked.sample.array)
    due = refusals(asked)
    try:
        result = convert(asked)
    except xbridge.XBridgeError as error:
        check_refusal(error, due)
        assert same_bits(read(asked.source, x), asked.sample.values), "the source was changed"
    else:
        assert not due, f"it must be refused with one of {due}"
        check_result(asked, result)
    assert get_backend(asked.source).array_info(x) == before


def convert(asked: Asked) -> Array:
    if "requires_grad" in asked.options:
        return xbridge.asarray(asked.sample.array, backend=asked.target, **asked.options)
    return xbridge.to_backend(asked.sample.array, asked.target, **asked.options)


def check_refusal(
    error: xbridge.XBridgeError, due: dict[type[xbridge.XBridgeError], tuple[str, ...]]
) -> None:
    assert type(error) in due, f"nothing in the contract forbids it; it forbids {due}"
    words, _, step = str(error).partition("; try ")
    assert words.startswith("cannot ")
    assert any(case in step for case in due[type(error)]), step


def check_result(asked: Asked, result: Array) -> None:
    info = get_backend(asked.target).array_info(result)
    assert (info.dtype, info.device, info.shape) == (asked.dtype, asked.device, asked.sample.values.shape)
    assert xbridge.backend_of(result) == asked.target
    check_values(asked, read(asked.target, result))
    check_history(asked, result)
    assert same_bits(read(asked.source, asked.sample.array), asked.sample.values), "the source was changed"
    check_memory(asked, result)


def check_values(asked: Asked, found: HostArray) -> None:
    if asked.dtype == asked.given:
        assert same_bits(found, asked.sample.values)
        return
    wanted, free = cast(asked), left_open(asked)
    assert wanted is not None
    found[free] = wanted[free]
    assert same_values(found, wanted)


def check_history(asked: Asked, result: Array) -> None:
    begins = asked.options.get("requires_grad") is True
    goes_on = asked.sample.tracked and not (asked.leaves or asked.detaches)
    if library(asked.target).gradients:
        keeps = goes_on and result.dtype.is_floating_point | result.dtype.is_complex
        assert result.requires_grad is (begins or keeps)
        assert result.is_leaf or not begins


def check_memory(asked: Asked, result: Array) -> None:
    """Where it lies, and what becomes of the source when the result is written."""
    x, copy = asked.sample.array, asked.options.get("copy")
    one, other = place(asked.source, x), place(asked.target, result)
    shared = shares(asked, copy)
    assert same_memory(one, other) if shared else disjoint(one, other)
    if asked.sample.values.size and not {"dask"} & {asked.source, asked.target}:
        assert xbridge.shares_memory(x, result) is xbridge.shares_memory(result, x) is shared
    if shared and not asked.leaves:
        begun = asked.options.get("requires_grad") is True and not asked.sample.tracked
        assert (result is x) is not begun
    if result is x or getattr(result, "requires_grad", False) or not asked.sample.values.size:
        return
    kept = refused_write(asked.target, result)
    can_write = any(layout.writable for layout in samples_of(asked.target).cases.values())
    if asked.leaves and {asked.source, asked.target} <= set(LIBRARIES):
        assert kept is (not can_write or (shared and is_guarded(asked)))
    seen = same_bits(read(asked.source, x), asked.sample.values)
    assert seen is (kept or not shared)
