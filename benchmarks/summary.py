"""Write the first page of the benchmarks, a picture and a short table, from the tables of details.md.

Nothing is measured here, so the page can be made again without a run: `python benchmarks/summary.py`.
"""

import re
from html import escape
from math import log10
from pathlib import Path
from typing import NamedTuple

from rows import PEERS

HOME = Path(__file__).parent

WANTED = (
    ("torch to NumPy", "Small arrays", "t = torch.arange(n).double()", "xbridge.to_numpy(t)"),
    (
        "torch to NumPy, requires grad",
        "Small arrays",
        "t = torch.arange(n).double().requires_grad_()",
        "xbridge.to_numpy(t)",
    ),
    ("NumPy to torch", "Small arrays", "a = np.arange(0.0, n)", "xbridge.to_backend(a, 'torch')"),
    ("NumPy to JAX", "Small arrays of JAX", "a = np.arange(n, dtype='f4')", "xbridge.to_backend(a, 'jax')"),
    (
        "JAX to NumPy",
        "Small arrays of JAX",
        "x = jnp.arange(n, dtype='f4').block_until_ready()",
        "xbridge.to_numpy(x)",
    ),
    (
        "NumPy to torch, a copy of 256 MB",
        "Large arrays",
        "a = np.arange(0.0, n)",
        "xbridge.to_backend(a, 'torch', copy=True)",
    ),
    (
        "256 NumPy arrays to one tensor, 4 MB",
        "A list of 256 arrays",
        "a = [np.full(n // 128, i, 'f4') for i in range(256)]",
        "xbridge.asarray(a, backend='torch')",
    ),
)
"""The rows of the page: a title, and the table, the source and the call that it has in details.md."""

PAGE = """\
# Benchmarks

The time of a conversion, as a multiple of the time of its idiom, the usual line without any of these
projects. Less is better.

![Time of common conversions, as multiples of the idiom's](summary.svg)

{table}

The first five rows have 100 items, so they show what a call costs. A dash stands for a conversion for which
the project has no call, or a different result. The idioms are `t.detach().cpu().numpy()`,
`torch.from_numpy(a)`, `jnp.asarray(a)`, `np.asarray(x)`, `torch.from_numpy(a).clone()` and `torch.tensor(a)`.

{machine}

`make bench` measures all of this on your machine. More:

- [All rows](details.md), with their ranges, the targets that were missed and why.
- [In place of the converters of other projects](in-place-of.md).
- [Beside other lines and libraries](peers.md): which are right, and what they cost.
- [Cost against size](scale.md): from 1 byte to 1 GiB, 100,000 leaves, 5,000 chunks.
- [Copies from 64 KB to 32 MB](mid-sizes.md).
- [Transfers to a GPU](gpu.md), and [large Dask arrays](dask_scale.md).
"""

WIDTH, LEFT, TOP, STEP = 430, 14, 58, 46
LOWEST, HIGHEST = 0.005, 60
COLORS = ("#3f51b5", "#2e9e6b", "#d98324", "#c2497d")
INK = "#808080"


class Row(NamedTuple):
    """A title, and the multiples of xbridge and its peers; None without a figure."""

    title: str
    multiples: list[float | None]


def main() -> None:
    """Write the page and its picture."""
    details = (HOME / "details.md").read_text(encoding="utf-8")
    write(details, HOME)


def write(details: str, folder: Path) -> None:
    """Write both into a folder, from the text of the page with all rows."""
    rows = [row(details, *wanted) for wanted in WANTED]
    head = ["conversion", "xbridge", "idiom", *PEERS]
    lines = [[one.title, *map(shown, [one.multiples[0], 1.0, *one.multiples[1:]])] for one in rows]
    lines = [[title, f"**{ours}**", *others] for title, ours, *others in lines]
    grid = "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])
    machine = "; ".join(details.partition("## The machine\n\n- ")[2].strip().split("\n- "))
    date = re.search(r"on (\d{4}-\d\d-\d\d)\.", details)
    measured = f"Measured on {date[1] if date else 'an unknown day'}: {machine}."
    (folder / "README.md").write_text(PAGE.format(table=grid, machine=measured), encoding="utf-8")
    (folder / "summary.svg").write_text(picture(rows), encoding="utf-8")


def row(details: str, title: str, table: str, given: str, call: str) -> Row:
    """Return one row. Where the table has speeds, the multiples of time are their inverses."""
    part = details.partition(f"\n## {table}\n")[2].partition("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in part.splitlines()
        if line[:1] == "|"
    ]
    head = lines[0]
    (cells,) = (line for line in lines if line[:2] == [f"`{given}`", f"`{call}`"])
    found = [re.match(r"([\d.]+)x", cells[head.index(name)]) for name in ("figure", *PEERS)]
    is_speed = "More is better" in part
    return Row(title, [one and (1 / float(one[1]) if is_speed else float(one[1])) for one in found])


def shown(multiple: float | None) -> str:
    """Return the cell of a multiple, with two or three digits."""
    return "-" if multiple is None else f"{multiple:.2g}x" if multiple < 1 else f"{multiple:.3g}x"


def picture(rows: list[Row]) -> str:
    """Return a drawing: a line for each row, on which xbridge and its peers are dots."""
    height = TOP + STEP * len(rows) + 26
    low, high = log10(LOWEST), log10(HIGHEST)

    def at(multiple: float) -> float:
        return LEFT + (log10(multiple) - low) / (high - low) * (WIDTH - 2 * LEFT)

    parts = []
    for i, (name, color) in enumerate(zip(("xbridge", *PEERS), COLORS, strict=True)):
        x = LEFT + 6 + i * 100
        parts += [circle(x, 14, color), text(x + 10, 19, name)]
    bottom = TOP + STEP * len(rows)
    parts.append(text(at(1), TOP - 20, "the idiom", "middle"))
    for tick in (0.01, 0.1, 1.0, 10.0):
        x, dashes = at(tick), ' stroke-dasharray="2 6" opacity="0.5"' if tick != 1 else ""
        parts.append(
            f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{TOP - 12}" y2="{bottom}" stroke="{INK}"{dashes}/>'
        )
        parts.append(text(x, bottom + 18, f"{tick:g}x", "middle"))
    for i, one in enumerate(rows):
        y = TOP + STEP * i
        parts.append(text(LEFT, y + 8, one.title))
        found = [(at(m), color) for m, color in zip(one.multiples, COLORS, strict=True) if m is not None]
        parts += [circle(x, y + 24, color) for x, color in reversed(found)]  # xbridge on top
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    style = f'font-family="sans-serif" font-size="14" fill="{INK}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', *parts, "</svg>", ""])


def circle(x: float, y: float, color: str) -> str:
    """Return a dot."""
    return f'<circle cx="{x:.1f}" cy="{y}" r="6" fill="{color}"/>'


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return words in the picture."""
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


if __name__ == "__main__":
    main()
