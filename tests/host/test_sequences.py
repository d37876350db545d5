"""Nested lists of Python numbers: their shapes, and their arrays."""

from __future__ import annotations

from typing import Any

import pytest

from xbridge._host import sequences


def endless() -> list[Any]:
    """A list that contains itself twice, so that it has more rows at each depth."""
    x: list[Any] = []
    x += [x, x]
    return x


@pytest.mark.parametrize("x", [[[], [1]], [[1], [2, 3]], [[[1]], [[2, 3]]], endless()])
def test_outline__none_for_what_has_no_shape(x: Any) -> None:
    """A list of rows without a shape has no outline."""
    assert sequences.outline(x) is None


@pytest.mark.parametrize(
    ("x", "shape", "leaves"),
    [
        ([[], []], (2, 0), []),
        (([1, (2,)],), (1, 2), [1, (2,)]),
        ([(1, 2.0), [None, "a"]], (2, 2), [1, 2.0, None, "a"]),
    ],
)
def test_outline__shape_and_items(x: Any, shape: tuple[int, ...], leaves: list[Any]) -> None:
    """Nested rows are opened as long as every item is a row."""
    found = sequences.outline(x)
    assert found is not None
    assert (found[0], list(found[1])) == (shape, leaves)
    assert found[2] == sequences.kind_of_items(leaves)


@pytest.mark.parametrize(
    ("x", "kind"),
    [([], None), ([1], int), ((1, 2), int), ([1, 2.0, 3], frozenset((int, float))), (range(3), int)],
)
def test_kind_of_items__type_or_types(x: Any, kind: object) -> None:
    """Items of one type have that type as their kind, others the set of their types."""
    assert sequences.kind_of_items(x) == kind


@pytest.mark.parametrize("x", [[2**63], [-1, 2**63], [2**70], [True, 2**63]])
def test_array_of__none_for_integers_of_no_signed_dtype(x: list[Any]) -> None:
    """An integer that does not fit is left to the plan, whose error says so."""
    assert sequences.array_of(frozenset(map(type, x)))(x) is None


@pytest.mark.parametrize(
    ("x", "dtype"),
    [([True], "bool"), ([True, 2], "int64"), ([1, 2.5], "float64"), ([1, 1j], "complex128"), ([], "float64")],
)
def test_array_of__dtype_of_the_widest_kind(x: list[Any], dtype: str) -> None:
    """Numbers of several kinds become the widest of them."""
    found = sequences.array_of(frozenset(map(type, x)))(x)
    assert found is not None
    assert (found.dtype.name, found.tolist()) == (dtype, x)


@pytest.mark.parametrize(
    ("x", "first", "last", "expected"),
    [
        ([1, 2**63], 0, 2**64 - 1, True),
        ([True, 255], 0, 255, True),
        ([True, 256], 0, 255, False),
        ([-1], 0, 255, False),
        ([1, 2.5, 2**24], -(2**24), 2**24, True),
        ([1, 2.5, 2**24 + 1], -(2**24), 2**24, False),
        ([1.5, 10**400], -(2**24), 2**24, False),
        ([0, 1e300], -1, 1, True),
    ],
)
def test_are_between__asks_the_integers(x: list[Any], first: int, last: int, *, expected: bool) -> None:
    """Other numbers beside the integers may have any value."""
    assert sequences.are_between(x, first, last) is expected
