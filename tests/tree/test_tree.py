"""Trees: what is in a container is converted, and everything else is as it was."""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toylib import Toy, make_backend

import xbridge

pytest.importorskip("attrs")

from trees import PAIRS, Defined, Frozen, Names, Pair, Sample, form, leaves, trees

from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("own_registry")

A = np.arange(6.0)

# Each is called with what makes a leaf of a number.
ROWS: dict[str, Callable[[Callable[[int], Any]], Any]] = {
    "samples": lambda leaf: [{"x": leaf(1), "y": "s"}, {"y": leaf(2), "x": leaf(3)}],
    "columns": lambda leaf: {"b": [leaf(1), leaf(2)], "a": [leaf(3)]},
    "tuples": lambda leaf: ((leaf(1), leaf(2)), (None, leaf(3)), ()),
    "empty ones": lambda leaf: [{}, {}, {"x": leaf(1)}, {}],
    "nothing": lambda _: [[], []],
    "lists and tuples": lambda leaf: [[leaf(1)], (leaf(2), leaf(3))],
    "dicts and lists": lambda leaf: [{"x": leaf(1)}, [leaf(2)], {"x": leaf(3)}],
    "a container in the last": lambda leaf: [{"x": leaf(1)}, {"x": leaf(2)}, {"x": [leaf(3)], "y": leaf(4)}],
    "somebody's in the last": lambda leaf: [[leaf(1)], [leaf(2), Pair(leaf(3), Frozen(leaf(4), leaf(5)))]],
    "beside a leaf": lambda leaf: [{"x": leaf(1)}, leaf(2), {"x": leaf(3)}],
    "deeper": lambda leaf: {"x": [{"y": leaf(1)}, {"y": leaf(2)}], "z": (leaf(3), [(leaf(4),), (leaf(5),)])},
    "in a deque": lambda leaf: deque([{"x": leaf(1)}, {"y": leaf(2)}], 3),
    "in a named tuple": lambda leaf: Pair([leaf(1)], [leaf(2), leaf(3)]),
}


@pytest.fixture(autouse=True)
def toys(own_registry: None) -> None:
    xbridge.register_backend("toylib", make_backend())


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_tree_to_backend__container_keeps_its_type_and_keys(make: Callable[[Any, Any], Any]) -> None:
    """A container keeps its type and its keys in order."""
    given = make(A, [make(A[:2], "text"), None])
    made = tree.to_backend(given, "toylib")
    assert form(made) == form(given)
    first, second, text, none = leaves(made)
    assert isinstance(first, Toy)
    assert (first.data == A).all()
    assert (second.data == A[:2]).all()
    assert (text, none) == ("text", None)
    assert made is not given


@given(trees(st.sampled_from([A, A[1:], A.astype("f4"), np.float32(2), np.zeros((0, 2))])))
def test_tree_to_backend__every_array_is_converted_and_nothing_else(given: Any) -> None:
    """Every array is converted and nothing else."""
    xbridge.register_backend("toylib", make_backend(), replace=True)
    made = tree.to_backend(given, "toylib")
    assert form(made) == form(given)
    for x, y in zip(leaves(given), leaves(made), strict=True):
        if isinstance(x, (np.ndarray, np.float32)):
            assert isinstance(y, Toy)
            assert y.data.dtype == x.dtype
            assert y.data.tobytes() == x.tobytes()
        else:
            assert y is x
    back = tree.to_numpy(made)
    assert [type(x) for x in leaves(back) if isinstance(x, (Toy, np.ndarray))] == [
        np.ndarray for x in leaves(given) if isinstance(x, (np.ndarray, np.float32))
    ]


@given(trees(st.sampled_from([A, A[1:], np.arange(3)])))
def test_tree_map__map_sees_the_arrays_in_order_and_each_once(given: Any) -> None:
    """`map` sees the arrays in order and each once."""
    seen: list[Any] = []
    tree.map(seen.append, given)
    arrays = [x for x in leaves(given) if isinstance(x, np.ndarray)]
    assert {id(x) for x in seen} == {id(x) for x in arrays}
    assert len(seen) == len({id(x) for x in arrays})


