"""Measure copies and casts from 64 KB to 32 MB, to decide which library makes them fastest.

The ways run in turns, in blocks of a few milliseconds. Speeds are multiples of NumPy's own copy or cast;
behind each stands the range of the middle half of the rounds. It needs only NumPy, torch and xbridge:

    python benchmarks/mid_sizes.py
    python benchmarks/mid_sizes.py --neighbours 1   # while another process keeps a core busy

torch's ``copy_`` uses the threads of OpenMP, and waits for all of them: a busy core makes it slow.
"""

import argparse
import multiprocessing
import os
import sys
from statistics import median, quantiles

import numpy as np
import torch
from harness import interleave

import xbridge

__all__ = ["CASTS", "COPIES", "SIZES"]

SIZES = tuple(2**power for power in range(16, 26))

COPIES = {
    "np.copy": "torch.from_numpy(a.copy())",
    "clone": "torch.from_numpy(a).clone()",
    "np.empty, torch copy_": "torch.from_numpy(np.empty_like(a)).copy_(torch.from_numpy(a))",
    "xbridge to torch": "xbridge.to_backend(a, 'torch', copy=True)",
    "xbridge to NumPy": "xbridge.to_numpy(a, copy=True)",
}
CASTS = {
    "np.astype": "torch.from_numpy(a.astype('f4'))",
    "to(float32)": "torch.from_numpy(a).to(torch.float32)",
    "np.empty, torch copy_": "torch.from_numpy(np.empty_like(a, 'f4')).copy_(torch.from_numpy(a))",
    "xbridge to torch": "xbridge.to_backend(a, 'torch', dtype='float32')",
    "xbridge to NumPy": "xbridge.to_numpy(a, dtype='float32')",
}


def main() -> None:
    """Measure both tables and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--neighbours", type=int, default=0, help="processes that keep a core busy each")
    parser.add_argument("--rounds", type=int, default=61, help="turns that each way gets")
    parser.add_argument("--block", type=float, default=5.0, help="milliseconds of a turn")
    options = parser.parse_args()
    busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(options.neighbours)]
    for process in busy:
        process.start()
    load = f"; load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(
        f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()}; {len(busy)} neighbours{load}; "
        f"numpy {np.__version__}, torch {torch.__version__}\n"
    )
    for title, ways in (("Copies of float64", COPIES), ("Casts of float64 to float32", CASTS)):
        print(f"## {title}\n\n{table(ways, options.rounds, options.block / 1000)}\n")
    for process in busy:
        process.terminate()


def table(ways: dict[str, str], rounds: int, block: float) -> str:
    """Return a Markdown table with a line for each size. The first way is the reference."""
    first, *others = ways
    lines = [["bytes read", first, *others], ["---"] * (len(ways) + 1)]
    for size in SIZES:
        print(f"... {size} bytes", file=sys.stderr)
        space = {"np": np, "torch": torch, "xbridge": xbridge, "a": np.arange(0.0, size // 8)}
        times = interleave(ways.values(), space, rounds=rounds, block=block)
        base = times[ways[first]]
        lines.append([name_of(size), f"{median(base) * 1e6:.1f} us"])
        lines[-1] += [speed(times[ways[name]], base) for name in others]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed(own: list[float], base: list[float]) -> str:
    """Return the speed as a multiple of the reference's, with the middle half of the rounds."""
    low, _, high = quantiles([theirs / ours for ours, theirs in zip(own, base, strict=True)], n=4)
    return f"{median(base) / median(own):.2f}x ({low:.2f} to {high:.2f})"


def name_of(size: int) -> str:
    """Return a size in KB or MB."""
    return f"{size >> 10} KB" if size < 2**20 else f"{size >> 20} MB"


def spin() -> None:
    """Keep a core busy until the process is ended."""
    while True:
        pass


if __name__ == "__main__":
    main()
