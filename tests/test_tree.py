"""Trees: what is in a container is converted, and everything else is as it was."""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fresh import run
from hypothesis import given
from hypothesis import strategies as st
from toylib import Toy, make_backend

import xbridge

pytest.importorskip("optree")
pytest.importorskip("attrs")

import optree
from trees import PAIRS, Defined, Frozen, Names, Open, Pair, Sample, form, leaves, trees

from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("own_registry")

A = np.arange(6.0)


@pytest.fixture(autouse=True)
def toys(own_registry: None) -> None:
    xbridge.register_backend("toylib", make_backend())


@pytest.fixture
def globally() -> Any:
    """Where registrations hold for everybody."""
    return vars(optree.registry)["__GLOBAL_NAMESPACE"]


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_a_container_keeps_its_type_and_its_keys_in_order(make: Callable[[Any, Any], Any]) -> None:
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
def test_every_array_is_converted_and_nothing_else(given: Any) -> None:
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
def test_map_sees_the_arrays_in_order_and_each_once(given: Any) -> None:
    seen: list[Any] = []
    tree.map(seen.append, given)
    arrays = [x for x in leaves(given) if isinstance(x, np.ndarray)]
    assert {id(x) for x in seen} == {id(x) for x in arrays}
    assert len(seen) == len({id(x) for x in arrays})


def test_the_same_array_stays_the_same_object() -> None:
    made = tree.to_backend({"a": A, "b": [A, A.copy()], "c": Frozen(A, 1)}, "toylib")
    assert made["a"] is made["b"][0] is made["c"].x
    assert made["a"] is not made["b"][1]
    assert made["c"].y == 1


def test_views_of_one_memory_share_it_still_and_copies_do_not() -> None:
    base = np.arange(6.0)
    shared = tree.to_numpy({"whole": base, "part": [base[2:]]})
    assert np.shares_memory(shared["whole"], shared["part"][0])
    copied = tree.to_numpy({"whole": base, "part": [base[2:]]}, copy=True)
    assert not np.shares_memory(copied["whole"], copied["part"][0])
    assert not np.shares_memory(copied["whole"], base)


def test_numbers_become_arrays_only_where_somebody_says_so() -> None:
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


def test_a_bare_leaf_is_a_tree() -> None:
    assert isinstance(tree.to_backend(A, "toylib"), Toy)
    assert tree.to_numpy("text") == "text"
    assert tree.to_numpy([]) == []
    assert tree.to_numpy({"x": ()}) == {"x": ()}


def test_options_mean_what_they_mean_for_one_array() -> None:
    made = tree.to_numpy([A, (A.astype("i4"),)], dtype="float32", copy=True)
    assert [x.dtype.name for x in leaves(made)] == ["float32", "float32"]
    with pytest.raises(xbridge.CopyError, match=r"^at tree\[1\]\[0\]: cannot convert"):
        tree.to_numpy([A.astype("f4"), (A,)], dtype="float32", copy=False)


@pytest.mark.parametrize("given", [[], ["text"], [A]])
def test_a_bad_option_is_refused_whatever_the_tree_holds(given: list[object]) -> None:
    with pytest.raises(xbridge.OptionError, match="copy"):
        tree.to_numpy(given, copy="yes")  # type: ignore[arg-type]
    with pytest.raises(xbridge.UnknownBackendError):
        tree.to_backend(given, "nolib")


BAD = np.array(["text"])


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
def test_an_error_names_the_way_to_the_leaf_and_keeps_its_class(given: Any, way: str) -> None:
    with pytest.raises(xbridge.DTypeError) as caught:
        tree.to_backend(given, "toylib")
    assert str(caught.value).startswith(f"at {way}: cannot convert a numpy <U4 array")
    assert isinstance(caught.value.__cause__, xbridge.DTypeError)
    assert str(caught.value) == f"at {way}: {caught.value.__cause__}"


