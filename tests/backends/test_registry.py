"""The registry: late registration, plugins, precedence, threads."""

from __future__ import annotations

import gc
import sys
import threading
from contextlib import suppress
from sysconfig import get_config_var
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import pytest
from toylib import SubToy, Toy, make_backend
from versions import is_older

import xbridge
from xbridge._registry import registry
from xbridge._registry.call_cache import direct
from xbridge.backends import numpy as backend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("own_registry")


def test_register_backend__is_seen_by_the_next_call() -> None:
    """A backend that is registered late serves the next call."""
    with pytest.raises(xbridge.UnsupportedArrayError):
        xbridge.backend_of(Toy(np.ones(2)))
    xbridge.register_backend("toylib", make_backend())
    assert xbridge.backend_of(Toy(np.ones(2))) == "toylib"


def test_owns__decides_among_classes_of_a_root() -> None:
    """The root package only selects candidates; `owns` decides."""
    xbridge.register_backend("toylib", make_backend(owns=lambda cls: cls is SubToy))
    assert xbridge.backend_of(SubToy(np.ones(2))) == "toylib"
    with pytest.raises(xbridge.UnsupportedArrayError):
        xbridge.backend_of(Toy(np.ones(2)))


def test_register_backend__roots_name_the_packages() -> None:
    """`roots` names the packages of the arrays, as a tuple or as a string."""
    for roots in ("toylib",), "toylib":
        xbridge.register_backend("toys", make_backend("toys"), roots=roots, replace=True)  # type: ignore[arg-type]
        assert xbridge.backend_of(Toy(np.ones(2))) == "toys"


def test_register_backend__refuses_a_taken_name() -> None:
    """A name that is taken is refused unless `replace=True` or the backend is the same."""
    first = make_backend()
    xbridge.register_backend("toylib", first)
    xbridge.register_backend("toylib", first)
    xbridge.register_backend("toylib", first, roots=("toylib",))
    with pytest.raises(xbridge.OptionError, match="belongs to toylib_backend; try replace=True"):
        xbridge.register_backend("toylib", make_backend())
    with pytest.raises(xbridge.OptionError, match="belongs to toylib_backend"):
        xbridge.register_backend("toylib", first, roots=("others",))
    with pytest.raises(xbridge.OptionError, match=r"xbridge\.backends\.numpy"):
        xbridge.register_backend("numpy", make_backend("numpy"))


def test_register_backend__completes_a_replacement_of_numpy() -> None:
    """A backend of four names that replaces NumPy's gets the defaults of any other."""
    four = {"name": "numpy", "array_types": (np.ndarray,), "to_numpy": np.asarray, "from_numpy": np.asarray}
    module = ModuleType("four")
    vars(module).update(four)
    xbridge.register_backend("numpy", module, replace=True)
    made = xbridge.to_numpy(np.ones(2), dtype="float32", copy=True)
    assert (made.dtype.name, made.tolist()) == ("float32", [1.0, 1.0])


def test_register_backend__replace_updates_every_table() -> None:
    """A replacement takes effect in all tables at once."""
    toy = Toy(np.ones(2))
    xbridge.register_backend("toylib", make_backend())
    assert xbridge.dtype_of(toy) == "float64"
    info = backend.array_info(toy.data)._replace(dtype="replaced")
    xbridge.register_backend("toylib", make_backend(array_info=lambda _: info), replace=True)
    assert xbridge.dtype_of(toy) == "replaced"


def test_register_backend__path_is_imported_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend given as a module path is imported when it is needed."""
    (tmp_path / "late_toys.py").write_text(
        "import sys, toylib\nsys.modules[__name__] = toylib.make_backend()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    xbridge.register_backend("toylib", "late_toys")
    assert "late_toys" not in sys.modules
    assert xbridge.is_available("toylib")
    assert "late_toys" in sys.modules


def test_to_backend__missing_library_says_what_to_install() -> None:
    """The error for a missing library says what to install."""
    xbridge.register_backend("nolib", "nolib.backend")
    assert xbridge.is_available("nolib") is False
    with pytest.raises(xbridge.MissingLibraryError, match="is not installed") as caught:
        xbridge.to_backend(np.ones(2), "nolib")
    assert (caught.value.reason, caught.value.hint) == ("nolib is not installed", "pip install nolib")
    xbridge.register_backend("toylib", "nolib.backend")
    with pytest.raises(xbridge.MissingLibraryError, match=r"nolib is not installed; try pip install toylib$"):
        xbridge.to_backend(np.ones(2), "toylib")


def test_to_backend__unknown_backend_suggests_the_nearest() -> None:
    """An unknown name is refused with the nearest known one."""
    with pytest.raises(xbridge.UnknownBackendError, match="try 'numpy'"):
        xbridge.to_backend(np.ones(2), "nunpy")
    with pytest.raises(
        xbridge.UnknownBackendError, match=r"backend by \['numpy'\]: .* known names are [a-z_, ]*$"
    ):
        xbridge.to_backend(np.ones(2), ["numpy"])  # type: ignore[call-overload] # that is the mistake
    assert not xbridge.is_available("nunpy")


def test_entry_points__are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points are read by the first unknown type, and not for lists and numbers."""
    scans: list[str] = []

    def distributions() -> list[object]:
        scans.append("again")
        return []

    monkeypatch.setattr("importlib.metadata.distributions", distributions)
    xbridge.asarray([1, (2,)[0], 3.5])
    xbridge.asarray(2.5)
    assert scans == []
    for _ in range(2):
        with pytest.raises(xbridge.UnsupportedArrayError):
            xbridge.backend_of(Toy(np.ones(2)))
    assert scans == ["again"]


