"""The command line as such: help, errors, tables on terminals and in pipes, what it imports."""

from __future__ import annotations

import importlib
import io
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
from shell import refused, shell

import xbridge.files
from xbridge.files import COMMANDS, main, output
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
    assert {"numpy", "torch", "rich", "safetensors"}.isdisjoint(lines[-1].split())


def test_main__version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The version is printed."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"xbridge-array {xbridge.__version__}\n"


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
        (["-V"], "xbridge-array --version"),
        (["shw", "a.npy"], "xbridge-array show a.npy"),
        (["ls", "a b.npy"], "xbridge-array show 'a b.npy'"),
        (["cast", "a.npy", "b.npz"], "xbridge-array convert a.npy b.npz"),
        (["pairs"], "xbridge-array matrix pairs"),
        (["version", "now"], "xbridge-array --version"),
        (["help"], "xbridge-array --help"),
        (["help", "show"], "xbridge-array show --help"),
        (["zzz", "a.npy"], "xbridge-array --help"),
        (["explain", "a.npy", "torch"], "xbridge-array explain a.npy --to torch"),
        (["explain", "a.npy", "--backend", "torch"], "xbridge-array explain --to"),
        (["explain", "a.npy"], "xbridge-array explain a.npy --to torch"),
        (["explain"], "xbridge-array explain --help"),
        (["show", "a.npy", "w"], "xbridge-array show --array w"),
        (["matrix", "pairs", "more"], "xbridge-array matrix --help"),
        (["convert", "a.npy", "b.npy", "--dtype", "float16"], "xbridge-array convert --cast float32=float16"),
        (["convert", "a.npy", "b.npy", "--dtype=half"], "xbridge-array convert --help"),
        (["convert", "a.npy", "-o", "b.npy"], "xbridge-array convert a.npy b.npy"),
        (["convert", "a.npy", "--to=b.npy"], "xbridge-array convert a.npy b.npy"),
        (["convert", "a.npy", "b.npy", "-q"], "xbridge-array convert --quiet"),
        (["convert", "a.npy", "b.npy", "--overwrite"], "xbridge-array convert --force"),
        (["konvert"], "xbridge-array convert"),
        (["convert", "a.npy"], "xbridge-array convert --help"),
        (["matrix", "colours"], "xbridge-array matrix --help"),
        (["convert", "a.npy", "b.npy", "--flaten"], "xbridge-array convert --flatten"),
        (["--json", "show", "a.npy"], "xbridge-array show --json"),
        (["show", "a.npy", "--drop=1"], "xbridge-array show --help"),
    ],
)
def test_main__names_the_words_that_were_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], hint: str
) -> None:
    """An invalid call is one line too."""
    assert refused(capsys, *words).endswith(f"; try {hint}\n")


def test_convert__python_m_xbridge_is_the_command_line(tmp_path: Path) -> None:
    """`python -m xbridge` is the command line."""
    done = call("convert", str(tmp_path / "no.npy"), "b.npz")
    assert (done.returncode, done.stdout) == (2, "")
    reason = f"cannot read {tmp_path / 'no.npy'}: it does not exist"
    assert done.stderr == f"xbridge-array: {reason}; try the name of an array file\n"


@pytest.mark.parametrize(
    ("error", "status"),
    [(MemoryError(), 2), (KeyboardInterrupt(), 130), (OSError(5, "Input/output error", "x"), 2)],
)
def test_info__error_is_one_line_and_the_status_2_or_130_after_an_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    """An error is one line and the status 2 or 130 after an interrupt."""
    from xbridge.files import info

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


def test_info__what_is_left_to_print_then_goes_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left to print then goes nowhere."""
    from xbridge.files import info

    def closed(_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(info, "run", closed)
    shown = tmp_path / "shown"
    with shown.open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["info"]) == 0
        out.write("left over")
    assert shown.read_text() == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a file that is always full")  # noqa: PTH110 -- a device
@pytest.mark.parametrize(
    ("stream", "words"),
    [("stdout", ["--version"]), ("stdout", ["matrix", "--help"]), ("stderr", ["show", "no.npy"])],
)
def test_main__returns_2_if_a_stream_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stream: str, words: list[str]
) -> None:
    """Python's flush at exit has nothing left to write, so it keeps the exit status."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 -- a device
        monkeypatch.setattr(sys, stream, full)
        assert main(words) == 2
        full.write("left over")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("No space left on device\n") == (stream == "stdout")


class Terminal(io.StringIO):
    """Somebody is watching."""

    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of both outputs."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


ROWS = [["[bold]:star:", "1"], ["b", "22"]]


