"""A target is there whole or as it was, whatever happens: a full disk, an interrupt, a kill, a wrong name."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shell import Cli, listing

from xbridge.files.formats import npy, npz, stored
from xbridge.files.write import replace_file

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


def run_script(code: str, *words: object) -> subprocess.Popen[str]:
    """The script in a process of its own, after some code."""
    return subprocess.Popen(
        [sys.executable, "-c", f"{code}\nfrom xbridge.files import script\nscript()", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@posix
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, marks=pytest.mark.slow) if target == "b.pt" else target  # it imports torch
        for target in TARGETS
    ],
)
def test_convert__full_disk_leaves_the_target_as_it_was(source: Path, target: str) -> None:
    """A file that the system cuts leaves the target as it was."""
    needs(target)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    with run_script(limit, "convert", source, source.with_name(target), "--force") as run:
        out, said = run.communicate()
    assert (run.returncode, out) == (2, "")
    assert said.startswith(f"xbridge-array: cannot write {source.with_name(target)}: ")
    assert said.endswith(f"{target} is as it was\n")
    assert said.count("\n") == 1
    assert as_before(source.parent)


@pytest.mark.parametrize("target", TARGETS)
def test_convert__interrupt_leaves_the_target_as_it_was(
    source: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """An interrupt while values are read leaves the target as it was."""
    needs(target)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    archive = source.with_name("c.npz")
    np.savez(archive, a=np.arange(100_000.0))  # which torch's writer does not map
    monkeypatch.setattr(stored, "read_blocks", stop)
    call = ["convert", str(archive), str(source.with_name(target)), "--force", "--array", "a"]
    assert cli.refused(*call, status=130) == "xbridge-array: interrupted\n"
    archive.unlink()
    assert as_before(source.parent)


@posix
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_script__signal_leaves_the_target_as_it_was(source: Path, number: signal.Signals) -> None:
    """A signal leaves the target as it was, and one that can be handled leaves no partial file."""
    # The values are fetched through a pipe that never ends, so the signal comes while they are written. It is
    # asked in short waits, as Python does not see a signal that comes just before a long one.
    # What a shell has a background job ignore, the program would ignore too, and rightly.
    slow = (
        "import select, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from xbridge.files.formats import stored\n"
        "def slow(*_):\n    yield bytes(8)\n    print('writing', flush=True)\n"
        "    while not select.select([sys.stdin], [], [], 0.1)[0]: pass\n"
        "stored.read_blocks = slow"
    )
    with run_script(slow, "convert", source, source.with_name("b.npz"), "--force") as run:
        assert run.stdout
        assert run.stdout.readline() == "writing\n"
        run.send_signal(number)
        status = run.wait()
    left = [path for path in source.parent.iterdir() if path.name.startswith(".xbridge-")]
    assert status == (-number if number == signal.SIGKILL else 128 + number)
    assert len(left) == (number == signal.SIGKILL)  # nobody could remove it
    for path in left:
        path.unlink()
    assert as_before(source.parent)


def test_convert__target_that_is_there_is_replaced_only_with_force(source: Path, cli: Cli) -> None:
    """A target that is there is replaced only with force."""
    there = source.with_name("b.npz")
    said = cli.refused("convert", source, there)
    assert f"cannot write {there}: it exists; try --force to replace it" in said
    assert as_before(source.parent)
    cli.run("convert", source, there, "--force")
    with np.load(there) as found:
        assert found["arr_0"].tolist() == list(range(100_000))


def test_convert__target_that_appears_meanwhile_is_kept(
    source: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that appears meanwhile is kept."""
    there = source.with_name("new.npz")
    written = npz.write

    def and_somebody_else_too(*arguments: Any) -> None:
        written(*arguments)
        there.write_text("somebody else's")

    monkeypatch.setattr(npz, "write", and_somebody_else_too)
    assert "another program has written it meanwhile" in cli.refused("convert", source, there)
    assert there.read_text() == "somebody else's"
    there.unlink()
    assert as_before(source.parent)


def test_convert__source_is_never_the_target(source: Path, cli: Cli) -> None:
    """The source is never the target."""
    before = source.read_bytes()
    again = source.parent / ".." / source.parent.name / source.name
    for target in (source, again):
        said = cli.refused("convert", source, target, "--force")
        assert f"it is the same file as {source}" in said
    hard, soft = source.with_name("hard.npy"), source.with_name("soft.npy")
    hard.hardlink_to(source)
    soft.symlink_to(source)
    for target in (hard, soft):
        cli.refused("convert", source, target, "--force")
        cli.refused("convert", target, source, "--force")
        target.unlink()
    assert source.read_bytes() == before
    assert as_before(source.parent)


def test_convert__link_stays_a_link_to_the_new_file(source: Path, cli: Cli) -> None:
    """A link stays a link to the new file."""
    (source.parent / "elsewhere").mkdir()
    real, link = source.parent / "elsewhere" / "real.npz", source.with_name("link.npz")
    link.symlink_to(real)
    real.write_text("before")
    cli.run("convert", source, link, "--force")
    assert link.is_symlink()
    with np.load(real) as found:
        assert found["arr_0"].size == 100_000
    assert listing(real.parent) == {"real.npz"}