@pytest.mark.parametrize("make", ROWS.values(), ids=ROWS)
def test_tree_map__rows_come_back_with_their_own_leaves(make: Callable[[Callable[[int], Any]], Any]) -> None:
    """Rows come back with their own leaves."""
    seen: list[int] = []

    def number(x: Any) -> int:
        seen.append(int(x))
        return seen[-1]

    made = tree.map(number, make(np.array))
    assert repr(made) == repr(make(int))  # types and the order of keys too
    assert seen == list(range(1, len(seen) + 1))


def test_tree_to_backend__same_array_stays_the_same_object() -> None:
    """The same array stays the same object."""
    made = tree.to_backend({"a": A, "b": [A, A.copy()], "c": Frozen(A, 1)}, "toylib")
    assert made["a"] is made["b"][0] is made["c"].x
    assert made["a"] is not made["b"][1]
    assert made["c"].y == 1


def test_tree_to_numpy__views_of_one_memory_share_it_still_and_copies_do_not() -> None:
    """Views of one memory share it still and copies do not."""
    base = np.arange(6.0)
    shared = tree.to_numpy({"whole": base, "part": [base[2:]]})
    assert np.shares_memory(shared["whole"], shared["part"][0])
    copied = tree.to_numpy({"whole": base, "part": [base[2:]]}, copy=True)
    assert not np.shares_memory(copied["whole"], copied["part"][0])
    assert not np.shares_memory(copied["whole"], base)


def test_tree_to_numpy__numbers_become_arrays_only_if_the_caller_asks() -> None:
    """Numbers become arrays only if the caller asks."""
    given = {"n": 3, "f": 2.5, "b": True, "c": 1j, "again": 3, "s": "3"}
    assert tree.to_numpy(given) == given
    made = tree.to_numpy(given, scalars=True)
    assert [(type(x), x.dtype.name) for x in list(made.values())[:4]] == [
        (np.ndarray, name) for name in ("int64", "float64", "bool", "complex128")
    ]
    assert made["n"] is not made["again"]  # numbers are values; to write into one changes no other
    assert made["s"] == "3"
    assert tree.map(lambda n: n + 1, [1, A[:1], "s"], scalars=True)[0] == 2
    assert tree.map(lambda n: n + 1, [1, A[:1], "s"])[0] == 1
    assert tree.to_numpy([1], scalars=True, dtype="float32")[0].dtype == "f4"


@pytest.mark.parametrize(
    "convert",
    [
        lambda: tree.to_backend(None, "toylib"),
        lambda: tree.to_backend(None, "toylib", dtype="float32", scalars=True, exporters=True),
        lambda: tree.to_numpy(None),
        lambda: tree.to_numpy(None, writable=True),
        lambda: tree.map(np.sum, None),
        lambda: tree.align(None)[0],
        lambda: tree.align(A, None)[1],
        lambda: xbridge.align_back(A)[1](None),
        lambda: xbridge.transfer(None, "toylib").result(),
        lambda: next(iter(xbridge.prefetch([None], "toylib"))),
    ],
    ids=lambda convert: "_".join(convert.__code__.co_names),
)
def test_tree__none_as_root_is_an_empty_tree(convert: Callable[[], object]) -> None:
    """None is a tree without arrays, as in JAX and optree: every verb returns it."""
    assert convert() is None


ROOTS = {"text": "a", "a number": 3, "a scalar of text": np.str_("a"), "an object": object()}


@pytest.mark.parametrize("root", ROOTS.values(), ids=ROOTS)
def test_tree_to_numpy__tree_that_is_neither_a_container_nor_an_array_is_refused(root: object) -> None:
    """A tree that is neither a container nor an array is refused."""
    calls: list[Callable[[], object]] = [
        lambda: tree.to_numpy(root),
        lambda: tree.to_backend(root, "numpy", dtype="float32"),
        lambda: tree.map(np.sum, root),
    ]
    for call in calls:
        with pytest.raises(xbridge.UnsupportedArrayError, match="neither a container nor an array"):
            call()
    assert tree.align(A, root)[1] is root


