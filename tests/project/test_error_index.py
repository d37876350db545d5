"""docs/errors.md: every message has a row, and every row is a form of message or of a text of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import xbridge

ROOT = Path(__file__).parents[2]
MESSAGE = re.compile(r"^    (\w+): (?:at .*?: )?cannot .*?: (.*?)(?:; try .*)?$", re.MULTILINE)


def rows() -> dict[str, list[str]]:
    """The reasons of the page, by class of error."""
    _, *sections = (ROOT / "docs" / "errors.md").read_text("utf-8").split("\n## ")
    return {part.partition("\n")[0]: re.findall(r"^\| `(.+?)` \|", part, re.MULTILINE) for part in sections}


def reasons() -> set[tuple[str, str]]:
    """The class and the reason of every message in the file that holds them word for word."""
    text = (ROOT / "tests" / "api" / "messages.txt").read_text("utf-8")
    found = MESSAGE.findall(text)
    assert len(found) == len(re.findall(r"^    \w+: ", text, re.MULTILINE))
    return {(name if hasattr(xbridge, name) else "UnsupportedArrayError", reason) for name, reason in found}


def written() -> Iterator[str]:
    """The texts in the source, with a sign in place of each value."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def matches(row: str, reason: str) -> bool:
    """Whether a reason has the form of a row."""
    return bool(re.fullmatch(".+".join(map(re.escape, row.split("…"))), reason))


def test_errors_page__has_a_section_per_error() -> None:
    """`docs/errors.md` has one section for each error class and one for warnings."""
    assert rows().keys() == {*(name for name in xbridge.__all__ if name.endswith("Error")), "Warnings"}


def test_errors_page__has_a_row_per_message() -> None:
    """Each message has a row in the section of its class."""
    found = {
        (name, reason): [row for row in rows()[name] if matches(row, reason)] for name, reason in reasons()
    }
    assert {key for key, having in found.items() if not having} == set()


def test_errors_page__rows_are_used() -> None:
    """Each row matches a message or a text in the code."""
    known, texts = reasons(), {*written()}
    unused = [
        (name, row)
        for name, forms in rows().items()
        for row in forms
        if row not in texts and not any(matches(row, reason) for kind, reason in known if kind == name)
    ]
    assert unused == []
