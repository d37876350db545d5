"""A file may be larger than memory: what is held at a time is bounded, whatever the size of an array.

Measured by the system, in a process of its own: the most memory that was resident, and what can still be
allocated under a limit on it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fresh import run

pytest.importorskip("safetensors")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.slow,  # processes that convert large files
]

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 128 << 20
BOUND = 32 << 20

PEAK = """
    import contextlib, io, sys
    from xbridge.files import main

    def convert(*words):
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["convert", *words]) == 0

    def status(word):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(word))
"""


def growth(setting: str, call: str) -> int:
    """The bytes by which a measure of memory grew in a call, after the same call with a small file."""
    status, lines = run(f"{PEAK}\n    {setting}\n    {call}\n    print(after - before)")
    assert status == 0, lines
    return int(lines[-1])


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A folder with a small file, and one several times larger than what may be held."""
    np.save(tmp_path / "small.npy", np.zeros(10))
    np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.float64, (SIZE // 8,))[::1000] = 1.5
    return tmp_path


@pytest.mark.parametrize("target", ["npz", "safetensors", "npy --cast float64=float32"])
def test_convert__file_is_converted_in_memory_that_does_not_grow_with_it(big: Path, target: str) -> None:
    """A file is converted in memory that does not grow with it."""
    suffix, *options = target.split()

    def call(name: str) -> str:
        words = [str(big / f"{name}.npy"), str(big / f"{name}-there.{suffix}"), *options]
        return f"convert(*{words!r})"

    setting = f"{call('small')}; before = status('VmHWM')"
    assert growth(setting, f"{call('big')}; after = status('VmHWM')") < BOUND
    assert (big / f"big-there.{suffix}").stat().st_size > SIZE // 3


def test_convert__measure_can_fail(big: Path) -> None:
    """The measurement of memory can fail."""
    use = f"import numpy as np; before = status('VmHWM'); x = np.load({str(big / 'big.npy')!r})"
    assert growth(use, "after = status('VmHWM')") > BOUND


def test_convert__torch_reads_and_writes_maps_of_files_and_loads_none(big: Path) -> None:
    """torch reads and writes maps of files and loads none."""
    pytest.importorskip("torch")
    # Pages of a file are the system's to keep or to drop, so memory of the process's own is what counts.
    watched = """
    import torch
    from xbridge.files.formats import stored
    peak, save, blocks = [0], torch.save, stored.InMemory.blocks
    def watch(*arguments):
        peak[0] = max(peak[0], status("RssAnon"))
    def watched_save(*arguments):
        save(*arguments)
        watch()
    def watched_blocks(array):
        for block in blocks(array):
            watch()
            yield block
    torch.save, stored.InMemory.blocks = watched_save, watched_blocks
    """
    small, npy, there, back = (str(big / name) for name in ("small.npy", "big.npy", "there.pt", "back.npy"))
    setting = f"{watched}\n    convert({small!r}, {small + '.pt'!r}); before = status('RssAnon')"
    calls = f"convert({npy!r}, {there!r}); convert({there!r}, {back!r}); after = peak[0]"
    assert growth(setting, calls) < BOUND
    assert (big / "back.npy").read_bytes() == (big / "big.npy").read_bytes()


@pytest.mark.parametrize("source", ["a.npz", "a.safetensors"])
def test_convert__opens_few_files_for_many_arrays(tmp_path: Path, source: str) -> None:
    """The arrays of a file are mapped together, and so are those that are unpacked or laid out anew."""
    pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    arrays = {f"x{i}": np.full((1 + i % 3, 2), i) for i in range(200)}
    if source == "a.npz":
        np.savez(tmp_path / source, **{name: np.asfortranarray(x) for name, x in arrays.items()})  # type: ignore[arg-type] # any name
    else:
        save_file(arrays, tmp_path / source)
    code = f"""
        import resource
        import numpy, torch  # they open files of their own
        from xbridge.files import main
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        words = [{str(tmp_path / source)!r}, {str(tmp_path / "a.pt")!r}]
        assert main(["convert", *words]) == 0
        assert main(["explain", words[0], "--to", "torch"]) == 0
        found = torch.load(words[1])
        print(*(int(x[0, 0]) for x in found.values()))
    """
    status, lines = run(code)
    assert status == 0, lines
    assert sorted(map(int, lines[-1].split())) == list(range(200))