class SimpleExporter:
    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.array([1.0, 2.0])


EXPORTERS: dict[str, Callable[[], Any]] = {
    "a typed buffer": lambda: array("d", [1.0, 2.0]),
    "a view of one": lambda: memoryview(array("d", [1.0, 2.0])),
    "an object with __array__": SimpleExporter,
    "a series": lambda: pytest.importorskip("pandas").Series([1.0, 2.0]),
    "a data frame": lambda: pytest.importorskip("pandas").DataFrame({"x": [1.0, 2.0]}),
    "an array of pyarrow": lambda: pytest.importorskip("pyarrow").array([1.0, 2.0]),
}


@pytest.mark.parametrize("kind", EXPORTERS)
def test_tree_to_numpy__exporters_are_converted_if_they_are_asked_for(kind: str) -> None:
    """Exporters are converted if they are asked for."""
    x = EXPORTERS[kind]()
    others = {"name": "n", "raw": b"1234", "more": bytearray(4), "scalar": np.str_("s"), "none": None}
    given = {"x": [x, A], **others}
    assert tree.to_numpy(given)["x"][0] is x
    assert tree.to_numpy(given, exporters=np.False_)["x"][0] is x  # type: ignore[arg-type] # it is no bool
    made = tree.to_backend(given, "toylib", exporters=True)
    assert np.ravel(made["x"][0].data).tolist() == [1.0, 2.0]
    assert [type(y) for y in made["x"]] == [Toy, Toy]
    assert all(made[key] is x for key, x in others.items())
    assert tree.to_numpy(x, exporters=True).shape == np.shape(x)
    aligned, _ = tree.align({"x": x}, A, backend="toylib", exporters=True)
    assert type(aligned["x"]) is Toy
    with pytest.raises(xbridge.UnsupportedArrayError, match="neither a container") as caught:
        tree.to_numpy(x)
    assert caught.value.hint.startswith("exporters=True")


def test_tree_to_numpy__exporter_that_cannot_be_read_is_an_error_with_its_path() -> None:
    """An exporter that cannot be read is an error with its path."""
    released = memoryview(array("d", [1.0]))
    released.release()
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"^at tree\['x'\]: "):
        tree.to_numpy({"x": released}, exporters=True)


def test_tree_to_numpy__options_mean_what_they_mean_for_one_array() -> None:
    """Options mean what they mean for one array."""
    made = tree.to_numpy([A, (A.astype("i4"),)], dtype="float32", copy=True)
    assert [x.dtype.name for x in leaves(made)] == ["float32", "float32"]
    with pytest.raises(xbridge.CopyError, match=r"^at tree\[1\]\[0\]: cannot convert"):
        tree.to_numpy([A.astype("f4"), (A,)], dtype="float32", copy=False)


@pytest.mark.parametrize("given", [[], ["text"], [A]])
def test_tree_to_numpy__bad_option_is_refused_whatever_the_tree_holds(given: list[object]) -> None:
    """A bad option is refused whatever the tree holds."""
    with pytest.raises(xbridge.OptionError, match="copy"):
        tree.to_numpy(given, copy="yes")  # type: ignore[arg-type]
    with pytest.raises(xbridge.UnknownBackendError):
        tree.to_backend(given, "nolib")


BAD = np.array([None])


