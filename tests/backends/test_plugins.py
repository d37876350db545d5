"""Plugins: installed packages that announce backends, found without an import, and harmless when broken.

Packages are installed here as pip leaves them: modules, and metadata with entry points, in a folder on the
path. A real one, with a real library, is `plugin_package`, which has tests of its own.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from toylib import Toy, make_backend

import xbridge
from xbridge import protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from kit_projects import Run

pytest_plugins = ["kit_projects"]

pytestmark = pytest.mark.usefixtures("own_registry")

HERE = Path(__file__).parents[1]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a package that announces a backend, and has these modules."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(package: str, point: str, **modules: str) -> None:
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[xbridge.backends]\n{point}\n", "utf-8")
        for name, code in modules.items():
            (tmp_path / f"{name}.py").write_text(code, "utf-8")
            monkeypatch.delitem(sys.modules, name, raising=False)

    return install


TOYS = "import sys, toylib\nsys.modules[__name__] = toylib.make_backend()\n"
"""The module of a plugin that is as it should be."""


def refused(name: str) -> xbridge.XBridgeError:
    """What a backend that was asked for by name is refused with."""
    with pytest.raises(xbridge.XBridgeError) as caught:
        xbridge.to_backend(np.ones(2), name)
    assert not xbridge.is_available(name)
    return caught.value


def is_unharmed() -> bool:
    """Whether others go on as ever: names, arrays, exporters, what nobody owns, and other plugins."""
    assert xbridge.backend_of(Toy(np.ones(2))) == "toylib"
    assert xbridge.to_numpy(xbridge.to_backend(np.ones(2), "toylib")).tolist() == [1.0, 1.0]
    assert xbridge.to_numpy(memoryview(b"ab")).tolist() == [97, 98]
    with pytest.raises(xbridge.UnsupportedArrayError):
        xbridge.backend_of(object())
    with pytest.raises(xbridge.UnknownBackendError):
        xbridge.to_backend(np.ones(2), "nunpy")
    return xbridge.is_available("numpy")


# -- found ---------------------------------------------------------------------------------------


def test_plugin__is_imported_when_it_is_needed(install: Callable[..., None]) -> None:
    """A plugin is known by name at once, and imported by its name or by an array of its library alone."""
    install("xbridge-toys", "toylib = toy_plugin", toy_plugin=TOYS)
    assert xbridge.known_backends()[-1] == "toylib"
    assert xbridge.to_numpy(memoryview(b"ab")).tolist() == [97, 98]
    with pytest.raises(xbridge.UnsupportedArrayError):
        xbridge.backend_of(ast.parse("1"))
    assert "toy_plugin" not in sys.modules
    assert xbridge.backend_of(Toy(np.ones(2))) == "toylib"
    assert xbridge.to_numpy(Toy(np.ones(2))).tolist() == [1.0, 1.0]
    assert isinstance(xbridge.to_backend(np.ones(2), "toylib"), Toy)


def test_import_xbridge__does_not_look_for_plugins(install: Callable[..., None], tmp_path: Path) -> None:
    """`import xbridge` neither reads entry points nor imports a plugin."""
    install("xbridge-toys", "toylib = toy_plugin", toy_plugin="raise SystemExit(3)\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import xbridge\n"
        "assert 'importlib.metadata' not in sys.modules\n"
        "assert xbridge.known_backends()[-1] == 'toylib'\n"
        "assert 'toy_plugin' not in sys.modules\n"
        "import toy_plugin"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == 3


# -- broken --------------------------------------------------------------------------------------


IMPORTS = ("1 / 0", "import no_such_library", "class Oops(Exception): ...\nraise Oops", "raise SystemExit(1)")
PATHS = ("no_such_plugin", "toylib.no_such_module", "toylib:make_backend", "no way")
INVALID = {
    "to_numpy=None": "has no to_numpy; try writing name, array_types, to_numpy, from_numpy in it",
    "layout=3, copy=3": "says copy = 3, which is not a function; try def copy, or another name",
    "watch=3": "says watch = 3, which is not a function; try def watch, or another name",
    "transfers=3": "says transfers = 3, which is not a Transfers; try transfers = Transfers(...)",
    "host_casts=[]": "says host_casts = [], which is not a frozenset; try host_casts = frozenset(...)",
    "gaps=3": "says gaps = 3, which is not a Mapping; try gaps = Mapping(...)",
    "samples=0": "says samples = 0, which is not a str; try samples = str(...)",
    "array_types=('Toy',)": "names 'Toy' in array_types, which is not a type; try types alone in array_types",
    "scalar_types=([],)": "names [] in scalar_types, which is not a type; try types alone in scalar_types",
    "name='others'": "is named 'others'; try name = 'broken'",
    "to_device=lambda x, device: x": "has to_device, and no devices; try writing devices too",
    "require_grad=lambda x: x": "has require_grad, and no detach; try writing detach too",
}
MADE = "import sys, toylib\nsys.modules[__name__] = toylib.make_backend(**{'name': 'broken'} | dict(%s))\n"
PACKAGE, UPGRADE = "xbridge-broken", "pip install --upgrade xbridge-broken"
MODULE = f"broken_plugin of the package {PACKAGE}"
BROKEN = [
    *(
        (
            "broken_plugin",
            line,
            f'importing {MODULE} failed with <error>; try python -c "import broken_plugin"',
        )
        for line in IMPORTS
    ),
    *(
        (
            path,
            "",
            f"the package {PACKAGE} announces a module {path}, and there is none; try {UPGRADE}",
        )
        for path in PATHS
    ),
    *(("broken_plugin", MADE % changes, f"its module {MODULE} {why}") for changes, why in INVALID.items()),
]
"""The module that an entry point names, the code of `broken_plugin`, and the message."""


@pytest.mark.parametrize(("path", "code", "message"), BROKEN)
def test_plugins__broken_plugin_is_named_and_contained(
    install: Callable[..., None], path: str, code: str, message: str
) -> None:
    """A plugin that cannot be imported, or is no valid backend, is named, and nothing else is affected."""
    install("xbridge-toys", "toylib = toy_plugin", toy_plugin=TOYS)
    install("xbridge-broken", f"broken = {path}", **({"broken_plugin": code} if code else {}))
    pattern = re.escape(f"cannot use backend 'broken': {message}").replace("<error>", ".*")
    assert re.fullmatch(pattern, str(refused("broken")))
    assert is_unharmed()


def test_plugins__missing_library_says_what_to_install(install: Callable[..., None]) -> None:
    """A plugin whose library is missing names the package to install."""
    install("xbridge-nolib", "nolib = nolib_plugin", nolib_plugin="import nolib\n")
    assert str(refused("nolib")) == (
        "cannot use backend 'nolib': nolib is not installed; try pip install xbridge-nolib"
    )


def test_plugins__broken_plugin_is_tried_again(install: Callable[..., None], tmp_path: Path) -> None:
    """A plugin that failed once is tried again at the next request."""
    install("xbridge-toys", "toylib = toy_plugin", toy_plugin="1 / 0\n")
    with pytest.raises(xbridge.MissingLibraryError, match="ZeroDivisionError"):
        xbridge.backend_of(Toy(np.ones(2)))
    (tmp_path / "toy_plugin.py").write_text(f"{TOYS}# longer, so that what was compiled is stale\n", "utf-8")
    assert xbridge.backend_of(Toy(np.ones(2))) == "toylib"


def test_plugins__broken_metadata_is_ignored(install: Callable[..., None]) -> None:
    """A package with broken metadata announces no backend and affects no other."""
    install("xbridge-broken", "no entry point")
    install("xbridge-toys", "toylib = toy_plugin", toy_plugin=TOYS)
    assert xbridge.known_backends()[-1] == "toylib"
    assert is_unharmed()


# -- one name, several backends ------------------------------------------------------------------


def test_plugins__duplicate_name_is_refused(install: Callable[..., None]) -> None:
    """Two plugins that claim one name are both named in the error, and neither is imported."""
    install("xbridge-toys", "toylib = toy_plugin", toy_plugin=TOYS)
    install("one", "others = one_plugin", one_plugin=TOYS)
    install("two", "others = two_plugin", two_plugin=TOYS)
    assert xbridge.known_backends().count("others") == 1
    error = refused("others")
    assert isinstance(error, xbridge.OptionError)
    assert str(error) in {
        f"cannot use backend 'others': {a}_plugin of the package {a} and {b}_plugin of the package {b} claim "
        f"the same name; try pip uninstall {a} or pip uninstall {b}"
        for a, b in (("one", "two"), ("two", "one"))
    }
    assert not {"one_plugin", "two_plugin"} & set(sys.modules)
    assert is_unharmed()


def test_backend_of__array_claimed_by_two_plugins(install: Callable[..., None]) -> None:
    """An array that two plugins claim is refused, until a program registers a backend for it."""
    install("one", "toylib = one_plugin", one_plugin=TOYS)
    install("two", "toylib = two_plugin", two_plugin=TOYS)
    for use in (xbridge.backend_of, xbridge.to_numpy, xbridge.asarray):
        with pytest.raises(xbridge.OptionError, match=r"(?=.*of the package one)(?=.*of the package two)"):
            use(Toy(np.ones(2)))
    xbridge.register_backend("toylib", make_backend())
    assert is_unharmed(), "what a program registers goes before what is installed"


def test_plugins__cannot_replace_a_builtin_backend(install: Callable[..., None]) -> None:
    """A plugin that claims the name of a built-in backend is ignored."""
    for name in ("numpy", "torch"):
        install(f"xbridge-{name}", f"{name} = {name}_plugin", **{f"{name}_plugin": "1 / 0\n"})
    assert [xbridge.known_backends().count(name) for name in ("numpy", "torch")] == [1, 1]
    assert xbridge.asarray([1.0]).tolist() == [1.0]
    assert xbridge.is_available("torch") is (find_spec("torch") is not None)
    assert not {"numpy_plugin", "torch_plugin"} & set(sys.modules)


# -- tested --------------------------------------------------------------------------------------


def test_pytest_plugin__leaves_broken_plugins_out(run: Run, install: Callable[..., None]) -> None:
    """A test run over all backends leaves broken plugins out, and one that names such a plugin says why."""
    install("xbridge-broken", "broken = broken_plugin", broken_plugin="1 / 0\n")
    install("one", "others = one_plugin", one_plugin=TOYS)
    install("two", "others = two_plugin", two_plugin=TOYS)
    result = run("def test_it(backend): assert backend not in ('broken', 'others')", "--xbridge=all")
    assert result.ret == 0
    result = run("def test_it(backend): pass", "--xbridge=broken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*importing broken_plugin of the package xbridge-broken failed*"])


# -- written -------------------------------------------------------------------------------------


def test_protocol__plugins_need_only_public_names() -> None:
    """The example plugin uses only public names of xbridge."""
    files = sorted((HERE / "plugin_package" / "src").rglob("*.py"))
    assert len(files) == 2
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            words = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            words += [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
            parts = [part for word in words if "__future__" not in word for part in word.split(".")]
            assert not [part for part in parts if part.startswith("_")], path.name
    assert all(getattr(protocol, name) for name in protocol.__all__)
