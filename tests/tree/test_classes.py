"""Containers of classes with code of their own: none of it runs, and nothing that they hold is lost."""

from __future__ import annotations

import gc
import os
import platform
import re
import sys
import threading
import time
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import InitVar, dataclass, field, make_dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
import pytest
from interpreters import frees_classes
from toylib import Toy, make_backend

import xbridge

pytest.importorskip("attrs")

import attrs

from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def test_find_container__named_tuple_is_not_made_anew_by_its_class() -> None:
    """A named tuple is not made anew by its class."""
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
def test_find_container__dict_is_read_and_written_as_dicts_are(cls: Any) -> None:
    """A dict is read and written as dicts are."""
    given = cls(z=A, a=A[:1])
    if cls is LoudOrder:
        given.move_to_end("z")
    order = ["z", "a"] if cls is Loud else ["a", "z"]
    made = there(given)
    base: Any = cls.__base__
    assert list(base.keys(made)) == list(base.keys(given)) == order
    assert base.__getitem__(made, "z").data.tolist() == A.tolist()
    assert base.__getitem__(given, "z") is A


def test_find_container__dict_that_is_its_own_attributes_stays_so() -> None:
    """A dict that is its own attributes stays so."""

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


def test_find_container__subclass_of_a_builtin_keeps_its_attributes_and_what_the_builtin_knows() -> None:
    """A subclass of a builtin keeps its attributes and what the builtin knows."""
    given = Told("a")
    given["x"] = A
    made = there(given)
    assert (made.tag, made["new"], list(given)) == ("a", [], ["x"])
    assert type(made["x"]) is Toy
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


def test_find_container__dataclass_is_copied_without_its_own_code() -> None:
    """A dataclass is copied without its own code."""
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


def test_find_container__slots_stay_and_what_attrs_computed_is_computed_again() -> None:
    """Slots stay and what attrs computed is computed again."""
    given = Slotted(A).hide("kept")
    assert given.kind is np.ndarray
    made = there(given)
    assert made.kind is Toy
    assert made.hidden() == "kept"
    assert not hasattr(made, "unset")


def test_find_container__tuple_in_which_nothing_changed_is_the_one_that_it_was() -> None:
    """A tuple in which nothing changed is the one that it was."""
    given = [platform.uname(), sys.version_info, os.stat_result(range(10)), Scaled(A, "a")._replace(pixels=1)]
    made = tree.to_backend([A, given], "toylib")[1]
    assert all(x is y for x, y in zip(made, given, strict=True))