def test_what_a_function_raises_passes_with_a_note() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        tree.map(lambda x: 1 // 0, {"x": [1, A]})
    assert caught.value.__notes__ == ["at tree['x'][1]"]


def test_a_tree_without_an_end_is_refused() -> None:
    own: dict[str, Any] = {"ends": [[1], A], "x": [A]}
    own["x"].append(own)
    with pytest.raises(xbridge.OptionError, match=r"tree\['x'\]\[1\] is tree again"):
        tree.to_numpy(own)
    inner = Sample([], A)
    inner.x.append((A, inner))
    with pytest.raises(xbridge.OptionError, match=r"tree\[0\]\.x\[0\]\[1\] is tree\[0\] again"):
        tree.to_numpy([inner, [], []])


def test_a_tree_deeper_than_the_stack_is_refused() -> None:
    deep: list[Any] = [A]
    for _ in range(5 * sys.getrecursionlimit()):
        deep = [deep, (1,)]
    with pytest.raises(xbridge.OptionError, match="too deep"):
        tree.to_numpy([deep, deep])


def test_a_container_that_is_built_without_end_is_refused() -> None:
    class Deep(Names):
        def __setitem__(self, key: str, value: object) -> None:
            self[key] = value

    with pytest.raises(xbridge.OptionError, match="too deep"):
        tree.to_numpy(dict.fromkeys("ab", Deep(a=A)))


def test_a_container_that_makes_itself_anew_has_no_end_either(globally: str) -> None:
    class Endless:
        pass

    register: Any = optree.register_pytree_node
    register(Endless, lambda x: ([Endless()], None), lambda _, x: x, namespace=globally)
    with pytest.raises(xbridge.OptionError, match="too deep"):
        tree.to_numpy([Endless()])
    optree.unregister_pytree_node(Endless, namespace=globally)


def test_the_source_is_as_it_was() -> None:
    given = {"x": [A, Sample(A, 1)], "y": Names(a=A)}
    before = form(given), [id(x) for x in leaves(given)]
    tree.to_backend(given, "toylib")
    with pytest.raises(xbridge.DTypeError):
        tree.to_backend([given, BAD], "toylib")
    assert (form(given), [id(x) for x in leaves(given)]) == before


def test_no_code_of_a_dataclass_runs_again() -> None:
    made = tree.to_backend(Sample(A, A), "toylib")
    assert made.made == 1
    assert isinstance(made.y, Toy)


def test_a_field_that_was_never_set_is_not_set() -> None:
    assert not hasattr(tree.to_backend(Open(A, 1), "toylib"), "later")


def test_what_was_computed_of_the_old_fields_is_computed_again() -> None:
    @dataclass
    class Cached:
        x: Any

        @cached_property
        def kind(self) -> type:
            return type(self.x)

    given = Cached(A)
    given.note = "kept"  # type: ignore[attr-defined]
    assert given.kind is np.ndarray
    made = tree.to_backend(given, "toylib")
    assert made.kind is Toy
    assert made.note == "kept"
    assert given.kind is np.ndarray


def test_attributes_of_a_dict_stay() -> None:
    given = OrderedDict(b=A, a=A[:1])
    given._metadata = {"version": 1}  # type: ignore[attr-defined]
    made = tree.to_backend(given, "toylib")
    assert type(made) is OrderedDict
    assert list(made) == ["b", "a"]
    assert vars(made)["_metadata"] == {"version": 1}


class Registered:
    """What optree is told of."""

    def __init__(self, array: object, name: str) -> None:
        self.array = array
        self.name = name


def test_what_optree_was_told_of_a_class_holds(globally: str) -> None:
    register: Any = optree.register_pytree_node
    register(
        Registered,
        lambda x: ((x.array,), x.name),
        lambda name, parts: Registered(next(iter(parts)), name),
        namespace=globally,
    )
    made = tree.to_backend({"x": Registered([A], "n")}, "toylib")["x"]
    assert (type(made), made.name) == (Registered, "n")
    assert isinstance(made.array[0], Toy)
    with pytest.raises(xbridge.DTypeError, match="at tree"):
        tree.to_backend([Registered(BAD, "n")], "toylib")
    optree.unregister_pytree_node(Registered, namespace=globally)


def test_what_nobody_was_told_of_is_a_leaf() -> None:
    x = Registered(A, "n")
    assert tree.to_backend([x], "toylib")[0] is x


@pytest.mark.parametrize("fails", ["take", "build"])
def test_what_the_code_of_a_container_raises_is_chained(fails: str) -> None:
    class Faulty(dict[str, Any]):
        def __setitem__(self, key: str, value: object) -> None:
            raise KeyError(key)

        def values(self) -> Any:
            if fails == "take":
                raise KeyError("no")
            return super().values()

    with pytest.raises(xbridge.UnsupportedArrayError, match="its class failed with KeyError") as caught:
        tree.to_numpy([Faulty(a=A)])
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_ours_inside_a_container_is_not_wrapped() -> None:
    class Refusing(Names):
        def __setitem__(self, key: str, value: object) -> None:
            raise xbridge.OptionError("no")

        def values(self) -> Any:
            raise xbridge.OptionError("never")

    with pytest.raises(xbridge.OptionError, match=r"^never$"):
        tree.to_numpy([Refusing(a=A)])
    del Refusing.values
    with pytest.raises(xbridge.OptionError, match=r"^no$"):
        tree.to_numpy([Refusing(a=A)])


def test_align_follows_the_first_array_of_the_first_tree_that_has_one() -> None:
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


def test_importing_xbridge_does_not_import_optree() -> None:
    code = "import xbridge, sys; print('optree' in sys.modules); xbridge.tree; print('optree' in sys.modules)"
    assert run(code) == (0, ["False", "True"])


def test_without_optree_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optree", None)
    monkeypatch.delitem(sys.modules, "xbridge.tree")
    monkeypatch.delattr(xbridge, "tree")
    missing = "cannot convert trees: optree is not installed; try pip install 'xbridge-array[tree]'"
    with pytest.raises(xbridge.MissingLibraryError, match=re.escape(missing)):
        _ = xbridge.tree


def test_there_is_nothing_else_to_find_late() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trees'"):
        xbridge.trees  # type: ignore[attr-defined] # noqa: B018 -- it raises
