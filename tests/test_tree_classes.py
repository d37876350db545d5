"""Containers of classes with code of their own: none of it runs, and nothing that they hold is lost."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from toylib import Toy, make_backend

import xbridge

pytest.importorskip("optree")
pytest.importorskip("attrs")

import attrs

from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("own_registry")

A = np.arange(6.0)
BAD = np.array([None])


@pytest.fixture(autouse=True)
def toys(own_registry: None) -> None:
    xbridge.register_backend("toylib", make_backend())


def there(x: Any) -> Any:
    """The same in another library."""
    made = tree.to_backend(x, "toylib")
    assert type(made) is type(x)
    return made


class Picture(NamedTuple):
    """A named tuple."""

    pixels: Any
    name: str


class Scaled(Picture):
    """A named tuple that changes what it is given, and tells something else; with a dict."""

    def __new__(cls, pixels: Any, name: str) -> Any:
        return super().__new__(cls, pixels / 255, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(["pixels", "name"])


def test_a_named_tuple_is_not_made_anew_by_its_class() -> None:
    given = Scaled(A * 255, "a")
    given.note = "kept"
    made = there(given)
    assert made.pixels.data.tolist() == A.tolist()
    assert (made.name, made.note) == ("a", "kept")


class Loud(dict[Any, Any]):
    """A dict that shows and takes other things than it holds."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(dict.keys(self)))

    def items(self) -> Any:
        return [("no", "such")]

    keys = values = items

    def __setitem__(self, key: str, value: object) -> None:
        raise AssertionError(key)

    def __copy__(self) -> Loud:
        return self


class LoudOrder(OrderedDict[Any, Any]):
    """The same, with an order that can be changed."""

    items, __copy__, keys, values = Loud.items, Loud.__copy__, Loud.items, Loud.items


@pytest.mark.parametrize("cls", [Loud, LoudOrder])
def test_a_dict_is_read_and_written_as_dicts_are(cls: Any) -> None:
    given = cls(z=A, a=A[:1])
    if cls is LoudOrder:
        given.move_to_end("z")
    order = ["z", "a"] if cls is Loud else ["a", "z"]
    made = there(given)
    base: Any = cls.__base__
    assert list(base.keys(made)) == list(base.keys(given)) == order
    assert base.__getitem__(made, "z").data.tolist() == A.tolist()
    assert base.__getitem__(given, "z") is A


def test_a_dict_that_is_its_own_attributes_stays_so() -> None:
    class Bunch(dict[str, Any]):
        def __init__(self, **items: Any) -> None:
            super().__init__(**items)
            self.__dict__ = self

    made = there(Bunch(a=A))
    assert made.__dict__ is made
    assert made.a is made["a"]
    made.b = 1
    assert made["b"] == 1


class Told(defaultdict[Any, Any]):
    """A defaultdict that is made of something else."""

    def __init__(self, tag: str) -> None:
        super().__init__(list)
        self.tag = tag


class Queue(deque[Any]):
    """A deque that is made of something else."""

    def __init__(self, tag: str) -> None:
        super().__init__(maxlen=3)
        self.tag = tag

    @property
    def maxlen(self) -> int:
        raise AssertionError