def test_main__table_in_a_pipe_is_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    """A table in a pipe is aligned text."""
    output.print_table(["name", "n"], ROWS)
    assert capsys.readouterr().out == "name          n\n[bold]:star:  1\nb             22\n"


def test_main__table_on_a_terminal_is_drawn_by_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table on a terminal is drawn by rich."""
    pytest.importorskip("rich")
    terminal = watched(monkeypatch)
    output.print_table(["name", "n"], ROWS)
    drawn = terminal.getvalue()
    assert "━" in drawn
    assert "[bold]:star:" in drawn  # a name is no markup


def test_main__without_rich_a_table_on_a_terminal_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rich a table on a terminal is text."""
    terminal = watched(monkeypatch)
    monkeypatch.setattr(output, "find_spec", lambda _: None)
    output.print_table(["name", "n"], ROWS)
    assert terminal.getvalue() == "name          n\n[bold]:star:  1\nb             22\n"


@pytest.mark.parametrize(("size", "shown"), [(output.BIG, True), (output.BIG - 1, False)])
def test_main__bar_moves_for_big_files_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, size: int, *, shown: bool
) -> None:
    """A bar moves for big files on a terminal."""
    pytest.importorskip("rich")
    terminal = watched(monkeypatch)
    with output.progress("a[b]", size) as advance:
        advance(size // 2)
        advance(size - size // 2)
    assert ("a[b]" in terminal.getvalue()) == shown


def test_main__no_bar_moves_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """No bar moves in a pipe."""
    with output.progress("a", 1 << 40) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("file", "library", "install"),
    [
        ("a.safetensors", "safetensors", "pip install 'xbridge-array[cli]'"),
        ("a.pt", "torch", "pip install 'xbridge-array[torch]'"),
    ],
)
def test_convert__format_whose_library_is_missing_says_what_to_type(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    library: str,
    install: str,
) -> None:
    """A format whose library is missing says what to type."""
    path = tmp_path / file
    path.write_text("something")
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, SUFFIXES[path.suffix][0], raising=False)
    said = refused(capsys, "convert", path, tmp_path / "b.npz")
    assert said == f"xbridge-array: cannot read or write {path}: {library} is not installed; try {install}\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("OSError('libx.so: cannot open shared object file')", "libx.so: cannot open shared object file"),
        ("SystemExit(1)", "SystemExit(1)"),
    ],
)
def test_show__says_that_a_library_cannot_be_imported(
    error: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broken library is no traceback, and does not end the program."""
    (tmp_path / "safetensors.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("safetensors")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, SUFFIXES[".safetensors"][0], raising=False)
    (tmp_path / "a.safetensors").write_text("something")
    said = refused(capsys, "show", tmp_path / "a.safetensors", "--from-format", "safetensors")
    assert f"its library cannot be imported: {words}; try pip install" in said


def test_info__script_and_the_module_are_one_and_take_a_request_to_end_as_an_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script and the module are one and take a request to end as an interrupt."""
    importlib.import_module("xbridge.__main__")  # to look at it runs nothing
    assert capsys.readouterr().out == ""
    handlers: dict[int, object] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(sys, "argv", ["xbridge-array", "info", "numpy"])
    with pytest.raises(SystemExit) as left:
        # by path: pytest's hook, which loads an installed package, has no get_code for run_module
        runpy.run_path(str(Path(xbridge.__file__).with_name("__main__.py")), run_name="__main__")
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("xbridge ")
    assert set(handlers.values()) == {signal.SIG_IGN}  # the work is done
    handlers.clear()
    ignored = {signal.SIGTERM: signal.SIG_IGN}
    monkeypatch.setattr(signal, "getsignal", lambda number: ignored.get(number, signal.SIG_DFL))
    monkeypatch.setattr(xbridge.files, "main", handlers.copy)
    with pytest.raises(SystemExit) as left:
        xbridge.files.script()
    assert signal.SIGINT in left.value.code  # type: ignore[operator] # the handlers
    assert signal.SIGTERM not in left.value.code  # type: ignore[operator] # likewise
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert 'xbridge-array = "_xbridge_script:script"' in pyproject.read_text("utf-8")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("becomes", ["KeyboardInterrupt", "ImportError", "AttributeError", "SystemError"])
def test_script__exits_with_the_status_of_a_signal_while_modules_are_imported(
    number: signal.Signals, becomes: str, tmp_path: Path
) -> None:
    """The exit status is 128 and the number of the signal, whatever a library makes of the interrupt."""
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from xbridge.files import script
class Finder:
    def find_spec(self, name, *_):
        if name == "xbridge.files.formats":
            try:
                exec("signal.raise_signal({int(number)})")  # as the program of a dataclass is
            except KeyboardInterrupt as error:
                raise {becomes} from error
sys.meta_path.insert(0, Finder())
script()
"""
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "program", "show", "a.npz"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "xbridge-array: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("module", ["xbridge", "xbridge.errors", "xbridge.files", "argparse"])
def test_script__has_no_traceback_after_an_interrupt_while_the_package_is_imported(module: str) -> None:
    """Ctrl-C ends the script as it ends a program without a handler, so that a shell sees the status 130."""
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
from _xbridge_script import script
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_script__takes_two_signals_at_once_as_one() -> None:
    """Two signals that come before the program sees the first interrupt it once, and print one line."""
    code = """
import signal, sys
from xbridge.files import script
class Finder:
    def find_spec(self, name, *_):
        if name == "xbridge.files.formats":
            both = {signal.SIGINT, signal.SIGTERM}
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:
                signal.raise_signal(number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
for number in (signal.SIGINT, signal.SIGTERM):  # a background job of a shell ignores them
    signal.signal(number, signal.SIG_DFL)
sys.meta_path.insert(0, Finder())
script()
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "show", "a.npz"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "xbridge-array: interrupted\n")


def test_script__ignores_signals_after_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first signal interrupts, and its number is the exit status; later ones stop no removal of files."""
    monkeypatch.setattr(xbridge.files, "_status", 0)
    with pytest.raises(KeyboardInterrupt):
        xbridge.files._interrupt(signal.SIGTERM, None)
    xbridge.files._interrupt(signal.SIGINT, None)
    assert refused(capsys, "show", tmp_path / "no.npy", status=143)


def test_script__exits_with_the_status_of_a_signal_after_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt at the last moment has no traceback."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(xbridge.files, "_status", 0)
    monkeypatch.setattr(xbridge.files, "main", lambda: xbridge.files._interrupt(signal.SIGTERM, None))
    with pytest.raises(SystemExit) as left:
        xbridge.files.script()
    assert left.value.code == 128 + signal.SIGTERM


def test_main__raises_what_is_neither_an_error_of_a_file_nor_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault of the program keeps its traceback."""
    from xbridge.files import info

    def fail(_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(info, "run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["info"])


@pytest.mark.parametrize("asked", [[], ["error"]])
def test_main__prints_no_warning_of_a_library_unless_python_was_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    """NumPy warns of a header that Python 2 wrote."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2L,), }\n"
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(16)
    (tmp_path / "a.npy").write_bytes(content)
    monkeypatch.setattr(sys, "warnoptions", asked)
    if asked:
        with pytest.raises(UserWarning, match="Python 2"):
            main(["show", str(tmp_path / "a.npy")])
    else:
        assert "float64  (2,)   16 B" in shell(capsys, "show", tmp_path / "a.npy")


def test_show__cuts_a_long_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged name is not a screen of text, in a table or in an error."""
    np.savez(tmp_path / "a.npz", **{f"a{'x' * 50_000}z": np.ones(2)})  # type: ignore[arg-type] # any name
    shown = shell(capsys, "show", tmp_path / "a.npz")
    assert len(shown) < 600
    assert "xxx…xxx" in shown
    said = refused(capsys, "convert", tmp_path / "a.npz", tmp_path / "b.npy")
    assert len(said) < 2000
    assert "xxx…xxx" in said


@pytest.mark.skipif(os.name == "nt", reason="the signals and closed files of a POSIX shell")
@pytest.mark.parametrize("before", ["trap '' HUP;", "exec >&-;", "export PYTHONIOENCODING=ascii;"])
def test_convert__streams_as_the_shell_has_set_them_up_do_not_fail_a_command(
    tmp_path: Path, before: str
) -> None:
    """Streams as the shell has set them up do not fail a command."""
    np.savez(tmp_path / "a.npz", é=np.ones(2))
    hang_up = "signal.raise_signal(signal.SIGHUP)" if "HUP" in before else "None"
    code = f"""
import signal
from xbridge.files import script
from xbridge.files import convert
run = convert.run
convert.run = lambda asked: [{hang_up}, run(asked)][1]
script()
"""
    done = subprocess.run(
        ["sh", "-c", f'{before} exec "$@"', "sh", sys.executable, "-c", code, "convert", "a.npz", "b.npz"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "b.npz").exists()


@pytest.mark.parametrize(
    ("name", "words", "status"), [("stdout", ["info", "numpy"], 0), ("stderr", ["info", "x"], 2)]
)
def test_info__output_to_a_closed_stream_is_dropped(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    words: list[str],
    status: int,
) -> None:
    """Output to a closed stream is dropped."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["xbridge-array", *words])
    monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as left:
        xbridge.files.script()
    getattr(sys, name).close()
    assert left.value.code == status
    assert capsys.readouterr() == ("", "")


def test_info__shows_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    """`info` shows every backend."""
    told = json.loads(shell(capsys, "info", "--json"))
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    found = {backend["name"]: backend for backend in told["backends"]}
    assert tuple(found) == xbridge.known_backends()
    assert {name for name, facts in found.items() if facts["available"]} == {
        name for name in found if xbridge.is_available(name)
    }
    assert found["numpy"]["version"] == np.__version__
    assert found["numpy"]["devices"][0]["name"] == "cpu"
    assert found["numpy"]["devices"][0]["bytes"] > 1 << 28


def test_info__as_text_has_a_line_for_each_backend(capsys: pytest.CaptureFixture[str]) -> None:
    """`info` as text has a line for each backend."""
    lines = shell(capsys, "info", "numpy").splitlines()
    assert lines[0].startswith("xbridge ")
    assert lines[1].split() == ["backend", "version", "devices", "switches"]
    assert re.fullmatch(rf"numpy +{re.escape(np.__version__)} +cpu \([\d.]+ [GT]B\)", lines[2])


def test_info__says_what_to_type_for_a_missing_backend(
    capsys: pytest.CaptureFixture[str], own_registry: None
) -> None:
    """`info` says what to type for a missing backend."""
    xbridge.register_backend("elsewhere", "no_such_package_xb", roots=("no_such_package_xb",))
    told = json.loads(shell(capsys, "info", "elsewhere", "--json"))["backends"]
    assert told == [
        {
            "name": "elsewhere",
            "available": False,
            "why": "no_such_package_xb is not installed",
            "try": "pip install elsewhere",
        }
    ]
    line = shell(capsys, "info", "elsewhere").splitlines()[-1]
    assert re.fullmatch("elsewhere +no_such_package_xb is not installed; try pip install elsewhere", line)
    assert "cannot find backend 'nobody': " in refused(capsys, "info", "nobody")


def test_info__shows_the_switches_of_torch(capsys: pytest.CaptureFixture[str]) -> None:
    """`info` shows the switches of torch."""
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        told = json.loads(shell(capsys, "info", "torch", "--json"))["backends"][0]
    finally:
        torch.set_default_dtype(before)
    assert told["switches"]["default dtype"] == "float64"
    assert told["switches"]["default device"] == "cpu"
    assert "default dtype float32, default device cpu" in shell(capsys, "info", "torch")


def test_info__shows_the_switches_of_jax(capsys: pytest.CaptureFixture[str]) -> None:
    """`info` shows the switches of JAX."""
    jax = pytest.importorskip("jax")
    told = json.loads(shell(capsys, "info", "jax", "--json"))["backends"][0]
    assert told["switches"] == {"x64": False, "default device": "cpu"}
    with jax.enable_x64(True):
        assert "x64 True" in shell(capsys, "info", "jax")


def test_main__info_asks_a_library_for_the_memory_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Info asks a library for the memory of its devices."""
    from types import SimpleNamespace

    from xbridge import Device
    from xbridge.files import info

    devices = [{"name": "cpu", "bytes": None}, {"name": "cuda:0", "bytes": 139 << 30}]
    facts = {"name": "x", "available": True, "version": "1", "devices": devices, "switches": {}}
    assert info._format_row(facts)[2] == "cpu, cuda:0 (149 GB)"
    monkeypatch.delattr(os, "sysconf_names", raising=False)
    assert info._host_memory() is None
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(
        torch, "xla", SimpleNamespace(mem_get_info=lambda index: (index, 16 << 30)), raising=False
    )
    assert info._torch_memory(Device("xla:3")) == 16 << 30
    monkeypatch.setattr(torch, "xla", SimpleNamespace())
    assert info._torch_memory(Device("xla:3")) is None


def test_main__info_asks_jax_for_the_memory_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Info asks JAX for the memory of its devices."""
    pytest.importorskip("jax")
    from types import SimpleNamespace

    from xbridge import Device
    from xbridge.backends.jax import _devices
    from xbridge.files import info

    gpu = Device("cuda:0")
    for stats, size in (({"bytes_limit": 7}, 7), (None, None)):
        there = SimpleNamespace(memory_stats=lambda stats=stats: stats)
        monkeypatch.setattr(_devices, "devices_by_name", lambda there=there: {gpu: there})
        assert info._jax_memory(gpu) == size