def test_dtype_name__participating_backends_are_asked() -> None:
    """A dtype or device object is understood if a backend of the conversion knows it."""
    half, place = object(), object()
    xbridge.register_backend(
        "toylib",
        make_backend(
            dtype_name=lambda dtype: "float16" if dtype is half else None,
            device_name=lambda device: xbridge.Device("cpu") if device is place else None,
        ),
    )
    for x in (np.ones(2), [1.0, 1.0], [np.ones(1), np.ones(1)]):
        assert xbridge.asarray(x, backend="toylib", dtype=half, device=place).data.dtype == "f2"
    assert xbridge.to_numpy(Toy(np.ones(2)), dtype=half).dtype == "f2"


# -- libraries that are imported meanwhile ---------------------------------------------------------


def test_is_available__asked_by_the_library_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that asks for its backend too early gets no answer that lasts."""
    (tmp_path / "early.py").write_text(
        "import numpy as np, xbridge\n"
        "available = xbridge.is_available('early')\n"
        "try:\n    xbridge.to_backend(np.ones(2), 'early')\n"
        "except xbridge.MissingLibraryError as error:\n    refused = str(error)\n"
        "class Array:\n    pass\n"
    )
    (tmp_path / "early_xbridge.py").write_text(
        "import sys, early, toylib\n"
        "sys.modules[__name__] = toylib.make_backend('early', array_types=(early.Array,))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    xbridge.register_backend("early", "early_xbridge")
    import early  # type: ignore[import-not-found]

    assert not early.available
    assert early.refused.startswith("cannot use backend 'early': importing early_xbridge failed with ")
    assert xbridge.is_available("early")


def test_is_available__failed_import_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that failed to load is not imported again to say so."""
    (tmp_path / "broken_once.py").write_text("import toylib\ntoylib.tries.append(1)\nraise OSError\n")
    monkeypatch.syspath_prepend(tmp_path)
    tries: list[int] = []
    monkeypatch.setattr(sys.modules["toylib"], "tries", tries, raising=False)
    xbridge.register_backend("others", "broken_once", roots=())
    assert [xbridge.is_available("others") for _ in range(3)] == [False] * 3
    assert tries == [1]


# -- what is registered while somebody looks -------------------------------------------------------


def test_direct__stays_empty_under_an_observer() -> None:
    """No thread that loads, replaces or converts fills the tables under an observer."""
    backends = [make_backend(), make_backend()]
    xbridge.register_backend("toylib", backends[0])
    over, begin, failures = threading.Event(), threading.Barrier(5), []

    def again(work: Callable[[int], object]) -> None:
        begin.wait()
        turn = 0
        try:
            while not over.is_set():
                turn += 1
                work(turn)
        except (xbridge.XBridgeError, RuntimeError, AssertionError) as error:
            failures.append(error)

    def replace(turn: int) -> None:
        xbridge.register_backend("toylib", backends[turn % 2], replace=True)

    def convert(_: int) -> None:
        toy = xbridge.to_backend(np.ones(2), "toylib")
        assert xbridge.backend_of(toy) == "toylib"
        assert xbridge.to_numpy(toy).tolist() == [1.0, 1.0]

    jobs = [replace, convert, convert, lambda _: xbridge.is_available("toylib")]
    threads = [threading.Thread(target=again, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    begin.wait()
    found = []
    for _ in range(200):
        with xbridge.record():
            found += [name for _ in range(20) for name, table in direct.items() if table]
    over.set()
    for thread in threads:
        thread.join()
    assert (failures, found) == ([], [])
    assert registry.get("toylib") is registry.by_type.get(Toy, registry.get("toylib"))
    assert direct["numpy"].keys() >= {Toy, np.ndarray}


@pytest.mark.skipif(
    sys.version_info < (3, 14) and bool(get_config_var("Py_GIL_DISABLED")),
    reason="Python 3.13 without the GIL frees no class once a thread has started",
)
@pytest.mark.parametrize(
    "use",
    [
        xbridge.backend_of,
        lambda x: xbridge.to_numpy(x, dtype="float32"),
        lambda x: xbridge.asarray([x, x]),
        lambda x: xbridge.asarray(np.ones(2), like=x),
        lambda x: xbridge.align(x, x),
        lambda x: xbridge.tree.map(lambda y: y, [x]),
        xbridge.aligned(backend="numpy")(lambda y: y),
    ],
    ids=["backend_of", "to_numpy", "list", "like", "align", "tree", "aligned"],
)
def test_backend_for__does_not_keep_a_class_alive(use: Callable[[Any], Any]) -> None:
    """A class of arrays can be collected after it was looked up."""
    made: list[Any] = [type("SubArray", (np.ndarray,), {}) for _ in range(2)]
    if xbridge.is_available("torch") and not is_older("torch", "2.13"):  # 2.7 keeps it
        import torch

        made.append(type("SubTensor", (torch.Tensor,), {}))
    classes = [ref(cls) for cls in made]
    while made:
        cls = made.pop()
        for _ in range(2):
            x = np.ones(2).view(cls) if issubclass(cls, np.ndarray) else torch.ones(2).as_subclass(cls)
            with suppress(xbridge.XBridgeError):  # most calls refuse a class of NumPy's arrays
                use(x)
            assert xbridge.backend_of(x) == ("numpy" if issubclass(cls, np.ndarray) else "torch")
        del x, cls
    gc.collect()
    assert [found() for found in classes] == [None] * len(classes)
