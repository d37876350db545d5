"""`migrate`: list the conversions that a program writes by hand, and replace them."""

from __future__ import annotations

import tokenize
from difflib import unified_diff
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from xbridge.files.errors import RefusedError, unreadable_error
from xbridge.files.output import print_json
from xbridge.files.write import replace_file

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from xbridge.files.idioms import Idiom

HELP = "list the conversions that a program writes by hand, and replace them"
DESCRIPTION = """\
List the conversions that Python files write by hand, such as t.detach().cpu().numpy(), with the call of
xbridge that replaces each, and what changes. --diff shows, and --write writes, those replacements that keep
the meaning of the program; the others, marked with ?, depend on what the names stand for."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    words = "Python files, or folders of them"
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=words)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--diff", action="store_true", help="print the replacements as a patch")
    how.add_argument("--write", action="store_true", help="replace them in the files")


def run(asked: Namespace) -> int:
    """Print or replace what was found."""
    if not find_spec("libcst"):
        reason = "it needs libcst, which is not installed"
        raise RefusedError.build("migrate a program", reason, "pip install 'xbridge-array[migrate]'")
    import libcst as cst  # noqa: PLC0415 -- an extra

    from xbridge.files.idioms import migrate  # noqa: PLC0415 -- it imports the extra

    entries: list[dict[str, object]] = []
    failure: RefusedError | None = None
    for path in _modules(asked.paths):
        content = path.read_bytes()
        try:
            encoding, _ = tokenize.detect_encoding(BytesIO(content).readline)
            source = content.decode(encoding)
            found, replaced = migrate(source)
        except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError) as error:
            failure = failure or unreadable_error(path, error)
            continue
        if asked.diff:
            old, new = source.splitlines(keepends=True), replaced.splitlines(keepends=True)
            print(*unified_diff(old, new, str(path), str(path)), sep="", end="")
        elif not asked.json:
            print("".join(_format_idiom(path, idiom) for idiom in found), end="")
        if asked.write and replaced != source:
            with replace_file(path.resolve(), force=True) as part:
                part.write_bytes(replaced.encode(encoding))
        entries += [{"path": str(path), **idiom._asdict()} for idiom in found]
    if asked.json:
        print_json(entries)
    elif not asked.diff and (entries or not failure):
        kept = sum(bool(entry["keeps_meaning"]) for entry in entries)
        files = len({entry["path"] for entry in entries})
        done = f"{kept} replaced" if asked.write else f"--write replaces {kept}"
        print(f"{len(entries)} conversions in {files} files; {done}")
    if failure:  # the other files are done
        raise failure
    return 0


def _format_idiom(path: Path, idiom: Idiom) -> str:
    """Format an idiom as a line that editors can jump to, and a second one if something changes."""
    sign = "" if idiom.keeps_meaning else "? "
    change = f"    {idiom.change}\n" if idiom.change else ""
    return f"{path}:{idiom.line}: {sign}{idiom.before}  ->  {idiom.after}\n{change}"


def _modules(paths: list[Path]) -> Iterator[Path]:
    """Iterate over the files, and the modules of folders but for hidden ones, such as environments."""
    for path in paths:
        if not path.exists():
            raise unreadable_error(path, "it does not exist")
        if path.suffix == ".ipynb":
            raise unreadable_error(path, "it is a notebook, and not a Python file")
        within = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for module in within:
            if not any(part.startswith(".") for part in module.relative_to(path).parts):
                yield module
