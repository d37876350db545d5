"""Containers of classes with code of their own: none of it runs, and nothing that they hold is lost."""

from __future__ import annotations

import threading
import time
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from toylib import Toy, make_backend

import xbridge

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
    converted = tree.to_backend(x, "toylib")
    assert type(converted) is type(x)
    return converted


def negative(x: Any) -> Any:
    """A similar container with the negative of each array."""
    return tree.map(np.negative, x)


# -- subclasses of builtin containers ------------------------------------------------------------------


class Picture(NamedTuple):
    """A named tuple."""

    pixels: Any
    name: str


class Scaled(Picture):
    """A named tuple that changes what it is given, shows something else, and has a dict."""

    def __new__(cls, pixels: Any, name: str) -> Any:
        return super().__new__(cls, pixels / 255, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(["pixels", "name"])

    @property
    def pixels(self) -> Any:
        return tuple.__getitem__(self, 0) * 10


def test_find_container__named_tuple_is_built_without_its_own_code() -> None:
    """Neither `__new__` nor a property of a named tuple runs, and attributes stay."""
    given = Scaled(A * 255, "a")
    given.note = "kept"
    converted = there(given)
    assert tuple.__getitem__(converted, 0).data.tolist() == A.tolist()
    assert (converted.name, converted.note) == ("a", "kept")
    assert negative(given).pixels.tolist() == (-A * 10).tolist()


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


def test_find_container__dict_is_read_and_written_as_dicts_are() -> None:
    """A subclass of dict is read and written by the methods of dict, in the order of its keys."""
    given = Loud(z=A, a=A[:1])
    converted = there(given)
    assert list(dict.keys(converted)) == list(dict.keys(given)) == ["z", "a"]
    assert dict.__getitem__(converted, "z").data.tolist() == A.tolist()
    assert dict.__getitem__(given, "z") is A


def test_find_container__dict_that_is_its_own_attributes_stays_so() -> None:
    """A dict that is its own `__dict__` stays so."""

    class Bunch(dict[str, Any]):
        def __init__(self, **items: Any) -> None:
            super().__init__(**items)
            self.__dict__ = self

    converted = there(Bunch(a=A))
    assert converted.__dict__ is converted
    assert type(converted.a) is Toy
    assert converted.a is converted["a"]


class Told(defaultdict[Any, Any]):
    """A defaultdict that is made of something else."""

    def __init__(self, tag: str) -> None:
        super().__init__(list)
        self.tag = tag


class QueueStats(deque[Any]):
    """A deque that is made of something else."""

    def __init__(self, tag: str) -> None:
        super().__init__(maxlen=3)
        self.tag = tag

    @property
    def maxlen(self) -> int:
        raise AssertionError


class RecordRow(list[Any]):
    """A list that takes nothing."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def __setitem__(self, key: object, value: object) -> None:
        raise AssertionError

    extend = append = __iter__ = __setitem__  # type: ignore[assignment]


class Encoding(UserDict[str, Any]):
    """A `UserDict` that looks into its data, and writes other keys."""

    def __init__(self, tag: str) -> None:
        super().__init__({})
        self.tag = tag

    def __getattr__(self, name: str) -> Any:
        return self.data[name]

    def __setitem__(self, key: str, value: object) -> None:
        self.data[key.lower()] = value


def test_find_container__subclass_of_a_builtin_keeps_its_attributes_and_what_the_builtin_knows() -> None:
    """Attributes, default factories, the longest length and the data of a `UserDict` stay."""
    given = Told("a")
    given["x"] = A
    converted = there(given)
    assert (converted.tag, converted["new"], list(given)) == ("a", [], ["x"])
    assert type(converted["x"]) is Toy
    queue = QueueStats("b")
    queue.append(A)
    taken = there(queue)
    taken.extend([1, 2, 3])
    assert (taken.tag, list(taken)) == ("b", [1, 2, 3])
    row = RecordRow("c")
    list.append(row, A)
    assert (there(row).tag, type(list.__getitem__(there(row), 0))) == ("c", Toy)
    counted = Counter(a=2)
    counted.note = "d"  # type: ignore[attr-defined]
    assert (there(counted).note, there(counted)["a"]) == ("d", 2)
    encoding = Encoding("e")
    encoding.data["IDS"] = A
    encoded = there(encoding)
    assert (type(encoded.IDS), encoded.tag, list(encoded.data)) == (Toy, "e", ["IDS"])
    assert encoding["IDS"] is A


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


def test_find_container__class_that_is_both_has_items_and_fields() -> None:
    """A class that is a builtin and a dataclass has items and fields."""
    converted = there(Output(logits=A))
    assert list(converted) == ["logits"]
    assert converted["logits"] is converted.logits
    assert type(converted.logits) is Toy
    assert converted.loss is None
    given = Points(A)
    given.append([A])
    points = there(given)
    assert points[0][0] is points.name
    assert type(points.name) is Toy
    with pytest.raises(xbridge.DTypeError, match=r"^at tree\.name: "):
        tree.to_backend(Points(BAD), "toylib")


def test_find_container__struct_sequence_is_a_leaf() -> None:
    """A struct sequence that no library has registered is a leaf, also where numbers are converted."""
    leaf = time.localtime()
    assert tree.map(np.negative, [A, leaf], scalars=True)[1] is leaf


# -- classes with fields -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delegate:
    """A dataclass that copies to itself, pickles to nothing, and looks for what it lacks where it is not."""

    x: Any
    inner: Any = field(init=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __getattribute__(self, name: str) -> Any:
        return None if name == "x" else object.__getattribute__(self, name)

    def __copy__(self) -> Delegate:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {}


def test_find_container__dataclass_is_read_and_built_without_its_own_code() -> None:
    """No method of a dataclass is asked for its attributes, or told of new ones."""
    given = Delegate(A)
    object.__setattr__(given, "note", "kept")
    converted = there(given)
    assert (type(vars(converted)["x"]), converted.note, vars(given)["x"] is A) == (Toy, "kept", True)


@dataclass
class Defaulted:
    """A dataclass with a field that lives in the class alone, and one that no object has."""

    x: Any
    scale: Any = field(init=False, default=(A,))
    unset: Any = field(init=False)


def test_find_container__default_of_the_class_is_a_field_too() -> None:
    """A field that only the class stores is converted, and the new object has it for itself."""
    converted = there(Defaulted(A))
    assert (type(converted.x), type(converted.scale[0])) == (Toy, Toy)
    assert Defaulted.scale[0] is A
    assert not hasattr(converted, "unset")


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


def test_find_container__computed_attribute_is_computed_again_and_all_others_stay() -> None:
    """Results of a `cached_property` are computed again when asked for; all other attributes stay."""

    given = Slotted(A).hide("kept")
    assert given.kind is np.ndarray
    converted = there(given)
    assert (converted.kind, converted.hidden(), hasattr(converted, "unset")) == (Toy, "kept", False)


class Tenfold:
    """A descriptor that stores ten times what it is given, in the attribute of its name and a prefix."""

    def __init__(self, prefix: str = "") -> None:
        self.place = f"{prefix}x"

    def __get__(self, x: Any, owner: object = None) -> Any:
        return vars(x)[self.place]

    def __set__(self, x: Any, value: Any) -> None:
        vars(x)[self.place] = value * 10


def a_dataclass(it: Any) -> Any:
    """A dataclass with a field that is something of the class."""
    cls: Any = make_dataclass("Record", [("x", Any), ("y", Any, None)], eq=False)
    cls.x = it
    return cls


@pytest.mark.parametrize(
    "it",
    [Tenfold("_"), property(lambda x: vars(x)["_x"], lambda x, value: vars(x).update(_x=value * 10))],
    ids=["descriptor", "property"],
)
def test_find_container__field_that_is_stored_in_an_unknown_place_is_refused(it: Any) -> None:
    """Which attribute holds the value of a descriptor is not guessed; the hint is a call that works."""
    given = a_dataclass(it)(A, A[:1])
    for call in (there, negative, lambda x: xbridge.transfer(x, "toylib").result()):
        with pytest.raises(
            xbridge.UnsupportedArrayError, match=r"cannot flatten a Record: .*field 'x'"
        ) as caught:
            call([given])
        assert there(eval(caught.value.hint, {"x": given}))["x"].data.tolist() == (A * 10).tolist()


def scaled(x: Any) -> Any:
    return x * 10


# -- leaves --------------------------------------------------------------------------------------------


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


class Eager(type):
    """A metaclass that answers to every name, or raises."""

    def __getattr__(cls, name: str) -> Any:
        if name in vars(cls)["refused"]:
            raise RuntimeError(name)
        return 42


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
        Eager("Given", (), {"refused": ()})(),
        Eager("Given", (), {"refused": ("__dataclass_fields__", "__attrs_attrs__")})(),
    ],
    ids=lambda leaf: type(leaf).__name__,
)
def test_find_container__everything_else_is_a_leaf(leaf: Any) -> None:
    """Everything else is a leaf."""
    assert tree.to_backend([A, leaf], "toylib")[1] is leaf


def test_find_container__models_of_pydantic_and_msgspec_are_leaves_and_their_dataclasses_are_not() -> None:
    """The models of pydantic and msgspec are leaves and their dataclasses are not."""
    msgspec = pytest.importorskip("msgspec")
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):  # type: ignore[misc,name-defined] # it may be missing
        x: Any

    for leaf in (msgspec.defstruct("Struct", ["x"])(A), Model(x=A)):
        assert there([leaf])[0] is leaf

    class Checked:
        x: Any
        validator = pydantic.field_validator("x")(scaled)

    assert there(pydantic.dataclasses.dataclass(Checked)(A)).x.data.tolist() == (A * 10).tolist()
