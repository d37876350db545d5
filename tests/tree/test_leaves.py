"""Which leaves of a tree are converted, each once; and what a way without a plan has in common with plans."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from toylib import Toy, make_backend

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

A = np.arange(3.0, dtype="f4")


TEXTS = {
    "strings": np.array(["cat", "dog"]),
    "bytes": np.array([b"cat"]),
    "0-d": np.array("cat"),
    "string": np.str_("cat"),
    "byte string": np.bytes_(b"cat"),
    "no values": np.zeros(2, [("float0", np.void, 0)]),  # as JAX's gradients of integers
}
if hasattr(np.dtypes, "StringDType"):  # NumPy 2
    TEXTS["new strings"] = np.array(["cat"], dtype=np.dtypes.StringDType())


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("options", [{}, {"dtype": "float64"}, {"copy": True}, {"scalars": True}], ids=str)
def test_tree_to_backend__text_stays_the_same_object(
    text: Any, options: dict[str, Any], own_registry: None
) -> None:
    """Text stays the object that it is, and decides nothing."""
    xbridge.register_backend("toylib", make_backend())
    for backend, kind in (("toylib", Toy), ("numpy", np.ndarray)):
        made = tree.to_backend({"x": A, "name": [text, "a"]}, backend, **options)
        assert made["name"][0] is text
        assert type(made["x"]) is kind
    assert tree.to_backend([text], "numpy", **options)[0] is text
    assert tree.align([Toy(A), text])[0][1] is text
    first, x, y = tree.align([text, Toy(A), A])[0]
    assert first is text
    assert type(x) is type(y) is Toy
    options.pop("scalars", None)
    assert xbridge.transfer([text, A], "toylib", **options).result()[0] is text


@pytest.mark.parametrize(
    "convert",
    [
        lambda batch: tree.to_backend(batch, "numpy", copy=True),
        lambda batch: xbridge.transfer(batch, "numpy", copy=True).result(),
        lambda batch: xbridge.transfer(batch, "numpy").result(),
    ],
    ids=["tree", "transfer", "transfer that shares"],
)
@pytest.mark.parametrize("watched", [False, True])
def test_transfer__batch_that_fails_is_not_tried_again(
    convert: Callable[[Any], Any], watched: bool, own_registry: None
) -> None:
    """A batch that fails is not tried again."""
    seen: list[int] = []

    def to_host(x: Toy, /) -> Any:
        seen.append(int(x.data[0]))
        if x.data[0] == 2:
            raise RuntimeError("no such toy")
        return x.data

    xbridge.register_backend("toylib", make_backend(to_numpy=to_host))
    batch = {"own": [A, A[1:]], "x": [Toy(np.array([float(i)])) for i in range(4)], "more": A[2:]}
    match = r"^at tree\['x'\]\[2\]: .*no such toy"
    observed = xbridge.record() if watched else nullcontext()
    with observed, pytest.raises(xbridge.UnsupportedArrayError, match=match) as told:
        convert(batch)
    assert seen == [0, 1, 2]
    assert isinstance(told.value.__cause__, RuntimeError)


def test_tree_to_backend__error_of_one_leaf_alone_says_which_it_is() -> None:
    """An error of one leaf alone says which it is."""
    with pytest.raises(xbridge.ValueLossError, match=r"^at tree\['n'\]\[1\]: cannot"):
        tree.to_backend({"n": [1, 2**70]}, "numpy", scalars=True)
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"^at tree\['x'\]: cannot convert an object"):
        tree.map(lambda _: xbridge.to_numpy(object()), {"x": A})


class Unbound:
    """A proxy that stands for nothing now, as werkzeug's outside of a request."""

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override] # as that proxy does
        raise RuntimeError("no object is bound")


@pytest.mark.parametrize("leaf", [np.ndarray, Unbound()], ids=["a class", "a proxy"])
@pytest.mark.parametrize("exporters", [False, True])
def test_map__class_or_proxy_is_no_exporter(leaf: object, exporters: bool) -> None:
    """A class exports nothing, whatever its objects export, and a proxy need not say what it has."""
    made = xbridge.tree.to_numpy({"x": np.ones(1), "other": leaf}, exporters=exporters)
    assert made["other"] is leaf
    sent = xbridge.transfer({"x": np.ones(1), "other": leaf}, "numpy").result()
    assert sent["other"] is leaf


