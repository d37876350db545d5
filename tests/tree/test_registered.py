"""Classes that are registered with optree, torch or JAX are flattened and built by what was registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from toylib import Toy, make_backend

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Register = Callable[..., None]

pytestmark = pytest.mark.usefixtures("own_registry")

A = np.arange(6.0)
BAD = np.array([None])


@pytest.fixture(autouse=True)
def toys(own_registry: None) -> None:
    xbridge.register_backend("toylib", make_backend())


def new_class() -> type[Any]:
    """A class with an array and a name, which JAX keeps forever once it is registered."""

    class Registered:
        def __init__(self, array: object, name: str) -> None:
            self.array = array
            self.name = name

    return Registered


def register_in_optree(cls: type, flatten: Any, unflatten: Any) -> Callable[[], object]:
    optree = pytest.importorskip("optree")
    namespace = vars(optree.registry)["__GLOBAL_NAMESPACE"]
    optree.register_pytree_node(cls, flatten, unflatten, namespace=namespace)
    return lambda: optree.unregister_pytree_node(cls, namespace=namespace)


def register_in_torch(cls: type, flatten: Any, unflatten: Any) -> Callable[[], object]:
    pytree = pytest.importorskip("torch.utils._pytree")
    pytree.register_pytree_node(cls, flatten, lambda parts, form: unflatten(form, parts))
    return lambda: pytree.SUPPORTED_NODES.pop(cls)


def register_in_jax(cls: type, flatten: Any, unflatten: Any) -> Callable[[], object]:
    pytest.importorskip("jax").tree_util.register_pytree_node(cls, flatten, unflatten)
    return lambda: None


@pytest.fixture(
    params=[register_in_optree, register_in_torch, register_in_jax], ids=["optree", "torch", "jax"]
)
def register(request: pytest.FixtureRequest) -> Iterator[Register]:
    """Register a class with a library until the test ends."""
    undo: list[Callable[[], object]] = []
    yield lambda *args: undo.append(request.param(*args))
    for each in undo:
        each()


def take(x: Any) -> Any:
    return [x.array], x.name


def fail(*_: object) -> Any:
    raise KeyError("no")


def test_find_registration__class_is_flattened_as_it_is_registered(register: Register) -> None:
    """What was registered says which parts are children, and how to build an object of new ones."""
    cls = new_class()
    given = cls([A], "n")
    assert tree.to_backend([given], "toylib")[0] is given
    register(cls, take, lambda name, parts: cls(next(iter(parts)), name))
    converted = tree.to_backend({"x": given}, "toylib")["x"]
    assert (type(converted), converted.name, type(converted.array[0])) == (cls, "n", Toy)
    with pytest.raises(xbridge.DTypeError, match=r"^at tree\['x'\]\[<?(flat index )?0>?\]\[0\]: "):
        tree.to_backend({"x": cls([BAD], "n")}, "toylib")


def test_find_registration__tuple_is_flattened_as_it_is_registered(register: Register) -> None:
    """A registration goes before the items of a builtin base class."""
    cls: Any = type("Point", (tuple,), {})
    register(cls, lambda x: ([*x], len(x)), lambda n, parts: cls([*parts, n]))
    assert tree.to_backend(cls([A]), "toylib")[1] == 1


@pytest.mark.parametrize(("flatten", "unflatten", "action"), [(fail, fail, "flatten"), (take, fail, "build")])
def test_find_registration__what_registered_code_raises_is_chained(
    register: Register, flatten: Any, unflatten: Any, action: str
) -> None:
    """An exception of a registered function becomes the cause of an error."""
    cls = new_class()
    register(cls, flatten, unflatten)
    expected = rf"cannot {action} a Registered: its class failed with KeyError\('no'\)"
    with pytest.raises(xbridge.UnsupportedArrayError, match=expected) as caught:
        tree.to_numpy([cls(A, "n")])
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("names", "entry", "path"),
    [
        ((None,), {"path_entry_type": "SequenceEntry"}, r"tree\[0\]\[1\]\['x'\]"),
        ((["n", "y"],), {"path_entry_type": "GetAttrEntry"}, r"tree\[0\]\.y\['x'\]"),
        ((["n"],), {"path_entry_type": "GetAttrEntry"}, r"tree\[0\]\[<flat index 1>\]\['x'\]"),
        ((3,), {}, r"tree\[0\]\[<flat index 1>\]\['x'\]"),
    ],
)
def test_find_registration__error_names_the_path_that_optree_was_told(
    names: Any, entry: Any, path: str
) -> None:
    """The names of children are those that the registered function returns, if it returns one for each."""
    optree = pytest.importorskip("optree")
    cls, namespace = new_class(), vars(optree.registry)["__GLOBAL_NAMESPACE"]
    entry = {key: getattr(optree, value) for key, value in entry.items()}
    flatten = lambda x: ([x.name, {"x": x.array.copy()}], None, *names)  # noqa: E731 -- it is one argument of two
    optree.register_pytree_node(cls, flatten, lambda _, parts: parts, namespace=namespace, **entry)
    with pytest.raises(xbridge.DTypeError, match=f"^at {path}: "):
        tree.to_backend([cls(BAD, "n")], "toylib")
    optree.unregister_pytree_node(cls, namespace=namespace)


def test_find_registration__error_names_the_path_that_torch_and_jax_were_told() -> None:
    """The names of children are those of the keys that were registered."""
    pytree = pytest.importorskip("torch.utils._pytree")
    jax = pytest.importorskip("jax").tree_util
    for library in (pytree, jax):
        cls = new_class()
        keys = [library.GetAttrKey("name"), library.GetAttrKey("array")]

        def with_keys(x: Any, keys: Any = keys) -> Any:
            return list(zip(keys, (x.name, x.array), strict=True)), None

        flatten, build = (lambda x: ([x.name, x.array], None)), (lambda *_: None)
        if library is jax:
            jax.register_pytree_with_keys(cls, with_keys, build)
        else:
            pytree.register_pytree_node(cls, flatten, build, flatten_with_keys_fn=with_keys)
        with pytest.raises(xbridge.DTypeError, match=r"^at tree\['t'\]\.array\[0\]: "):
            tree.to_backend({"t": cls([BAD], "n")}, "toylib")
    pytree.SUPPORTED_NODES.popitem()