@posix
def test_convert__new_file_has_the_usual_mode_and_a_replaced_one_keeps_its_own(
    source: Path, cli: Cli
) -> None:
    """A new file has the usual mode and a replaced one keeps its own."""
    old = os.umask(0o027)
    try:
        cli.run("convert", source, source.with_name("new.npz"))
        source.with_name("b.npz").chmod(0o604)
        cli.run("convert", source, source.with_name("b.npz"), "--force")
    finally:
        os.umask(old)
    assert stat.S_IMODE(source.with_name("new.npz").stat().st_mode) == 0o640
    assert stat.S_IMODE(source.with_name("b.npz").stat().st_mode) == 0o604


@posix
def test_replace_file__never_shows_another_user_what_replaces_a_private_file(tmp_path: Path) -> None:
    """What replaces a private file is never readable by another user."""
    target = tmp_path / "a.npy"
    target.touch(0o600)
    with replace_file(target, force=True) as part:
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
    target.chmod(0o640)
    with replace_file(target, force=True):
        pass
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


NAMES: list[tuple[tuple[str, ...], str]] = [
    (
        ("a.npy", "b"),
        "cannot find the format of b: its name has no suffix, and those of the ",
    ),
    (("a.npy", "b.txt"), "cannot find the format of b.txt: its name ends in '.txt'"),
    (("a.npy", "no/b.npz"), "cannot write no/b.npz: there is no directory no; try mkdir -p no"),
    (("a.npy", "folder.npz"), "cannot write folder.npz: it is a directory"),
    (("a.npy", "pipe.npz", "--force"), "cannot write pipe.npz: it is not a regular file"),
    (("a.npy", "loop.npz", "--force"), "cannot write loop.npz: "),
    (("a.npy", "to-folder.npz"), "cannot write to-folder.npz: it is a directory"),
    (("a.npy", "a.npy/b.npz"), "there is no directory a.npy; try "),
    (("a.npy", "n" * 300 + ".npz"), "n.npz: File name too long"),
    (("loop.npz", "c.npz"), "cannot read loop.npz: "),
    (("no.npy", "b.npz"), "cannot read no.npy: it does not exist"),
    ((".", "b.npz"), "cannot read .: it is not a regular file"),
    (("pipe.npz", "new.npz"), "cannot read pipe.npz: it is not a regular file"),
    (("x.h5", "new.npz"), "cannot find the format of x.h5: its name ends in '.h5', and those of the "),
]


@posix
@pytest.mark.parametrize(("words", "reason"), NAMES)
def test_convert__name_that_is_not_a_file_is_refused(
    source: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], reason: str
) -> None:
    """A name that is not a file is refused."""
    monkeypatch.chdir(source.parent)
    Path("folder.npz").mkdir()
    Path("x.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    os.mkfifo("pipe.npz")
    for link, to in (("loop", "loop"), ("to-folder", "folder")):
        Path(f"{link}.npz").symlink_to(f"{to}.npz")
    before = listing(source.parent)
    assert reason in cli.refused("convert", *words)
    assert listing(source.parent) == before


def test_convert__what_was_written_is_read_back_before_it_is_the_target(
    source: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written is read back before it is the target."""
    monkeypatch.setattr(npy, "write", lambda path, _: path.write_bytes(source.read_bytes()[:80] + bytes(80)))
    said = cli.refused("convert", source, source.with_name("b.npy"), "--force")
    assert "the new file cannot be read back: " in said
    content = BytesIO()
    np.save(content, np.arange(5))
    monkeypatch.setattr(npy, "write", lambda path, _: path.write_bytes(content.getvalue()))
    said = cli.refused("convert", source, source.with_name("b.npy"), "--force")
    assert "the new file cannot be read back: it does not give the array back" in said
    assert as_before(source.parent)


@pytest.mark.parametrize(
    ("name", "how"),
    [("a.npy", "replaced"), ("c.npz", "written"), ("c.safetensors", "removed"), ("c.pt", "replaced")],
)
def test_convert__refuses_a_source_that_changes_while_it_is_read(
    source: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    """A file with arrays of both would be the file of nobody."""
    changed, write = source.with_name(name), npz.write
    if name != "a.npy":
        pytest.importorskip({"c.pt": "torch", "c.safetensors": "safetensors"}.get(name, "numpy"))
        cli.run("convert", source, changed)
    other = source.with_name("other")
    other.write_bytes(changed.read_bytes())
    facts = changed.stat()

    def write_and_change(*arguments: Any) -> None:
        write(*arguments)
        if how == "removed":
            changed.unlink()
        elif how == "replaced":  # by a file of the same size and time
            os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
            other.replace(changed)
        else:
            os.utime(changed, ns=(0, 0))

    monkeypatch.setattr(npz, "write", write_and_change)
    said = cli.refused("convert", changed, source.with_name("new.npz"))
    assert f"cannot read {changed}: it was replaced or written while it was read" in said
    assert not source.with_name("new.npz").exists()
