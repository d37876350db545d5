"""Write the generated parts of pages, from docstrings, conversions and imports.

A page has a part between `<!-- generated: NAME -->` and `<!-- end -->`, which this script writes. It fails if
a declaration of a backend (`declared.py`) and a measurement (`measured.py`, `claims.py`) differ. With
`--check` nothing is written, and a page that is stale is a failure.
"""

import argparse
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from floors import picture

import xbridge
from xbridge import testing, tree
from xbridge.testing import strategies

try:
    from claims import contradictions
    from declared import declarations
    from measured import tables
except ModuleNotFoundError as error:
    sys.exit(f"cannot measure what is supported: {error.name} is not installed; try make docs")

PART = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)
FIELDS = "Parameters|Attributes|Returns|Yields|Raises|Warns|Notes|Examples"
FIELD = re.compile(rf"\n*^({FIELDS})\n-+\n", re.MULTILINE)
RAISED = ("Error", "Warning")


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
        "verbs": reference(xbridge),
        "trees": reference(tree, "tree."),
        "errors": errors(),
        "assertions": reference(testing),
        "strategies": reference(strategies),
        "floors": picture(),
        **{name: table(head, rows) for name, (head, *rows) in tables(backends).items()},
    }
    return {name: f"<!-- generated: {name} -->\n\n{text}\n\n<!-- end -->" for name, text in texts.items()}


def reference(module: ModuleType, prefix: str = "") -> str:
    """Return a section on each public name of a module, except for errors and warnings."""
    names = [name for name in module.__all__ if not name.endswith(RAISED)]
    return "\n\n".join(section(f"{prefix}{name}", getattr(module, name)) for name in names)


def section(name: str, thing: Any, level: str = "##") -> str:
    """Return a section on a public name: its signature without types, and its docstring.

    The docstring states the types. Of a class, the methods with parameters, results or errors follow.
    """
    signature = inspect.signature(thing)
    untyped = [
        one.replace(annotation=one.empty) for one in signature.parameters.values() if one.name != "self"
    ]
    call = signature.replace(parameters=untyped, return_annotation=signature.empty)
    summary, *fields = FIELD.split(inspect.getdoc(thing) or "")
    parts = [f"{level} {name}", f"```\n{name}{call}\n```", summary]
    for field, text in zip(fields[::2], fields[1::2], strict=True):
        shown = {"Examples": f"```pycon\n{text}\n```", "Notes": text}.get(field) or entries(text)
        parts += [f"**{field}**", shown]
    if inspect.isclass(thing):
        methods = {word: part for word, part in vars(thing).items() if inspect.isfunction(part)}
        described = {word: part for word, part in methods.items() if FIELD.search(inspect.getdoc(part) or "")}
        parts += [section(f"{name}.{word}", part, f"{level}#") for word, part in described.items()]
    return "\n\n".join(parts)


def entries(text: str) -> str:
    """Return the entries `term : type` of a docstring, with their indented descriptions, as a list."""
    found = re.findall(r"^(\S.*?)( : .*)?$((?:\n .*)*)", text, re.MULTILINE)
    return "\n".join(f"- `{term}`{kind}. {' '.join(what.split())}" for term, kind, what in found)


def errors() -> str:
    """Return a table of the errors and warnings, with their built-in class and their condition."""
    kinds = {name: getattr(xbridge, name) for name in xbridge.__all__ if name.endswith(RAISED)}
    rows = [
        [f"`{name}`", f"`{kind.__bases__[-1].__name__}`", FIELD.split(inspect.getdoc(kind) or "")[0]]
        for name, kind in kinds.items()
    ]
    return table(["error or warning", "also a", "when"], rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    main()
