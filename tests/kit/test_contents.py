"""What arrays hold that the test kit draws, and what is left of it in an example that a person reads."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec
from runpy import run_path
from typing import TYPE_CHECKING

import fresh
import numpy as np
import pytest
from drawing import drawn, least
from hypothesis import Verbosity, given, settings
from hypothesis import strategies as st
from inside import DTYPES, category
from strategies import HOST_DTYPES, host_dtype, swept

import xbridge
from xbridge.testing import contract
from xbridge.testing.strategies import (
    arrays,
    dtypes,
    host_arrays,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rawmemory import Host

# -- values --------------------------------------------------------------------------------------


def patterns(word: str) -> set[int]:
    """Every bit pattern that is drawn of a dtype, part by part."""
    part = host_dtype(word).itemsize // (2 if category(word) == "complex" else 1)
    some = drawn(host_arrays(dtypes=word, shapes=(200,), layouts="C", writable=True, nan="any"), 150)
    return {code for x in some for code in x.reshape(-1).view(f"u{part}").tolist()}


@pytest.mark.parametrize("word", swept(["float16", "float32", "float64", "complex64", "complex128"]))
def test_host_arrays__special_floating_values(word: str) -> None:
    """Both zeros, infinities, extremes, subnormals and NaNs with payloads are drawn."""
    part = host_dtype(word).type(0).real.dtype
    code = f"u{part.itemsize}"
    info = np.finfo(part)
    wanted = np.array(
        [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal], part
    )
    found = patterns(word)
    assert set(wanted.view(code).tolist()) <= found
    infinity = int(np.array(np.inf, part).view(code))
    assert infinity + 1 in found, "a signalling NaN"
    numbers = np.array(sorted(found), code).view(part)
    assert np.isnan(numbers).sum() > 3, "payloads"


@pytest.mark.parametrize("word", ["float16", "float32", "complex128", "bfloat16"])
def test_host_arrays__nans_are_quiet_by_default(word: str) -> None:
    """Unless nan='any' is given, all NaNs of a dtype have the same quiet bit pattern."""
    pytest.importorskip("ml_dtypes")
    some = drawn(host_arrays(dtypes=word, shapes=(50,), layouts="C", writable=True), 50)
    with np.errstate(invalid="raise"):
        nans = [
            part[np.isnan(part)] for x in some for part in ((x.real, x.imag) if x.dtype.kind == "c" else (x,))
        ]
    found = np.concatenate(nans)
    assert found.size
    assert len({code.tobytes() for code in found}) == 1


@pytest.mark.parametrize("word", swept(word for word in DTYPES if category(word) == "int"))
def test_host_arrays__integers_reach_both_ends(word: str) -> None:
    """The least and the greatest integers of a dtype are drawn, and their neighbours."""
    info = np.iinfo(word)
    ends = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], word)
    assert set(ends.view(f"u{ends.itemsize}").tolist()) <= patterns(word)


@pytest.mark.parametrize(
    "word", swept(word for word in HOST_DTYPES if DTYPES[word].bits == 16 or word.startswith("float8"))
)
def test_host_arrays__every_high_byte(word: str) -> None:
    """Every value of the high byte of a narrow dtype is drawn, which of float8 is every bit pattern."""
    assert {code >> (DTYPES[word].bits - 8) for code in patterns(word)} == set(range(256))


@given(st.data())
def test_host_arrays__elements_within_bounds(data: st.DataObject) -> None:
    """With bounds as elements=, no element of any dtype lies outside of them."""
    word = data.draw(dtypes("numpy"))
    low, high = data.draw(st.sampled_from([(0, 1), (1, 4), (0, 0), (-8, 8), (0.5, 2), (-128, 127)]))
    try:
        strategy = host_arrays(dtypes=word, elements=(low, high))
    except xbridge.DTypeError:
        return
    x = data.draw(strategy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide = x.astype("complex128")
    for part in (wide.real, wide.imag) if category(word) == "complex" else (wide.real,):
        assert ((low <= part) & (part <= high)).all()


@pytest.mark.slow
def test_host_arrays__bounds_are_attained() -> None:
    """Both bounds are drawn, and many values between them, for narrow and wide dtypes."""
    for word, low, high in (
        ("int64", -(2**63), 2**63 - 1),
        ("uint64", 0, 2**64 - 1),
        ("int8", -3, 120),
        ("float64", -1e308, 1e308),
        ("float32", 0.5, 2.5),
    ):
        some = drawn(host_arrays(dtypes=word, elements=(low, high)), 200)
        found = {n for x in some for n in x.reshape(-1).tolist()}
        assert {low, high} <= found
        assert min(found) == low
        assert max(found) == high
        assert len(found) > 30


@pytest.mark.parametrize("word", ["float16", "float32", "complex64"])
def test_host_arrays__bounds_are_rounded_inward(word: str) -> None:
    """Bounds that a floating dtype does not have leave the numbers between them."""
    some = drawn(host_arrays(dtypes=word, shapes=(3,), elements=(0.1, 0.9)), 50)
    for part in (np.real, np.imag) if word == "complex64" else (np.asarray,):
        found = np.concatenate([part(x) for x in some]).astype("f8")
        assert 0.1 <= found.min() < 0.11
        assert 0.89 < found.max() <= 0.9


def test_host_arrays__bounds_restrict_the_dtypes() -> None:
    """Without dtypes=, only dtypes that can hold both bounds are drawn."""
    words = {x.dtype.name for x in drawn(host_arrays(elements=(-2, 0.5)), 200)}
    assert {"float64", "float32", "complex64"} <= words
    assert not words & {"bool", "int8", "uint8", "float8_e8m0fnu"}


@given(
    host_arrays(dtypes=st.sampled_from(["float64", "float32"]), elements=st.sampled_from([0.5, 2.0, np.nan]))
)
def test_host_arrays__elements_from_a_strategy(x: Host) -> None:
    """With a strategy as elements=, every element is drawn from it."""
    assert (np.isin(x, [0.5, 2.0]) | np.isnan(x)).all()


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("float32", 0.1),
        ("int8", 300),
        ("int8", 0.5),
        ("bool", 2),
        ("int64", 2**70),
        ("float64", 2**53 + 1),
        ("float64", 1j),
        ("float64", "one"),
        ("float64", [1.0, 2.0]),
    ],
)
def test_host_arrays__element_that_the_dtype_cannot_hold(word: str, number: object) -> None:
    """The error about an element that the dtype cannot hold exactly quotes it."""
    with pytest.raises(xbridge.DTypeError) as caught:
        least(host_arrays(dtypes=word, shapes=(2,), elements=st.just(number)))
    assert str(caught.value).startswith(f"cannot put the element {number!r} into an array of {word}: ")
    assert "try dtypes=" in str(caught.value)


# -- shrinking -----------------------------------------------------------------------------------


SPECIAL: dict[str, Callable[[Host], object]] = {
    "nan": lambda x: np.isnan(x).any(),
    "inf": lambda x: np.isinf(x).any(),
    "-0": lambda x: (np.signbit(x) & (x == 0)).any(),
    "large": lambda x: (x > 1e30).any(),
    "subnormal": lambda x: ((x != 0) & (abs(x) < 1e-310)).any(),
}


@pytest.mark.parametrize("such", SPECIAL.values(), ids=SPECIAL)
def test_arrays__shrink_to_one_element_among_zeros(such: Callable[[Host], object]) -> None:
    """A failure that needs one special value shrinks to that value among zeros."""
    x = least(arrays("numpy", dtypes="float64", shapes=(3, 4)), such)
    assert np.count_nonzero(x.view("u8")) == 1
    assert x.flags.carray


def test_arrays__shrink_to_the_shortest_shape() -> None:
    """A failure that needs axes, a negative stride or a flag shrinks to the shortest shape with it."""
    assert least(arrays("numpy"), lambda x: x.ndim == 3).shape == (1, 1, 1)
    x = least(arrays("numpy"), lambda x: any(stride < 0 for stride in x.strides) and x.size)
    assert (x.shape, x.tolist()) == ((2,), [0, 0])
    assert least(arrays("numpy"), lambda x: not x.flags.writeable).shape == ()


def test_arrays__shrink_to_readable_numbers() -> None:
    """A failure that needs several numbers shrinks to multiples of 1/8."""
    x = least(arrays("numpy", dtypes="float64", shapes=(4,), elements=(-9, 9)), lambda x: x.sum() > 10)
    assert (x * 8 == np.rint(x * 8)).all()
    x = least(
        arrays("numpy", dtypes="float64", shapes=(9,), elements=(-9, 9)), lambda x: np.unique(x).size > 7
    )
    assert (x * 8 == np.rint(x * 8)).all()
    x = least(arrays("numpy", dtypes="float64", shapes=(9,)), lambda x: np.unique(x[np.isfinite(x)]).size > 8)
    assert (x * 8 == np.rint(x * 8)).all()


def test_arrays__failure_shows_the_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """A failing example has a note with the dtype, shape, layout and strides of its array."""

    @settings(max_examples=200, database=None, derandomize=True, verbosity=Verbosity.normal)
    @given(x=arrays("numpy", dtypes="int16", layouts="reversed", writable=False))
    def fails(x: Host) -> None:
        raise AssertionError(x.shape)

    with pytest.raises(AssertionError) as caught:
        fails()
    assert (
        "numpy array: int16 (2,) on cpu, reversed, not writable, strides (-2,) bytes"
        in caught.value.__notes__
    )


@pytest.mark.parametrize(
    ("library", "module", "message"),
    [
        ("hypothesis", "strategies", "cannot draw arrays: Hypothesis is not installed"),
        ("pytest", "conformance", "cannot run the conformance suite: pytest is not installed"),
        ("torch", "emulated", "cannot emulate an accelerator: torch is not installed"),
    ],
)
def test_testing__missing_library_names_the_extra(
    library: str, module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the kit whose library is missing names the extra that installs it."""
    found = find_spec(f"xbridge.testing.{module}")
    assert found is not None
    assert found.origin is not None
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(xbridge.MissingLibraryError) as refused:
        run_path(found.origin, run_name=found.name)
    extra = "torch" if library == "torch" else "testing"
    assert str(refused.value) == f"{message}; try pip install 'xbridge-array[{extra}]'"


def test_contract__needs_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decorator says what it needs where it is written, before a function is decorated."""
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(xbridge.MissingLibraryError, match="Hypothesis is not installed; try pip install"):
        contract(arrays("numpy"))


def test_assertions__need_neither_pytest_nor_hypothesis() -> None:
    """The assertions work without pytest and Hypothesis."""
    code = """
        import sys
        for name in ("pytest", "_pytest", "hypothesis"):
            sys.modules[name] = None
        import numpy as np
        from xbridge.testing import *
        a = np.arange(3.0)
        assert_same(a, a.copy())
        assert_close(a, a + 1e-12)
        assert_independent(a, a.copy())
        assert_shares_memory(a, a[1:])
        assert_roundtrip(a, "numpy")
        with assert_unchanged(a):
            pass
    """
    assert fresh.run(code)[0] == 0
