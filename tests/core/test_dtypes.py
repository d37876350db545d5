"""The relations between the canonical dtypes."""

from __future__ import annotations

from math import frexp

import numpy as np
import pytest

from xbridge._core.dtypes import DTYPES, holds_every, nearest


@pytest.mark.parametrize(
    ("given", "there", "wanted"),
    [
        ("float64", ("float32", "float64"), "float64"),
        ("bfloat16", ("float16", "float32", "float64"), "float32"),
        ("float16", ("bfloat16", "float32", "float64"), "float32"),
        ("float8_e5m2", ("bfloat16", "float16", "float32"), "float16"),
        ("float8_e4m3fn", ("bfloat16", "float32"), "bfloat16"),
        ("float8_e8m0fnu", ("float16", "float32"), "float32"),
        ("uint16", ("int8", "int32", "int64"), "int32"),
        ("uint16", ("int32", "uint32"), "uint32"),
        ("int16", ("uint32", "int32"), "int32"),
        ("uint64", ("int64", "uint32"), "int64"),
        ("uint64", ("int32", "uint32"), "uint32"),
        ("int64", ("int32", "uint32"), "int32"),
        ("int64", ("int8", "uint16", "float64"), "uint16"),
        ("float64", ("float16", "bfloat16"), "float16"),
        ("complex128", ("float64", "complex64"), "complex64"),
        ("complex32", ("complex128", "complex64"), "complex64"),
        ("longdouble", ("float32", "float64"), "float64"),
        ("clongdouble", ("complex64", "float64"), "complex64"),
        ("bool", ("uint8", "int8"), "bool"),
        ("complex64", ("float64",), "complex64"),
        ("int4", ("int8", "float32"), "int8"),
        ("uint2", ("int4", "uint8"), "int4"),
        ("int2", ("uint8", "int16"), "int16"),
        ("float4_e2m1fn", ("float8_e5m2", "float8_e4m3fn"), "float8_e4m3fn"),
        ("float6_e3m2fn", ("float8_e3m4", "float8_e8m0fnu", "float16"), "float16"),
        ("float6_e2m3fn", ("float8_e5m2", "float8_e3m4"), "float8_e3m4"),
        ("float8_e4m3b11fnuz", ("float8_e4m3fn", "bfloat16"), "bfloat16"),
        ("int1", ("int8",), "int1"),
    ],
)
def test_nearest__is_the_narrowest_that_holds_every_value_or_else_the_widest_of_its_kind(
    given: str, there: tuple[str, ...], wanted: str
) -> None:
    """The nearest dtype is the narrowest that holds every value, or else the widest of its kind."""
    assert nearest(given, there.__contains__) == wanted


@pytest.mark.parametrize("word", [word for word, facts in DTYPES.items() if facts.kind == "float"])
def test_dtypes__facts_are_those_of_ml_dtypes(word: str) -> None:
    """The digits and the least number of each float are as ml_dtypes gives them."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    facts = DTYPES[word]
    dtype = getattr(ml_dtypes, word) if facts.is_extended else word
    info = ml_dtypes.finfo(dtype)
    assert (facts.digits, 2.0**facts.least) == (info.nmant + 1, float(info.smallest_subnormal))
    assert facts.most in (1024, frexp(float(info.max))[1])
    assert facts.itemsize == np.dtype(dtype).itemsize
    assert facts.is_extended == hasattr(ml_dtypes, word)


@pytest.mark.parametrize(("dtype", "part"), [("complex64", "float32"), ("complex128", "float64")])
def test_holds_every__complex_dtype_holds_the_floats_of_its_parts(dtype: str, part: str) -> None:
    """A complex dtype holds the floats that the dtype of its parts holds, and no wider ones."""
    floats = [name for name, facts in DTYPES.items() if facts.kind == "float"]
    assert [name for name in floats if holds_every(name, dtype)] == [
        name for name in floats if holds_every(name, part)
    ]