def test_find_container__what_c_returns_is_made_as_its_class_makes_it() -> None:
    """What C code returns is made as its class makes it."""
    given = time.gmtime(0)
    made = tree.map(lambda n: n + 1, given, scalars=True)
    assert type(made) is time.struct_time
    assert made.tm_year == 1971
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"cannot build a version_info") as caught:
        tree.to_backend(sys.version_info, "toylib", scalars=True)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(ZeroDivisionError) as raised:
        tree.map(lambda n: 1 // n, given, scalars=True)
    assert raised.value.__notes__ == ["at tree.tm_hour"]


def test_find_container__user_dict_is_what_its_data_are() -> None:
    """A `UserDict` is what its data are."""

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


def test_find_container__attribute_stays_where_nothing_computes_it() -> None:
    """An attribute stays where nothing computes it."""
    given = Settled(x=A)
    given.scale = 0.5
    assert there(given).scale == 0.5


def test_find_container__what_c_code_shows_by_name_only_stays() -> None:
    """What C code shows by name only stays."""
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
def test_find_container__everything_else_is_a_leaf(leaf: Any) -> None:
    """Everything else is a leaf."""
    assert tree.to_backend([A, leaf], "toylib")[1] is leaf


class Tenfold:
    """A descriptor that stores ten times what it is given, in another attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.place = self.place_of(name)

    def place_of(self, name: str) -> str:
        return f"_{name}"

    def __get__(self, x: Any, owner: object = None) -> Any:
        if x is None:
            raise AttributeError
        return vars(x)[self.place]

    def __set__(self, x: Any, value: Any) -> None:
        vars(x)[self.place] = value * 10


class UnderItsName(Tenfold):
    """The same, in an attribute of the name that it hides."""

    def place_of(self, name: str) -> str:
        return name


class Outside(Tenfold):
    """The same, in itself."""

    def __init__(self) -> None:
        self.values: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def __get__(self, x: Any, owner: object = None) -> Any:
        if x is None:
            raise AttributeError
        return self.values[x]

    def __set__(self, x: Any, value: Any) -> None:
        self.values[x] = value * 10


def stored(name: str) -> Any:
    """A property that stores ten times what it is given."""

    def write(x: Any, value: Any) -> None:
        vars(x)[name] = value * 10

    return property(lambda x: vars(x)[name], write)


def kept_inside() -> Any:
    """A property that stores ten times what it is given in a container."""
    return property(lambda x: x.values["x"], lambda x, value: vars(x).update(values={"x": value * 10}))


def a_dataclass(it: Any, **options: Any) -> Any:
    """A dataclass with a field that is something of the class."""
    made: Any = make_dataclass("Record", [("x", Any), ("y", Any, None)], eq=False, **options)
    if hasattr(it, "__set_name__"):
        it.__set_name__(made, "x")
    made.x = it
    return made


@pytest.mark.parametrize(
    "it",
    [stored("_x"), stored("x"), stored("__x"), Tenfold(), UnderItsName()],
    ids=["property", "under its name", "two underscores", "descriptor", "descriptor of its name"],
)
def test_find_container__field_behind_a_descriptor_is_what_the_object_stores(it: Any) -> None:
    """A field behind a descriptor is what the object stores."""
    given = a_dataclass(it)(A, A[:1])
    given.note = "kept"
    for made in (tree.map(lambda x: x, given), xbridge.transfer(given, "numpy").result()):
        assert type(made) is type(given)
        assert made is not given
        assert made.x is given.x
        assert (made.y is given.y, made.note) == (True, "kept")
    for made in (there(given), xbridge.transfer(given, "toylib").result()):
        assert made.x.data.tolist() == (A * 10).tolist()
        assert made.y.data.tolist() == A[:1].tolist()
    assert tree.map(lambda x: x + 1, given).x.tolist() == (A * 10 + 1).tolist()
    assert given.x.tolist() == (A * 10).tolist()


def test_find_container__beside_an_attribute_that_bears_the_name_of_a_field_the_others_stay() -> None:
    """Beside an attribute with the name of a field, the others stay."""
    given = a_dataclass(stored("_Record__x"))(A)
    given.kept, given.parent = A, given
    made = there(given)
    assert made.x.data.tolist() == (A * 10).tolist()
    assert (made.kept is A, made.parent is given) == (True, True)


def test_find_container__error_names_the_attribute_that_stores_a_field() -> None:
    """An error names the attribute that stores a field."""
    record = a_dataclass(stored("_x"))(np.ones(2))
    vars(record)["_x"] = BAD
    with pytest.raises(xbridge.DTypeError, match=r"^at tree\._x: "):
        tree.to_backend(record, "toylib")


@pytest.mark.parametrize("more", [{}, {"note": A}], ids=["alone", "beside others"])
def test_find_container__field_that_is_stored_outside_of_its_object_is_refused(more: dict[str, Any]) -> None:
    """A field that is stored outside of its object is refused."""
    x = a_dataclass(Outside())(A, A[:1])
    vars(x).update(more)
    expected = r"^cannot flatten a Record: the class keeps field 'x' behind an Outside, .*; try (\{.*\})$"
    for call in (there, lambda x: tree.map(id, x), lambda x: xbridge.transfer(x, "toylib").result()):
        with pytest.raises(xbridge.UnsupportedArrayError, match=expected) as caught:
            call(x)
    hint = re.search(expected, str(caught.value))
    assert hint
    assert hint[1] == "{'x': x.x, 'y': x.y}"
    assert there(eval(hint[1], {"x": x}))["x"].data.tolist() == (A * 10).tolist()


@pytest.mark.parametrize(
    "it", [stored("elsewhere"), stored("max_x"), kept_inside()], ids=["other", "suffix", "inside"]
)
def test_find__property_that_stores_under_another_name_is_refused(it: Any) -> None:
    """Which attribute holds the value of a property is known by its name alone, and is not guessed."""
    reason = (
        "the class keeps field 'x' behind a property, and the object has no attribute that stores its value"
    )
    with pytest.raises(xbridge.UnsupportedArrayError, match=reason) as caught:
        there(given := a_dataclass(it)(A))
    assert there(eval(caught.value.hint, {"x": given}))["x"].data.tolist() == (A * 10).tolist()


def test_find_container__property_that_nothing_is_stored_for_is_refused_unless_it_is_computed() -> None:
    """A property that nothing is stored for is refused unless it is computed."""
    outside: dict[int, Any] = {}
    kept = a_dataclass(property(lambda x: outside[id(x)], lambda x, value: outside.update({id(x): value})))
    with pytest.raises(xbridge.UnsupportedArrayError, match="field 'x' behind a property"):
        there(kept(A))
    computed = make_dataclass("Computed", [("y", Any), ("size", Any, field(init=False, default=None))])
    computed.size = property(lambda x: type(x.y))  # type: ignore[attr-defined]
    assert there(computed(A)).size is Toy


def test_find_container__property_over_a_slot_of_a_base_shows_what_the_slot_holds() -> None:
    """A property over a slot of a base shows what the slot holds."""

    @dataclass(slots=True)
    class Slotted:
        x: Any
        y: Any

    slot: Any = vars(Slotted)["x"]

    class Scaled(Slotted):
        x: Any = property(slot.__get__, lambda self, v: slot.__set__(self, v * 10))

    made = there(Scaled(A, 1))
    assert (made.x.data.tolist(), made.y) == ((A * 10).tolist(), 1)
    assert tree.map(len, Scaled(A, A[:1])).x == 60 / 10


@dataclass
class Answers:
    """A dataclass that answers for everything, and doubles what it is asked and what it is told."""

    x: Any
    unset: Any = field(init=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return A

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        return value * 2 if name == "x" else value

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value * 2)


def test_find_container__what_a_class_answers_is_neither_read_nor_written() -> None:
    """What a class answers is neither read nor written."""
    made = tree.map(lambda x: x, Answers(A))
    assert vars(made).keys() == {"x"}
    assert vars(made)["x"].tolist() == (A * 2).tolist()


def test_find_container__cached_property_is_computed_again_when_asked_for() -> None:
    """A field that is computed once is computed again and not before it is asked for."""

    @dataclass
    class Once:
        x: Any
        kind: Any = field(init=False, repr=False)

        @cached_property  # type: ignore[no-redef] # as people write them
        def kind(self) -> type:  # noqa: F811
            return type(self.x)

    given = Once(A)
    vars(given).pop("kind", None)
    made = there(given)
    assert "kind" not in vars(given)
    assert (given.kind, made.kind, there(given).kind) == (np.ndarray, Toy, Toy)


def test_find_container__attribute_that_is_not_a_field_stays_unchanged() -> None:
    """An attribute that is not a field stays unchanged."""

    @dataclass(slots=True, weakref_slot=True)
    class Given:
        x: Any
        shared: ClassVar[Any] = A
        start: InitVar[Any] = A

    @dataclass(slots=True)
    class More(Given):
        z: Any = None

    given = More(A, z=A[:1])
    held = ref(given)
    made = there(given)
    assert (type(made.x), type(made.z), made.shared is A) == (Toy, Toy, True)
    assert held() is given
    assert ref(made)() is made


def test_find_container__default_of_the_class_stays_if_it_does_not_change() -> None:
    """A default of the class is a field and stays the default if it does not change."""
    default = Toy(A)

    @dataclass
    class Default:
        x: Any
        mean: Any = field(init=False, default=default)
        rule: Any = field(init=False, default=len)

    assert "mean" not in vars(there(Default(A)))
    made = tree.to_numpy(Default(A))
    assert (type(made.mean), made.rule) == (np.ndarray, len)
    assert Default.mean is default


class lazy:  # noqa: N801 -- as people write it
    """A property that is computed once, of a project of its own."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self.fn = fn

    def __get__(self, x: Any, cls: type) -> Any:
        value = vars(x)[self.fn.__name__] = self.fn(x)
        return value


class Fixed:
    """A default that an object may replace."""

    def __get__(self, x: Any, cls: type) -> Any:
        return "the default"


def test_find_container__what_any_lazy_property_has_stored_is_computed_again_and_what_was_set_stays() -> None:
    """What any lazy property has stored is computed again and what was set stays."""

    @dataclass
    class Lazy:
        x: Any
        rule = Fixed()

        @lazy
        def double(self) -> Any:
            return self.x * 2

        @classmethod
        def make(cls) -> None:
            raise AssertionError

        def run(self) -> None:
            raise AssertionError

    given = Lazy(A)
    kept = {"rule": "mine", "make": len, "run": max}
    vars(given).update(kept)
    assert given.double.tolist() == (A * 2).tolist()
    made = tree.map(lambda x: x + 100, given)
    assert vars(made).keys() == {"x", *kept}
    assert made.double.tolist() == ((A + 100) * 2).tolist()
    assert {name: getattr(made, name) for name in kept} == kept


class Eager(type):
    """A metaclass that answers to every name, or raises."""

    def __getattr__(cls, name: str) -> Any:
        if name in vars(cls)["refused"]:
            raise RuntimeError(name)
        return 42


@pytest.mark.parametrize("refused", [(), ("__dataclass_fields__", "__attrs_attrs__")])
def test_find_container__what_a_metaclass_answers_makes_no_container(refused: tuple[str, ...]) -> None:
    """What a metaclass answers makes no container."""
    given = Eager("Given", (), {"refused": refused})()
    assert there([given, A])[0] is given


def test_find_container__class_that_takes_the_word_for_its_attributes_is_a_leaf() -> None:
    """A class that takes the word for its attributes is a leaf."""

    @dataclass
    class Hidden:
        x: Any
        __dict__ = property(lambda _: {})

    given = Hidden(A)
    assert there([given])[0] is given


def scaled(x: Any) -> Any:
    return x * 10


@attrs.define
class Converted:
    """An attrs class that scales what it is given."""

    x: Any = attrs.field(converter=scaled)


@attrs.frozen(slots=False)
class ConvertedFrozen:
    """The same, which nobody writes, with a property over a field."""

    _x: Any = attrs.field(converter=scaled)

    @property
    def x(self) -> Any:
        return self._x


@pytest.mark.parametrize("cls", [Converted, ConvertedFrozen])
def test_find_container__no_converter_of_an_attrs_class_runs(cls: Any) -> None:
    """No converter of an attrs class runs."""
    given = cls(A)
    assert tree.map(lambda x: x, given).x is given.x
    assert there(given).x.data.tolist() == (A * 10).tolist()


class Turned(Picture):
    """A named tuple with a property in the place of an item."""

    @property
    def pixels(self) -> Any:
        return tuple.__getitem__(self, 0) * 10


def test_find_container__property_of_a_named_tuple_is_neither_read_nor_written() -> None:
    """A property of a named tuple is neither read nor written."""
    made = tree.map(lambda x: x + 1, Turned(A, "a"))
    assert made.pixels.tolist() == ((A + 1) * 10).tolist()
    assert made.name == "a"


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


# -- classes that change ------------------------------------------------------------------------------


def test_find__class_that_changes_is_read_anew() -> None:
    """A default, a computed attribute, a field and a base count as they are now."""

    @dataclass
    class Batch:
        x: Any
        scale: Any = 2.0

    class Base(Batch):
        pass

    class Sub(Base):
        pass

    for cls in (Batch, Sub):
        Batch.scale = 2.0
        batch = cls(A)
        vars(batch).pop("scale")
        vars(batch)["total"] = "kept"
        assert vars(tree.map(np.negative, batch)).keys() == {"x", "total"}
        Batch.scale = A
        made = tree.map(np.negative, batch)
        assert made.scale.tolist() == (-A).tolist()
        computed = cached_property(lambda self: self.x.sum())
        computed.__set_name__(Batch, "total")
        Batch.total = computed  # type: ignore[attr-defined] # it is new
        assert "total" not in vars(tree.map(np.negative, batch))
        assert tree.map(np.negative, batch).total == -A.sum()
        del Batch.total  # type: ignore[attr-defined] # as above
        assert vars(tree.map(np.negative, batch))["total"] == "kept"


def test_find__base_that_changes_is_read_anew() -> None:
    """A class that gets another base has the fields of that base."""
    one, other = make_dataclass("One", ["x"]), make_dataclass("Other", ["y"])
    cls: Any = type("Sub", (one,), {})
    made = cls(A)
    assert tree.map(np.negative, made).x.tolist() == (-A).tolist()
    cls.__bases__ = (other,)
    vars(made)["y"] = A
    found = tree.map(np.negative, made)
    assert (found.y.tolist(), found.x.tolist()) == ((-A).tolist(), A.tolist())


@frees_classes
@pytest.mark.slow
def test_find__few_classes_are_remembered() -> None:
    """The oldest class is forgotten for a new one."""
    first = ref(cls := make_dataclass("First", ["x"]))
    assert tree.map(np.negative, cls(A)).x.tolist() == (-A).tolist()
    del cls
    for n in range(130):
        tree.map(np.negative, make_dataclass(f"Batch{n}", ["x"])(A))
    gc.collect()
    assert first() is None
