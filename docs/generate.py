"""Write the generated parts of pages, from docstrings, conversions and imports.

A page has a part between `<!-- generated: NAME -->` and `<!-- end -->`, which this script writes. It fails if
a declaration of a backend (`declared.py`) and a measurement (`measured.py`, `claims.py`) differ. With
`--check` nothing is written, and a page that is stale is a failure.
"""

import argparse
import inspect
import re
import sys
from operator import attrgetter
from pathlib import Path

from floors import picture

import xbridge
from xbridge import testing
from xbridge.testing import strategies

try:
    from claims import contradictions
    from declared import declarations
    from measured import tables
except ModuleNotFoundError as error:
    sys.exit(f"cannot measure what is supported: {error.name} is not installed; try make docs")

PART = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)
RAISED = ("Error", "Warning")
NAMES = {
    "convert": "to_backend to_numpy to_torch to_jax to_cupy to_dask asarray to_list unsafe_share",
    "align": "align align_back aligned array_namespace",
    "trees": "tree.to_backend tree.to_numpy tree.to_torch tree.to_jax tree.to_cupy tree.to_dask "
    "tree.align tree.map",
    "move": "transfer Transfer prefetch release_buffers",
    "observe": "explain Plan policy record",
    "inspect": "is_array backend_of dtype_of device_of native_device Device shares_memory",
    "backends": "known_backends is_available register_backend",
    "assertions": " ".join(f"testing.{name}" for name in testing.__all__),
    "strategies": " ".join(f"testing.strategies.{name}" for name in strategies.__all__),
}
"""The parts of `reference.md`, and the public names of each."""


def main() -> None:
    """Fill in every page of a folder and of the folders in it. With --check, fail at the first stale page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    asked = parser.parse_args()
    written = parts()
    for page in sorted(asked.folder.rglob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = PART.sub(lambda part: written[part[1]], old)
        if new != old and asked.check:
            sys.exit(f"{page} is stale; try python docs/generate.py")
        page.write_text(new, encoding="utf-8")


def parts() -> dict[str, str]:
    """Return the texts that the script writes, by the name of the part."""
    backends = declarations()
    if wrong := [*contradictions(backends)]:
        sys.exit("\n".join(["these declarations of backends differ from measurements:", *wrong]))
    texts = {
        **{part: reference(names) for part, names in NAMES.items()},
        "errors": errors(),
        "floors": picture(),
        **{name: table(head, rows) for name, (head, *rows) in tables(backends).items()},
    }
    return {name: f"<!-- generated: {name} -->\n\n{text}\n\n<!-- end -->" for name, text in texts.items()}


def reference(names: str) -> str:
    """Return a table of public names with the first line of their docstrings."""
    rows = [[f"`{name}`", summary(attrgetter(name)(xbridge))] for name in names.split()]
    return table(["name", "in short"], rows)


def summary(thing: object) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def errors() -> str:
    """Return a table of the errors and warnings, with their built-in class and their condition."""
    kinds = {name: getattr(xbridge, name) for name in xbridge.__all__ if name.endswith(RAISED)}
    rows = [[f"`{name}`", f"`{kind.__bases__[-1].__name__}`", summary(kind)] for name, kind in kinds.items()]
    return table(["error or warning", "also a", "when"], rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    main()
