"""Refuse retired words in names, docstrings, comments, messages and pages.

The table of words is in CONTRIBUTING.md, between `<!-- retired words -->` and `<!-- end -->`. Of code,
the names that are bound are read, and docstrings, comments and messages. Of `tests`, only the names of test
functions are read, except for a package with its source there. Of a page, the prose is read. An exception
needs a reason on the same line, or on the last line of a docstring: `# vocabulary: WORD -- REASON`, and
`<!-- vocabulary: WORD -- REASON -->` in a page.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TABLE = re.compile(r"<!-- retired words -->\n(.*?)<!-- end -->", re.DOTALL)
EXCEPTION = re.compile(r"^(# |.*<!-- )vocabulary: (?P<words>[a-z, ]+?)( -- (?P<reason>\w.*?))?\s*(-->|$)")
ALLOWED = re.compile(
    r"\bthere (is|are|was|were) no\b|\b(is|are|was|were) no (longer|more)\b|\blay(ing)? (it )?out\b",
    re.IGNORECASE,
)
"""Phrases with a retired word that are plain English."""
NOT_PROSE = re.compile(r"^\s*(>>>|\.\.\.).*$|(`+).+?\2|https?:\S+|\]\(.*?\)", re.MULTILINE)
"""Code in prose, and the targets of links."""
FENCED = re.compile(r"^```.*?^```|<!-- generated:.*?<!-- end -->|^    .*?$", re.MULTILINE | re.DOTALL)
NO_VERB = re.compile(
    r"(whether|wh(at|en|ere|ich|ose?|y)|how|every|the|an?|all|its?|no(thing|t|ne)?|th(at|e|ese|is|ose)|of|from|as|in"
    r"|on|with(out)?|for|also|to|one|others?|likewise|if|by|after|before|between|same|only|two|both|up|back|like)\b",
    re.IGNORECASE,
)
"""How the docstring of a function does not begin: it begins with a verb."""
PATHS = ("src", "tests", "docs", "examples", "benchmarks", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""The files and folders that are read by default."""


class Found(NamedTuple):
    """A piece of text and where it is."""

    line: int
    text: str
    last: int = 0
    """The last line of the text, if it has several."""
    is_name: bool = False


@cache
def retired() -> list[tuple[re.Pattern[str], str, bool]]:
    """Read the table: a pattern of words, what to write instead, and whether only names are refused."""
    part = TABLE.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert part, "CONTRIBUTING.md has no table of retired words"
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in part[1].strip().splitlines()[2:]]
    return [
        (re.compile(rf"\b({'|'.join(words.split(', '))})\b", re.IGNORECASE), instead, places == "names")
        for words, instead, places in rows
    ]


def words_of(name: str) -> str:
    """Split an identifier into its words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ")


def refused(found: Found) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each retired word in a text, the word, and what to write instead."""
    text = words_of(found.text) if found.is_name else found.text
    for pattern in (ALLOWED, NOT_PROSE):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    for words, instead, only_names in retired():
        for match in words.finditer(text) if found.is_name or not only_names else ():
            line = found.line + text[: match.start()].count("\n")
            yield min(line, found.last or found.line), match[0].lower(), instead


def bound(tree: ast.AST) -> Iterator[Found]:
    """Yield the names that code binds: classes, functions, parameters, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Found(node.lineno, node.name, is_name=True)
        elif isinstance(node, ast.arg):
            yield Found(node.lineno, node.arg, is_name=True)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Found(node.lineno, node.id, is_name=True)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield Found(node.lineno, node.attr, is_name=True)
        elif isinstance(node, ast.alias) and node.asname:
            yield Found(node.lineno, node.asname, is_name=True)


def strings(tree: ast.AST) -> Iterator[Found]:
    """Yield docstrings, and strings of several words, which are messages."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield Found(node.lineno, text, node.end_lineno or 0)


def comments(source: str) -> Iterator[Found]:
    """Yield the comments of code, without exceptions."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Found(token.start[0], token.string.partition("vocabulary: ")[0])


def without_verb(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the docstrings of functions that do not begin with a verb; a property is described by a noun."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            opening = NO_VERB.match((ast.get_docstring(node) or "").lstrip("`"))
            if opening and not any("property" in ast.unparse(one) for one in node.decorator_list):
                yield node.body[0].lineno, opening[0], "a verb, such as Return, at the start"


def shown(path: Path) -> str:
    """Return the path of a file in the repository, or the name of a file elsewhere."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def exceptions(path: Path, source: str) -> Iterator[tuple[int, set[str], bool]]:
    """Yield the line of each exception, its words, and whether it has a reason."""
    if path.suffix == ".md":
        lines = [*enumerate(source.splitlines(), 1)]
    else:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        lines = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    for number, line in lines:
        if found := EXCEPTION.search(line):
            yield number, {word.strip() for word in found["words"].split(",")}, bool(found["reason"])


def texts(path: Path, source: str) -> tuple[list[Found], list[tuple[int, str, str]]]:
    """Return what is read of a file, and the faults that no word shows."""
    if path.suffix == ".md":
        source = TABLE.sub(lambda part: "\n" * part[0].count("\n"), source)
        prose = FENCED.sub(lambda part: "\n" * part[0].count("\n"), source)
        return [Found(n, line.partition("<!--")[0]) for n, line in enumerate(prose.splitlines(), 1)], []
    tree = ast.parse(source)
    if shown(path).startswith("test") and "/src/" not in shown(path):
        names = [name for name in bound(tree) if name.text.startswith("test_")]
        return [Found(name.line, words_of(name.text)) for name in names], []  # a test's name is a sentence
    return [*bound(tree), *strings(tree), *comments(source)], [*without_verb(tree)]


def faults(path: Path) -> list[str]:
    """Return a line for each retired word of a file, and for each exception without a reason or a use."""
    source = path.read_text(encoding="utf-8")
    found, others = texts(path, source)
    excused: dict[int, set[str]] = {}
    wrong = [(line, f"{word!r}: write {instead}") for line, word, instead in others]
    for number, words, has_reason in exceptions(path, source):
        excused[number] = words
        if not has_reason:
            wrong.append((number, "an exception without a reason: write vocabulary: WORD -- REASON"))
    used: set[tuple[int, str]] = set()
    for text in found:
        for line, word, instead in refused(text):
            excuses = [n for n in (line, text.last) if word in excused.get(n, ())]
            used |= {(n, word) for n in excuses}
            if not excuses:
                wrong.append((line, f"{word!r}: write {instead}"))
    for number, words in excused.items():
        wrong += [
            (number, f"an exception for {word!r} has no use") for word in words if (number, word) not in used
        ]
    return [f"{shown(path)}:{line}: {text}" for line, text in sorted(set(wrong))]


def files(paths: list[Path]) -> Iterator[Path]:
    """Yield the files of source, tests and pages under some paths."""
    for path in paths:
        yield from sorted([*path.rglob("*.py"), *path.rglob("*.md")]) if path.is_dir() else [path]


def main() -> None:
    """Read files, or the default ones; fail if one has a retired word."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders; by default all")
    asked = parser.parse_args()
    chosen = [path.resolve() for path in asked.paths] or [ROOT / name for name in PATHS]
    wrong = [line for path in files(chosen) for line in faults(path)]
    if wrong:
        sys.exit("\n".join([*wrong, f"{len(wrong)} faults; the table of words is in CONTRIBUTING.md"]))


if __name__ == "__main__":
    main()
