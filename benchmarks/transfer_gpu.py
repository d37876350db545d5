"""Measure transfers between the host and a GPU, beside torch's own, and print the tables.

    python benchmarks/transfer_gpu.py            # on a machine with CUDA: a minute or two, 6 GB of memory
    python benchmarks/transfer_gpu.py --sweep    # which sizes of buffers pay, too
    python benchmarks/transfer_gpu.py --try      # does it run? Small sizes, on the emulated accelerator

Statements run in turns, as `harness.py` describes. Each ends when everything is done on the device. A rate
counts the bytes that are moved. Lost is the time for each batch by which a loop with `prefetch` is longer
than it has to be: the first transfer cannot be hidden, and then the longer of transfers and computation
decides.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from harness import interleave

import xbridge
import xbridge.tree
from xbridge.backends.torch import _transfer


class RecordRow(NamedTuple):
    """A statement, another one beside it, and its target."""

    title: str
    ours: str
    plain: str
    target: str = ""
    moved: float = 1
    """The share of the bytes of the arrays that is moved."""


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sweep", action="store_true", help="try several sizes and numbers of buffers")
    parser.add_argument("--try", dest="trial", action="store_true", help="see whether it runs, anywhere")
    asked = parser.parse_args()
    if asked.trial:
        from xbridge.testing import emulated  # noqa: PLC0415 -- it stays for the rest of the process

        emulated.install()
    elif not torch.cuda.is_available():
        sys.exit("there is no CUDA device here; try --try")
    kind = "emu" if asked.trial else "cuda"
    size = 1 << 20 if asked.trial else 1 << 30
    if asked.trial:
        use(_transfer.Sizes(1 << 16, 2, 1 << 18))
    machine = "the emulated accelerator" if asked.trial else torch.cuda.get_device_name()
    print(f"{machine}, torch {torch.__version__}, {torch.get_num_threads()} threads, {_transfer.sizes()}\n")
    with tempfile.TemporaryDirectory() as folder:
        names = arrays(kind, size, Path(folder))
        for rows, nbytes in ((BULK, size), (TREE, 1000 * 8192), (ONE, 8192)):
            show(rows, names, nbytes, rounds=2 if asked.trial else 9)
        ahead(names, rounds=1 if asked.trial else 5, batches=3 if asked.trial else 20)
        for measure, first, last in ((thresholds, 20, 28), (together, 12, 23)):
            measure(names, [1 << 14] if asked.trial else [1 << n for n in range(first, last)])
        if asked.sweep:
            sweep(names, size)


def arrays(kind: str, size: int, folder: Path) -> dict[str, Any]:
    """Return the names that the statements use."""
    api = getattr(torch, kind)
    a = np.random.default_rng(0).random(size // 8)
    a.tofile(folder / "numbers")
    t = torch.from_numpy(a).to(kind)
    api.synchronize()
    return {
        "np": np,
        "torch": torch,
        "xbridge": xbridge,
        "kind": kind,
        "api": api,
        "a": a,
        "t": t,
        "mapped": np.memmap(folder / "numbers", dtype=np.float64, mode="c"),
        "pinned": torch.from_numpy(a).pin_memory(),
        "small": [np.full(2048, float(i), np.float32) for i in range(1000)],
        "there": [torch.full((2048,), float(i), device=kind) for i in range(1000)],
        "batch": a[: size // 8 // 4],
    }


SYNC = "; api.synchronize()"
BULK = [
    RecordRow(
        "host to device",
        "x = xbridge.to_backend(a, 'torch', device=kind)",
        "x = torch.from_numpy(a).to(kind)",
        "at least 40 GB/s",
    ),
    RecordRow("device to host", "x = xbridge.to_numpy(t)", "x = t.cpu().numpy()", "at least 35 GB/s"),
    RecordRow(
        "the same from pinned memory",
        "x = xbridge.to_backend(pinned, 'torch', device=kind)",
        "x = pinned.to(kind)",
    ),
    RecordRow(
        "a memmap",
        "x = xbridge.to_backend(mapped, 'torch', device=kind)",
        "x = torch.from_numpy(mapped).to(kind)",
    ),
    RecordRow(
        "float64 becomes float32",
        "x = xbridge.to_backend(a, 'torch', device=kind, dtype='float32')",
        "x = torch.from_numpy(a).to(kind, torch.float32)",
        moved=0.5,
    ),
]
TREE = [
    RecordRow(
        "1,000 arrays of 8 KB, there",
        "x = xbridge.transfer(small, 'torch', device=kind).result()",
        "x = [torch.from_numpy(a).to(kind) for a in small]",
        "at least 10 times the loop",
    ),
    RecordRow(
        "1,000 arrays of 8 KB, there, beside our own loop",
        "x = xbridge.transfer(small, 'torch', device=kind).result()",
        "x = [xbridge.to_backend(a, 'torch', device=kind) for a in small]",
    ),
    RecordRow(
        "1,000 arrays of 8 KB, there, without a thread",
        "x = xbridge.tree.to_backend(small, 'torch', device=kind)",
        "x = [torch.from_numpy(a).to(kind) for a in small]",
        "at least 10 times the loop",
    ),
    RecordRow(
        "1,000 tensors of 8 KB, back",
        "x = xbridge.transfer(there, 'numpy').result()",
        "x = [t.cpu().numpy() for t in there]",
    ),
    RecordRow(
        "1,000 tensors of 8 KB, back, without a thread",
        "x = xbridge.tree.to_backend(there, 'numpy')",
        "x = [t.cpu().numpy() for t in there]",
    ),
]


ONE = [
    RecordRow(
        "one array of 8 KB, there",
        "x = xbridge.to_backend(small[0], 'torch', device=kind)",
        "x = torch.from_numpy(small[0]).to(kind)",
        "2 us more",
    ),
    RecordRow(
        "one tensor of 8 KB, back",
        "x = xbridge.to_numpy(there[0])",
        "x = there[0].cpu().numpy()",
        "2 us more",
    ),
    RecordRow(
        "a transfer of one tensor of 8 KB, back",
        "x = xbridge.transfer(there[0], 'numpy').result()",
        "x = there[0].cpu().numpy()",
    ),
]


def show(rows: list[RecordRow], names: dict[str, Any], nbytes: int, rounds: int) -> None:
    """Measure and print one table."""
    table(["what", "call", "takes", "rate", "beside", "takes", "times as fast", "target"])
    for row in rows:
        asked = [row.ours + SYNC, row.plain + SYNC]
        ours, plain = (median(times) for times in interleave(asked, names, rounds=rounds, block=0).values())
        rate, ratio = f"{nbytes * row.moved / ours / 1e9:.1f} GB/s", f"{plain / ours:.2f}"
        cells = [row.title, f"`{row.ours}`", f"{ours * 1e3:.2f} ms", rate]
        table([*cells, f"`{row.plain}`", f"{plain * 1e3:.2f} ms", ratio, row.target], head=False)
    print()


def ahead(names: dict[str, Any], rounds: int, batches: int) -> None:
    """Measure what `prefetch` loses. The kernels, few or many, take 1.15 times as long as the transfers."""
    real = names["kind"] == "cuda"
    table(
        [
            "kernels",
            "batches",
            "transfers alone",
            "computation alone",
            "with prefetch",
            "lost for each",
            "target",
        ]
    )
    for title, side in (("few", 2048), ("many", 256)):
        weight = torch.ones(side if real else 4, device=names["kind"]).diag()
        names |= {"weight": weight, "n": batches, "move": move, "compute": compute, "times": 1}
        moving = f"move(xbridge, batch, kind, n){SYNC}"
        computing = f"compute(range(n), weight, times){SYNC}"
        loop = "xbridge.prefetch((batch for _ in range(n)), 'torch', device=kind)"
        both = f"compute({loop}, weight, times){SYNC}"
        found = interleave([moving, computing], names, rounds=rounds, block=0).values()
        longest, one = (median(times) for times in found)
        names["times"] = max(1, round(1.15 * longest / one))
        found = interleave([moving, computing, both], names, rounds=rounds, block=0).values()
        transfers, computation, together = (median(times) for times in found)
        least = transfers / batches + max(transfers, computation)
        takes = [f"{seconds * 1e3:.1f} ms" for seconds in (transfers, computation, together)]
        lost = f"{(together - least) / batches * 1e3:.2f} ms"
        table([title, f"{batches}", *takes, lost, "at most 3 % of a transfer"], head=False)
    print()


def move(library: Any, batch: Any, kind: str, n: int) -> None:
    """Run only the transfers."""
    for _ in range(n):
        library.to_backend(batch, "torch", device=kind)


def compute(batches: Iterable[Any], weight: torch.Tensor, times: int) -> None:
    """Run only work for the device, as often as there are batches."""
    for _ in batches:
        for _ in range(times):
            weight = weight @ weight


THERE, BACK = f"x = xbridge.to_backend(a, 'torch', device=kind){SYNC}", "x = xbridge.to_numpy(t)"


def thresholds(names: dict[str, Any], sizes: list[int]) -> None:
    """Measure from which size on threads pay, for `LEAST`."""
    table(["one array", *(f"{way}, {how}" for way in ("there", "back") for how in ("buffers", "plain"))])
    for size in sizes:
        part = names | {"a": names["a"][: size // 8], "t": names["t"][: size // 8]}
        takes = [
            timed(statement, part, least=least) for statement in (THERE, BACK) for least in (1, sys.maxsize)
        ]
        table([f"{size >> 10} KiB", *takes], head=False)
    print()


def together(names: dict[str, Any], sizes: list[int]) -> None:
    """Measure up to which size it pays to move arrays in one piece, for `SMALL_NBYTES`."""
    table(["16 arrays", "there, in one piece", "each alone", "back, in one piece", "each alone"])
    for size in sizes:
        xs = [torch.ones(size // 4) for _ in range(16)]
        part = names | {"move_all": _transfer.transfers.to_device_many, "move": _transfer.to_device}
        takes = []
        for given, place in ((xs, names["kind"] + ":0"), ([x.to(names["kind"]) for x in xs], "cpu")):
            part |= {"xs": given, "goal": xbridge.Device(place)}
            ways = ("x = move_all(xs, goal)", "x = [move(x, goal) for x in xs]")
            takes += [timed(way + SYNC, part) for way in ways]
        table([f"{size >> 10} KiB", *takes], head=False)
    print()


def use(sizes: _transfer.Sizes) -> None:
    """Use buffers of these sizes from now on."""
    vars(_transfer)["sizes"] = lambda: sizes
    _transfer._threads.cache_clear()  # noqa: SLF001 -- as many threads as buffers


def timed(statement: str, names: dict[str, Any], **sizes: Any) -> str:
    """Return the time of a statement, with some of the sizes changed."""
    real = _transfer.sizes()
    use(real._replace(**sizes))
    seconds = median(interleave([statement], names, rounds=7, block=0.01)[statement])
    use(real)
    return f"{seconds * 1e6:.0f} us"


def sweep(names: dict[str, Any], size: int) -> None:
    """Measure which sizes and numbers of buffers pay."""
    table(["chunk", "buffers", "host to device", "device to host"])
    for chosen in shapes():
        use(chosen)
        times = interleave([THERE, BACK], names, rounds=3, block=0)
        rates = [f"{size / median(times[statement]) / 1e9:.1f} GB/s" for statement in (THERE, BACK)]
        table([f"{chosen.chunk >> 20} MiB", str(chosen.buffers), *rates], head=False)


def shapes() -> Iterator[_transfer.Sizes]:
    """Yield the sizes that are tried."""
    for buffers in (2, 4, 8, 12, 16):
        for chunk in (1 << 21, 1 << 22, 1 << 23, 1 << 24, 1 << 25):
            yield _transfer.Sizes(chunk, buffers, _transfer.LEAST)


def table(cells: list[str], *, head: bool = True) -> None:
    """Print a row of a table, or its first two."""
    print("|", " | ".join(cells), "|", flush=True)
    if head:
        print("|", " | ".join(["---"] * len(cells)), "|")


if __name__ == "__main__":
    main()
