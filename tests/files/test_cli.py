"""The command line as such: help, errors, tables on terminals and in pipes, what it imports."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fresh import run
from shell import Cli

import xbridge
from xbridge.files import COMMANDS, info, main
from xbridge.files.formats import SUFFIXES

MODULE = [sys.executable, "-m", "xbridge"]


def call(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([*MODULE, *words], env=environment, capture_output=True, text=True, check=False)


def test_main__help_names_every_command_and_loads_no_array_library() -> None:
    """Help names every command and loads no array library."""
    status, lines = run(
        """
        import sys
        from xbridge.files import main
        try:
            main(["--help"])
        except SystemExit:
            print(*sys.modules)
        """
    )
    assert status == 0
    page = "\n".join(lines[:-1])
    assert page.startswith("usage: xbridge-array ")
    assert all(re.search(rf"^    {name} +\S", page, re.MULTILINE) for name in COMMANDS)
    assert {"numpy", "torch", "safetensors"}.isdisjoint(lines[-1].split())


@pytest.mark.parametrize("name", COMMANDS)
def test_main__every_command_has_a_page_of_help_and_speaks_json(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Every command has a page of help and speaks JSON."""
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert out.startswith(f"usage: xbridge-array {name} ")
    assert "--json" in out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "xbridge-array --help"),
        (["zzz", "a.npy"], "xbridge-array --help"),
        (["explain", "a.npy"], "xbridge-array explain --help"),
        (["matrix", "colours"], "xbridge-array matrix --help"),
        (["show", "a.npy", "--jsno"], "xbridge-array show --help"),
    ],
)
def test_main__mistaken_call_is_one_line(cli: Cli, words: list[str], hint: str) -> None:
    """An invalid call is one line, which names the help."""
    assert cli.refused(*words).endswith(f"; try {hint}\n")


@pytest.mark.parametrize(
    ("error", "status"),
    [(MemoryError(), 2), (KeyboardInterrupt(), 130), (OSError(5, "Input/output error", "x"), 2)],
)
def test_info__error_is_one_line_and_the_status_2_or_130_after_an_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    """An error is one line and the status 2 or 130 after an interrupt."""

    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(info, "run", fail)
    assert main(["info"]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"xbridge-array: .*(MemoryError|interrupted|Input/output error).*\n", err)


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_main__pipe_that_its_reader_closes_is_not_an_error() -> None:
    """A pipe that its reader closes is not an error."""
    code = (
        "import sys; from xbridge.files import info, main\n"
        "info.run = lambda _: [print('line') for _ in range(100_000)] and 0\n"
        "sys.exit(main(['info']))"
    )
    run = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout
        assert run.stderr
        assert run.stdout.readline() == "line\n"
        run.stdout.close()
        assert run.stderr.read() == ""
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("suffix", "library", "extra"), [("safetensors",) * 2 + ("cli",), ("pt", "torch", "torch")]
)
def test_convert__format_whose_library_is_missing_says_what_to_type(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, suffix: str, library: str, extra: str
) -> None:
    """A format whose library is missing says what to type."""
    path = tmp_path / f"a.{suffix}"
    path.write_text("something")
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"xbridge.files.formats.{SUFFIXES[path.suffix]}", raising=False)
    said = cli.refused("convert", path, tmp_path / "b.npz")
    assert f"cannot read or write {path}: {library} is not installed; " in said
    assert said.endswith(f"; try pip install 'xbridge-array[{extra}]'\n")


def test_script__is_what_the_module_and_the_distribution_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script and the module are one."""
    importlib.import_module("xbridge.__main__")  # to look at it runs nothing
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["xbridge-array", "info", "numpy"])
    with pytest.raises(SystemExit) as left:
        # by path: pytest's hook, which loads an installed package, has no get_code for run_module
        runpy.run_path(str(Path(xbridge.__file__).with_name("__main__.py")), run_name="__main__")
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("xbridge ")
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert 'xbridge-array = "xbridge.files:script"' in pyproject.read_text("utf-8")


def test_show__cuts_a_long_name(tmp_path: Path, cli: Cli) -> None:
    """A damaged name is not a screen of text, in a table or in an error."""
    np.savez(tmp_path / "a.npz", **{f"a{'x' * 50_000}z": np.ones(2)})  # type: ignore[arg-type] # any name
    shown = cli.run("show", tmp_path / "a.npz")
    assert len(shown) < 600
    assert "xxx…xxx" in shown
    said = cli.refused("convert", tmp_path / "a.npz", tmp_path / "b.npy")
    assert len(said) < 2000
    assert "xxx…xxx" in said


def test_script__escapes_a_name_that_the_encoding_of_the_output_lacks(tmp_path: Path) -> None:
    """A command that has written its file does not fail to print it."""
    np.savez(tmp_path / "a.npz", é=np.ones(2))
    done = subprocess.run(
        [*MODULE, "convert", "a.npz", "b.npz"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xe9" in done.stdout
    assert (tmp_path / "b.npz").exists()


def test_info__shows_every_backend(cli: Cli) -> None:
    """`info` shows every backend."""
    told = json.loads(cli.run("info", "--json"))
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    found = {backend["name"]: backend for backend in told["backends"]}
    assert tuple(found) == xbridge.known_backends()
    assert {name for name, facts in found.items() if facts["available"]} == {
        name for name in found if xbridge.is_available(name)
    }
    assert found["numpy"]["version"] == np.__version__
    assert found["numpy"]["devices"] == ["cpu"]


def test_info__says_what_to_type_for_a_missing_backend(cli: Cli, own_registry: None) -> None:
    """`info` says what to type for a missing backend."""
    xbridge.register_backend("elsewhere", "no_such_package_xb", roots=("no_such_package_xb",))
    told = json.loads(cli.run("info", "elsewhere", "--json"))["backends"]
    why = {"why": "no_such_package_xb is not installed", "try": "pip install elsewhere"}
    assert told == [{"name": "elsewhere", "available": False, **why}]
    line = cli.run("info", "elsewhere").splitlines()[-1]
    assert re.fullmatch("elsewhere +no_such_package_xb is not installed; try pip install elsewhere", line)
    assert "cannot find backend 'nobody': " in cli.refused("info", "nobody")


def test_info__shows_the_switches_of_torch_and_jax(cli: Cli) -> None:
    """`info` shows the settings on which conversions depend, as JSON and as text."""
    pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    torch, of_jax = json.loads(cli.run("info", "torch", "jax", "--json"))["backends"]
    assert torch["switches"]["default dtype"] == "float32"
    assert torch["switches"]["default device"] == "cpu"
    assert of_jax["switches"] == {"x64": False, "default device": "cpu"}
    with jax.enable_x64(True):
        lines = cli.run("info", "torch", "jax", "numpy").splitlines()
    assert lines[1].split() == ["backend", "version", "devices", "switches"]
    assert "default dtype float32, default device cpu" in lines[2]
    assert "x64 True" in lines[3]
    assert re.fullmatch(rf"numpy +{re.escape(np.__version__)} +cpu *", lines[4])