@pytest.mark.parametrize(
    ("given", "way"),
    [
        (BAD, "tree"),
        ({"image": [A, A, A, BAD]}, "tree['image'][3]"),
        ({(1, 2): (A, BAD)}, "tree[(1, 2)][1]"),
        (Pair(A, BAD), "tree.y"),
        ([Frozen(A, [BAD])], "tree[0].y[0]"),
        ([Defined(BAD, A)], "tree[0].x"),
        (OrderedDict(z=A, a=BAD), "tree['a']"),
        (Names(z=A, a=BAD), "tree['a']"),
    ],
)
def test_tree_to_backend__error_names_the_way_to_the_leaf_and_keeps_its_class(given: Any, way: str) -> None:
    """An error names the way to the leaf and keeps its class."""
    with pytest.raises(xbridge.DTypeError) as caught:
        tree.to_backend(given, "toylib")
    assert str(caught.value).startswith(f"at {way}: cannot convert a numpy object array")
    assert not isinstance(caught.value.__cause__, xbridge.XBridgeError)  # the same message twice


def test_tree_to_numpy__tree_without_an_end_is_refused() -> None:
    """A tree without an end is refused."""
    own: dict[str, Any] = {"ends": [[1], A], "x": [A]}
    own["x"].append(own)
    with pytest.raises(xbridge.OptionError, match="contains itself"):
        tree.to_numpy(own)
    inner = Sample([], A)
    inner.x.append((A, inner))
    with pytest.raises(xbridge.OptionError, match="contains itself"):
        tree.to_numpy([inner, [], []])


def test_tree_to_numpy__tree_deeper_than_the_stack_is_refused() -> None:
    """A tree deeper than the stack is refused."""
    deep: list[Any] = [A]
    for _ in range(5 * sys.getrecursionlimit()):
        deep = [deep, (1,)]
    with pytest.raises(xbridge.OptionError, match="too deep"):
        tree.to_numpy([deep, deep])


def test_tree_to_backend__source_is_as_it_was() -> None:
    """The source is as it was."""
    given = {"x": [A, Sample(A, 1)], "y": Names(a=A)}
    before = form(given), [id(x) for x in leaves(given)]
    tree.to_backend(given, "toylib")
    with pytest.raises(xbridge.DTypeError):
        tree.to_backend([given, BAD], "toylib")
    assert (form(given), [id(x) for x in leaves(given)]) == before


def test_tree_align__align_follows_the_first_array_of_the_first_tree_that_has_one() -> None:
    """`align` follows the first array of the first tree that has one."""
    x = Toy(np.ones(2))
    first, second, third = tree.align(["text", 3], {"x": x}, (A, 3))
    assert first == ["text", 3]
    assert second["x"] is x
    assert isinstance(third[0], Toy)
    assert third[1] == 3
    assert isinstance(tree.align([x], like=A)[0][0], np.ndarray)
    assert isinstance(tree.align([x], backend="numpy", like=x)[0][0], np.ndarray)
    assert tree.align() == ()
    assert tree.align([3]) == ([3],)
    with pytest.raises(xbridge.DTypeError, match=r"^at tree\[1\]\[0\]: "):
        tree.align([x], [BAD])


def test_tree_to_numpy__every_array_of_a_tree_can_be_writable_at_the_cost_of_the_read_only_ones() -> None:
    """Every array of a tree can be writable at the cost of the read-only ones."""
    x, fixed = np.ones(2), np.broadcast_to(1.0, 2)
    batch = {"x": x, "fixed": [fixed, fixed], "n": 3, "text": np.array(["a"])}
    for _ in range(2):  # the second call may be learned from the first
        made = tree.to_numpy(batch, writable=True)
        assert made["x"] is x
        assert made["fixed"][0] is made["fixed"][1]
        assert made["fixed"][0].flags.writeable
        assert not np.shares_memory(made["fixed"][0], fixed)
        assert not tree.to_numpy(batch)["fixed"][0].flags.writeable
        locked = tree.to_numpy({**batch, "loss": 2.0}, writable=False, scalars=True)
        assert not any(y.flags.writeable for y in (locked["x"], locked["fixed"][0], locked["loss"]))
        assert np.shares_memory(locked["x"], x)
        assert x.flags.writeable
    with pytest.raises(xbridge.CopyError, match=r"tree\['fixed'\]\[0\].*writable=True"):
        tree.to_numpy(batch, writable=True, copy=False)