@pytest.mark.parametrize(
    ("only", "reason", "hint"),
    [
        (3, "a backend is a name or a module", ""),
        (["torch", "float32"], "it is a dtype", "only='torch'"),
        ("nunpy", "the known names are", "only='numpy'"),
        (dict, "a backend is a name or a module", ""),
    ],
)
def test_to_backend__only_names_libraries(only: Any, reason: str, hint: str) -> None:
    """Anything else is an error about this option, with a value that it may have."""
    with pytest.raises(xbridge.UnknownBackendError) as told:
        tree.to_numpy([A], only=only)
    assert told.value.action == f"take only={xbridge.errors.shown(only)}"
    assert told.value.reason.startswith(reason)
    assert told.value.hint == hint


def test_to_backend__number_that_cannot_share_memory_is_not_called_a_list() -> None:
    """The error about a number with `copy=False` says that it is one."""
    with pytest.raises(xbridge.CopyError, match=r"^at tree\[0\]: cannot make an array of this number"):
        tree.to_numpy([300], scalars=True, copy=False)


class Movable:
    """A batch of a library that has no backend, which moves itself."""

    def __init__(self, device: object = "cpu") -> None:
        self.device = device

    def to(self, device: object) -> Movable:
        return Movable(device)


def test_to_torch__object_with_a_method_to_is_moved_if_the_call_asks_for_it() -> None:
    """Objects that no library owns are moved by their method `to`, once each, and arrays are converted."""
    pytest.importorskip("torch")
    given = Movable()
    batch = {"x": A, "batch": [given, given], "name": "a"}
    assert tree.to_torch(batch, device="cpu")["batch"][0] is given
    moved = tree.to_torch(batch, device="cpu", movables=True)
    assert (type(moved["x"]).__name__, moved["name"]) == ("Tensor", "a")
    assert moved["batch"][0] is moved["batch"][1] is not given
    assert tree.to_backend(given, "numpy", device="cpu", movables=True).device == "cpu"
    device = pytest.importorskip("torch").device("cpu")
    assert tree.to_torch(given, device=device, movables=True).device is device
    route = type("Route", (), {"to": "Bern"})()
    assert tree.to_torch([route], device="cpu", movables=True) == [route]


def test_to_torch__object_is_moved_to_the_device_that_another_library_names() -> None:
    """The method `to` gets a device of the target, or its name, and not another library's object."""
    pytest.importorskip("torch")
    device = pytest.importorskip("jax").devices("cpu")[0]
    moved = tree.to_torch([Movable(), A], device=device, movables=True)[0]
    assert type(moved.device) is str
    assert moved.device == "cpu"


def test_to_backend__object_that_cannot_be_moved_is_an_error_with_its_path() -> None:
    """The call has to name a device, and an exception of the method `to` is chained."""
    with pytest.raises(xbridge.OptionError, match="the call names no device"):
        tree.to_backend([Movable()], "numpy", movables=True)
    resting = type("Resting", (Movable,), {"to": lambda self, device: None})()
    with pytest.raises(xbridge.UnsupportedArrayError, match=r"^at tree\[0\]: .*`to` returned None"):
        tree.to_backend([resting], "numpy", device="cpu", movables=True)
    with pytest.raises(xbridge.OptionError, match=r"take exporters=array\(\[1, 2\]\): it is True or False"):
        tree.to_numpy([A], exporters=np.array([1, 2]))  # type: ignore[arg-type] # wrong
    with pytest.raises(xbridge.OptionError, match="take movables='yes': it is True or False"):
        tree.to_backend([Movable()], "numpy", device="cpu", movables="yes")  # type: ignore[arg-type] # wrong
    failing = type("Failing", (Movable,), {"to": lambda self, device: 1 / 0})()
    with pytest.raises(
        xbridge.UnsupportedArrayError, match=r"^at tree\[0\]: .*`to` failed with ZeroDiv"
    ) as told:
        tree.to_backend([failing], "numpy", device="cpu", movables=True)
    assert isinstance(told.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("values", [[1.0, 2.0], ["a", None]], ids=["numbers", "objects"])
def test_to_backend__exporter_exports_once_if_what_is_unsupported_is_kept(values: list[Any]) -> None:
    """To find out whether the target can have an object, its memory is exported, and not again."""
    exports: list[Any] = []

    class Exporter:
        def __array__(self, dtype: object = None, copy: object = None) -> Any:
            exports.append(None)
            return np.array(values)

    given = Exporter()
    made = tree.to_backend([given], "numpy", exporters=True, unsupported="keep")[0]
    assert made.tolist() == values if type(values[0]) is float else made is given
    assert len(exports) == 1
