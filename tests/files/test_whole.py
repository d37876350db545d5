"""A target is there whole or as it was, whatever happens: a full disk, an interrupt, a kill, a wrong name."""

from __future__ import annotations

import gc
import io
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fresh import run
from shell import listing, refused, shell

from xbridge.files.atomic_write import new_file, replace_files
from xbridge.files.formats import npy, npz, sink
from xbridge.files.formats.stored import Scratch, Stored

if TYPE_CHECKING:
    from collections.abc import Callable

posix = pytest.mark.skipif(os.name != "posix", reason="of POSIX")

TARGETS = ["b.npy", "b.npz", "b.safetensors", "b.pt"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file, and beside it targets that are there already."""
    np.save(tmp_path / "a.npy", np.arange(100_000.0))
    for name in TARGETS:
        (tmp_path / name).write_text("what was there before")
    return tmp_path / "a.npy"


def as_before(folder: Path) -> bool:
    """Whether nothing came, went or changed."""
    same = all((folder / name).read_text() == "what was there before" for name in TARGETS)
    return same and listing(folder) == {"a.npy", *TARGETS}


def needs(target: str) -> None:
    pytest.importorskip({"b.safetensors": "safetensors", "b.pt": "torch"}.get(target, "numpy"))


@pytest.mark.parametrize(
    ("target", "after"), [*((t, 50_000) for t in TARGETS), ("b.npz", 0), ("b.npz", 800_000)]
)
def test_convert__full_disk_leaves_the_target_as_it_was(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: str, after: int
) -> None:
    """A full disk leaves the target as it was."""
    needs(target)

    class Full(sink.Sink):
        def __init__(self, file: Any, advance: Callable[[int], object]) -> None:
            super().__init__(file, self.fill)
            self.size = 0

        def fill(self, size: int) -> None:
            self.size += size
            if self.size > after:
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink, "Sink", Full)
    said = refused(capsys, "convert", source, source.with_name(target), "--force")
    assert f"cannot write {source.with_name(target)}: No space left on device, and " in said
    assert f"{source.with_name(target)} is as it was; try a disk with space for it" in said
    assert as_before(source.parent)


def test_convert__says_that_the_disk_is_full_for_values_that_it_maps(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unnamed copy, which torch's writer needs of an archive, is on the same disk as the target."""
    pytest.importorskip("torch")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    archive, target = source.with_name("b.npz"), source.with_name("b.pt")
    shell(capsys, "convert", source, archive, "--force")
    monkeypatch.setattr(Scratch, "store", full)
    said = refused(capsys, "convert", archive, target, "--force")
    assert f"cannot write {target}: No space left on device, and {target} is as it was; try a disk" in said
    assert target.read_text() == "what was there before"


@posix
@pytest.mark.parametrize("target", ["b.npz", "b.safetensors"])
def test_convert__limit_of_the_system_leaves_the_target_as_it_was(source: Path, target: str) -> None:
    """A limit of the system leaves the target as it was."""
    needs(target)
    code = (
        "import resource, sys; from xbridge.files import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); sys.exit(main())"
    )
    words = ["convert", str(source), str(source.with_name(target)), "--force"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "File too large, and " in done.stderr
    assert done.stderr.count("\n") == 1
    assert as_before(source.parent)


@pytest.mark.parametrize("target", TARGETS)
def test_convert__interrupt_leaves_the_target_as_it_was(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """An interrupt leaves the target as it was."""
    needs(target)

    class Stopped(sink.Sink):
        def __init__(self, file: Any, advance: Callable[[int], object]) -> None:
            super().__init__(file, self.stop)

        @staticmethod
        def stop(size: int) -> None:
            if size > 1000:
                raise KeyboardInterrupt

    monkeypatch.setattr(sink, "Sink", Stopped)
    said = refused(capsys, "convert", source, source.with_name(target), "--force", status=130)
    assert f"interrupted, and {source.with_name(target)} is as it was; try again" in said
    assert as_before(source.parent)


def test_convert__interrupt_while_a_member_is_closed_leaves_the_target_as_it_was(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive whose member could not be closed adds no error of its own, not even when it is deleted."""
    written = npy.write_array

    def stop_twice(member: Any, stored: Stored) -> None:
        def stop() -> None:
            member.close = int  # for its finalizer, whose errors Python 3.13 shows
            raise KeyboardInterrupt

        if stored.nbytes > 1000:  # the file, not the small one that its names are tried with
            member.close = stop
            raise KeyboardInterrupt
        written(member, stored)

    monkeypatch.setattr(npy, "write_array", stop_twice)
    said = refused(capsys, "convert", source, source.with_name("b.npz"), "--force", status=130)
    gc.collect()  # an error of a finalizer would be a warning here
    assert "interrupted, and" in said
    assert as_before(source.parent)


@posix
@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_convert__signal_leaves_the_target_as_it_was(source: Path, kill: signal.Signals) -> None:
    """A signal leaves the target as it was."""
    # The values are fetched through a pipe that never ends, so the signal comes while they are written. It is
    # asked in short waits, as Python does not see a signal that comes just before a long one.
    # What a shell has a background job ignore, the program would ignore too, and rightly.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "for hung_up in (signal.SIGTERM, signal.SIGHUP): signal.signal(hung_up, signal.SIG_DFL)\n"
        "import select, sys; from xbridge.files import script; from xbridge.files.formats import stored\n"
        "def slow(*_):\n    yield bytes(8)\n    print('writing', flush=True)\n"
        "    while not select.select([sys.stdin], [], [], 0.1)[0]: pass\n"
        "stored.read_blocks = slow; script()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code, "convert", str(source), str(source.with_name("b.npz")), "--force"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout
        assert run.stderr
        assert run.stdout.readline() == "writing\n"
        for _ in range(
            1 if kill == signal.SIGKILL else 3
        ):  # others come while the first one's file is removed
            run.send_signal(kill)
        status, said = run.wait(), run.stderr.read()
    left = [path for path in source.parent.iterdir() if path.name.startswith(".xbridge-")]
    if kill == signal.SIGKILL:
        assert len(left) == 1  # nobody could remove it, and nobody takes it for the target
        left[0].unlink()
    else:
        assert status == 128 + kill
        assert "interrupted, and " in said
        assert said.count("\n") == 1
    assert as_before(source.parent)


def test_convert__target_that_is_there_is_replaced_only_with_force(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A target that is there is replaced only with force."""
    there = source.with_name("b.npz")
    assert f"cannot write {there}: it exists; try --force to replace it" in refused(
        capsys, "convert", source, there
    )
    assert as_before(source.parent)
    shell(capsys, "convert", source, there, "--force")
    with np.load(there) as found:
        assert found["arr_0"].tolist() == list(range(100_000))


def test_convert__target_that_appears_meanwhile_is_kept(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that appears meanwhile is kept."""
    there = source.with_name("new.npz")
    written = npz.write

    def and_somebody_else_too(*arguments: Any) -> None:
        written(*arguments)
        there.write_text("somebody else's")

    monkeypatch.setattr(npz, "write", and_somebody_else_too)
    assert "another program has written it meanwhile" in refused(capsys, "convert", source, there)
    assert there.read_text() == "somebody else's"
    there.unlink()
    assert as_before(source.parent)


def test_convert__failed_run_leaves_nothing_where_nothing_was(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed run leaves nothing where nothing was."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    said = refused(capsys, "convert", source, source.with_name("new.npz"))
    assert "No space left on device, and nothing was left behind" in said
    assert as_before(source.parent)


def test_convert__source_is_never_the_target(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The source is never the target."""
    before = source.read_bytes()
    again = source.parent / ".." / source.parent.name / source.name
    for target in (source, again):
        said = refused(capsys, "convert", source, target, "--force")
        assert f"it is the same file as {source}" in said
    hard, soft = source.with_name("hard.npy"), source.with_name("soft.npy")
    hard.hardlink_to(source)
    soft.symlink_to(source)
    for target in (hard, soft):
        refused(capsys, "convert", source, target, "--force")
        refused(capsys, "convert", target, source, "--force")
        target.unlink()
    assert source.read_bytes() == before
    assert as_before(source.parent)


def test_convert__link_stays_a_link_to_the_new_file(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link stays a link to the new file."""
    (source.parent / "elsewhere").mkdir()
    real, link = source.parent / "elsewhere" / "real.npz", source.with_name("link.npz")
    link.symlink_to(real)
    assert "it is a link to a missing file" in refused(capsys, "convert", source, link)
    real.write_text("before")
    shell(capsys, "convert", source, link, "--force")
    assert link.is_symlink()
    with np.load(real) as found:
        assert found["arr_0"].size == 100_000
    assert listing(real.parent) == {"real.npz"}


@posix
def test_convert__new_file_has_the_usual_mode_and_a_replaced_one_keeps_its_own(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new file has the usual mode and a replaced one keeps its own."""
    old = os.umask(0o027)
    try:
        shell(capsys, "convert", source, source.with_name("new.npz"))
        source.with_name("b.npz").chmod(0o604)
        shell(capsys, "convert", source, source.with_name("b.npz"), "--force")
    finally:
        os.umask(old)
    assert stat.S_IMODE(source.with_name("new.npz").stat().st_mode) == 0o640
    assert stat.S_IMODE(source.with_name("b.npz").stat().st_mode) == 0o604


@posix
def test_convert__what_replaces_a_private_file_is_never_another_users_to_read(tmp_path: Path) -> None:
    """What replaces a private file is never readable by another user."""
    target = tmp_path / "a.npy"
    target.touch(0o600)
    with replace_files(target, force=True) as (part,), new_file(part, target):
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
    target.chmod(0o640)
    with replace_files(target, force=True) as (part,), new_file(part, target):
        pass
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@posix
def test_convert__folder_that_may_not_be_written_is_said(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names a folder that may not be written."""
    real = os.open

    def forbidden(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL:
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", forbidden)
    said = refused(capsys, "convert", source, source.with_name("new.npz"))
    assert "Permission denied, and nothing was left behind" in said


@posix
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("a.npy", "."),
            "cannot find the format of .: its name has no suffix; try a name that ends in .npy, ",
        ),
        (("a.npy", "b"), "cannot find the format of b: its name has no suffix"),
        (("a.npy", "b.txt"), "cannot find the format of b.txt: its name ends in '.txt'"),
        (("a.npy", "no/b.npz"), "cannot write no/b.npz: there is no directory no; try mkdir -p no"),
        (("a.npy", "folder.npz"), "cannot write folder.npz: it is a directory; try folder.npz/a.npy"),
        (("a.npy", "pipe.npz", "--force"), "cannot write pipe.npz: it is not a regular file"),
        (("a.npy", "loop.npz", "--force"), "cannot write loop.npz: it is a link to a missing file"),
        (("a.npy", "to-loop.npz"), "cannot write to-loop.npz: it is a link to a missing file"),
        (("a.npy", "to-folder.npz"), "cannot write to-folder.npz: it is a directory"),
        (("a.npy", "loop.npz/b.npz"), "there is no directory loop.npz; try another name"),
        (("a.npy", "a.npy/b.npz"), "there is no directory a.npy; try another name"),
        (("a.npy", "n\0l.npz"), "cannot write n\\x00l.npz: its name has a null character; try another name"),
        (("a.npy", "n" * 300 + ".npz"), "n.npz: File name too long; try another name"),
        (("a.npy", "n" * 5000 + ".npz"), "n.npz: File name too long; try another name"),
        (("a.npy", "\ud800.npz"), "cannot write \\ud800.npz: 'utf-8' codec can't encode"),
        (("loop.npz", "c.npz"), "cannot read loop.npz: it is a link to a missing file"),
        (("n\0l.npz", "c.npz"), "cannot read n\\x00l.npz: it does not exist"),
        (("n" * 300 + ".npz", "c.npz"), "n.npz: File name too long; try the name of an array file"),
        (("no.npy", "b.npz"), "cannot read no.npy: it does not exist"),
        ((".", "b.npz"), "cannot read .: it is a directory"),
        (("pipe.npz", "new.npz"), "cannot read pipe.npz: it is not a regular file"),
    ],
)
def test_convert__name_that_is_not_a_file_is_refused(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: Any, reason: str
) -> None:
    """A name that is not a file is refused."""
    monkeypatch.chdir(source.parent)
    Path("folder.npz").mkdir()
    os.mkfifo("pipe.npz")
    for link, to in (("loop", "loop"), ("to-loop", "loop"), ("to-folder", "folder")):
        Path(f"{link}.npz").symlink_to(f"{to}.npz")
    before = listing(source.parent)
    assert reason in refused(capsys, "convert", *words)
    assert listing(source.parent) == before


def test_convert__source_that_may_not_be_read_is_said(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names a source that may not be read."""
    real = Path.open

    def forbidden(path: Path, *options: Any) -> Any:
        if path == source:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *options)

    monkeypatch.setattr(Path, "open", forbidden)
    for words in (("convert", source, source.with_name("new.npz")), ("explain", source, "--to", "numpy")):
        said = refused(capsys, *words)
        assert f"cannot read {source}: Permission denied; try the name of an array file" in said


def test_convert__source_that_cannot_be_read_on_is_said_of_the_source(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error while the source is read names the source."""
    from xbridge.files.formats import stored

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(stored, "read_blocks", broken)
    said = refused(capsys, "convert", source, source.with_name("b.npz"), "--force")
    assert f"cannot read {source}: [Errno 5] Input/output error" in said
    assert as_before(source.parent)


def test_convert__what_was_written_is_read_back_before_it_is_the_target(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written is read back before it is the target."""

    def another(file: Any, *_: object) -> None:
        np.save(file, np.arange(5))

    monkeypatch.setattr(npy, "write", another)
    said = refused(capsys, "convert", source, source.with_name("b.npy"), "--force")
    assert "the file does not give the array back" in said
    assert as_before(source.parent)


@posix
def test_write__interrupt_between_two_lines_of_torch() -> None:
    """An interrupt leaves no write that fails to a destructor of torch, which would end the process."""
    pytest.importorskip("torch")
    code = """
        import io, pathlib, signal, torch
        from xbridge.files.formats import Content, pt, stored
        from xbridge.files.formats.sink import Sink

        class Full(io.BytesIO):
            def write(self, data):
                raise OSError(28, "No space left on device")

        class Writer(torch.serialization._open_zipfile_writer_buffer):
            def __enter__(self):
                signal.raise_signal(signal.SIGINT)
                return super().__enter__()

        torch.serialization._open_zipfile_writer_buffer = Writer
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with Sink(Full(), int) as sink:
                pt.write(sink, Content(stored.number_arrays("a")), pathlib.Path("."))
        except (KeyboardInterrupt, OSError):
            print("stopped")
    """
    assert run(code) == (0, ["stopped"])


def test_write__interrupt_while_the_thread_of_torch_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is saved by a thread that is not waited for."""
    torch = pytest.importorskip("torch")
    from xbridge.files.formats import Content, pt, stored
    from xbridge.files.formats.sink import Sink

    start = threading.Thread.start
    started: list[threading.Thread] = []
    saved: list[object] = []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr(torch, "save", lambda *args: saved.append(args))
    with pytest.raises(KeyboardInterrupt):
        pt.write(Sink(io.BytesIO(), int), Content(stored.number_arrays("a")), tmp_path)
    for thread in started:
        thread.join()
    assert started
    assert not saved