class Row(list[Any]):
    """A list that takes nothing."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def __setitem__(self, key: object, value: object) -> None:
        raise AssertionError

    extend = append = __iter__ = __setitem__  # type: ignore[assignment]


def test_a_subclass_of_a_builtin_keeps_its_attributes_and_what_the_builtin_knows() -> None:
    given = Told("a")
    given["x"] = A
    made = there(given)
    assert (made.tag, made["new"], list(given)) == ("a", [], ["x"])
    assert type(made["x"]) is Toy
    queue = Queue("b")
    queue.append(A)
    taken = there(queue)
    taken.extend([1, 2, 3])
    assert (taken.tag, list(taken)) == ("b", [1, 2, 3])
    row = Row("c")
    list.append(row, A)
    assert (there(row).tag, type(list.__getitem__(there(row), 0))) == ("c", Toy)
    counted = Counter(a=2)
    counted.note = "d"  # type: ignore[attr-defined]
    assert (there(counted).note, there(counted)["a"]) == ("d", 2)


@dataclass
class Output(OrderedDict[str, Any]):
    """A dataclass that is a dict of its fields too."""

    loss: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        for name, x in vars(self).items():
            if x is not None:
                super().__setitem__(name, x)

    def __setitem__(self, key: str, value: object) -> None:
        raise AssertionError(key)


@dataclass
class Points(list[Any]):
    """A dataclass that is a list of other things."""

    name: Any


def test_a_class_that_is_both_has_items_and_fields() -> None:
    made = there(Output(logits=A))
    assert list(made) == ["logits"]
    assert made["logits"] is made.logits
    assert type(made.logits) is Toy
    assert made.loss is None
    given = Points(A)
    given.append([A])
    points = there(given)
    assert points[0][0] is points.name
    assert type(points.name) is Toy
    with pytest.raises(xbridge.DTypeError, match=r"^at tree\.name: "):
        tree.to_backend(Points(BAD), "toylib")


@dataclass(frozen=True)
class Delegate:
    """A dataclass that copies to itself, pickles to nothing, and looks for what it lacks where it is not."""

    x: Any
    inner: Any = field(init=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __copy__(self) -> Delegate:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}


def test_a_dataclass_is_copied_without_its_own_code() -> None:
    given = Delegate(A)
    object.__setattr__(given, "note", "kept")
    made = there(given)
    assert type(made.x) is Toy
    assert made.note == "kept"
    assert given.x is A


@attrs.define
class Base:
    """An attrs class, which keeps what it computed in a slot."""

    x: Any

    @cached_property
    def kind(self) -> type:
        return type(self.x)


class Slotted(Base):
    """With a slot that is no field."""

    __slots__ = ("__hidden", "unset")

    def hide(self, what: Any) -> Any:
        self.__hidden = what
        return self

    def hidden(self) -> Any:
        return self.__hidden


def test_slots_stay_and_what_attrs_computed_is_computed_again() -> None:
    given = Slotted(A).hide("kept")
    assert given.kind is np.ndarray
    made = there(given)
    assert made.kind is Toy
    assert made.hidden() == "kept"
    assert not hasattr(made, "unset")


def test_a_tuple_in_which_nothing_changed_is_the_one_that_it_was() -> None:
    given = [platform.uname(), sys.version_info, os.stat_result(range(10)), Scaled(A, "a")._replace(pixels=1)]
    made = tree.to_backend([A, given], "toylib")[1]
    assert all(x is y for x, y in zip(made, given, strict=True))


def test_what_c_returns_is_made_as_its_class_makes_it() -> None:
    given = time.gmtime(0)
    made = tree.map(lambda n: n + 1, given, scalars=True)
    assert type(made) is time.struct_time
    assert made.tm_year == 1971
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"cannot put a version_info together") as caught:
        tree.to_backend(sys.version_info, "toylib", scalars=True)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(ZeroDivisionError) as raised:
        tree.map(lambda n: 1 // n, given, scalars=True)
    assert raised.value.__notes__ == ["at tree.tm_hour"]


def test_a_user_dict_is_what_its_data_are() -> None:
    class Encoding(UserDict[str, Any]):
        def __init__(self, data: Any, extra: Any) -> None:
            super().__init__(data)
            self.extra = extra

        def __getattr__(self, name: str) -> Any:
            return self.data[name]

        def __setitem__(self, key: str, value: object) -> None:
            self.data[key.lower()] = value

    given = Encoding({}, "e")
    given.data["IDS"] = A
    made = there(given)
    assert type(made.IDS) is Toy
    assert (made.extra, given["IDS"] is A, list(made.data)) == ("e", True, ["IDS"])


class Computed:
    """What computes something of itself."""

    @cached_property
    def scale(self) -> float:
        return 1.0


class Settled(Computed, dict[str, Any]):
    """It does not any more."""

    scale: Any = None


def test_an_attribute_stays_where_nothing_computes_it() -> None:
    given = Settled(x=A)
    given.scale = 0.5
    assert there(given).scale == 0.5


def test_what_c_code_shows_by_name_only_stays() -> None:
    given = time.localtime()
    made = tree.map(lambda n: n + 1, given, scalars=True)
    assert (made.tm_year, made.tm_zone, made.tm_gmtoff) == (given.tm_year + 1, given.tm_zone, given.tm_gmtoff)


@dataclass
class Mixin:
    """What an enumeration's members may be."""

    x: Any


class Constant(Mixin, Enum):
    """Of arrays."""

    ONE = A


@dataclass
class FailedError(Exception):
    """A dataclass whose base holds more than can be seen."""

    x: Any


@dataclass
class OfThread(threading.local):
    """A dataclass whose base is C code."""

    x: Any


@pytest.mark.parametrize(
    "leaf",
    [
        Constant.ONE,
        FailedError(A),
        OfThread(A),
        ChainMap({"x": A}),
        MappingProxyType({"x": A}),
        SimpleNamespace(x=A),
        {"x": A}.values(),
        iter([A]),
        frozenset([1]),
        Mixin,
    ],
)
def test_everything_else_is_a_leaf(leaf: Any) -> None:
    assert tree.to_backend([A, leaf], "toylib")[1] is leaf
