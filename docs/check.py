"""Run every example in the documents and follow their links.

Examples are the ``python`` and ``pycon`` blocks of the Markdown pages. A block with
prompts is a doctest, and a block without prompts is a script. The blocks of a page share their names, from
top to bottom. A block that opens with ``python file=name.py`` is a module, which later blocks can import. A
block that cannot run everywhere opens with ``python no-run``. In a ``console run`` block, the text behind
``$`` is run in a shell, and its output is compared. Durations such as ``1.2 ms`` may differ. Links within the
repository are checked, anchors included. Nothing is fetched. By default all pages are checked, those in
folders of `docs` included.
"""

import argparse
import doctest
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import traceback
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "examples/**/*.md")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

DURATION = re.compile(r"[\d.,]+ (?:ms|s)\b")
JAX_NOTE = re.compile(r"^-+\nFor simplicity, JAX has removed.*", re.MULTILINE)
"""What JAX adds to an error, beside its traceback."""

FENCE = re.compile(r"^ *(`{3,}|~{3,})(.*)$")
LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)[^)]*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: the words of its fence, its text, and the first line of the text."""

    info: list[str]
    text: str
    line: int

    @property
    def runs(self) -> bool:
        """True if the block is an example that can run everywhere."""
        known = self.info[:1] in (["python"], ["pycon"]) and "no-run" not in self.info
        return known or self.info == ["console", "run"]

    @property
    def file(self) -> str:
        """The name of the module in the block; empty if the block is not a module."""
        return "".join(word.removeprefix("file=") for word in self.info if word.startswith("file="))


class Checker(doctest.OutputChecker):
    """Compares output like a doctest, but any two durations are equal, so pages can show what was printed."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Return True if the output is as wanted."""
        want, got = (DURATION.sub("0 s", text) for text in (want, got))
        return super().check_output(want, JAX_NOTE.sub("", got), optionflags)


def main() -> int:
    """Check the pages that are asked for, and return the number of faults."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="pages and folders; by default all")
    asked = [path.resolve() for path in parser.parse_args().pages]
    found = [path.rglob("*.md") if path.is_dir() else [path] for path in asked]
    pages = sorted({*chain(*(found or map(ROOT.glob, PAGES)))})
    os.environ["JAX_NUM_CPU_DEVICES"] = "2"  # too late for a page to ask for, once another has used JAX
    with warnings.catch_warnings():  # torch calls what it deprecates
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
        return checked(pages)


def checked(pages: list[Path]) -> int:
    """Check pages, print the faults, and return their number."""
    faults: list[str] = []
    examples = links = 0
    for page in pages:
        blocks, prose = read(page)
        runnable = [b for b in blocks if b.runs]
        targets = [first or second for first, second in LINK.findall(SPAN.sub("", prose))]
        faults += [*run(page, runnable), *follow(page, targets)]
        examples, links = examples + len(runnable), links + len(targets)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(pages)} pages, {examples} examples, {links} links, {len(faults)} faults")
    return len(faults)


def read(page: Path) -> tuple[list[Block], str]:
    """Return the fenced blocks of `page`, and its text without them."""
    blocks: list[Block] = []
    prose: list[str] = []
    fence, info = "", ""
    inside: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = FENCE.match(line)
        if match and not fence:
            fence, info, inside = match[1], match[2], []
        elif match and match[1].startswith(fence) and not match[2].strip():
            text = textwrap.dedent("\n".join(inside)) + "\n"
            blocks.append(Block(info.split(), text, number - len(inside)))
            fence = ""
        elif fence:
            inside.append(line)
        else:
            prose.append(line)
    if fence:
        sys.exit(f"{page.relative_to(ROOT)}: a fence is never closed")
    return blocks, "\n".join(prose)


def run(page: Path, blocks: list[Block]) -> list[str]:
    """Run the `blocks` of a page in a directory of their own, and return the faults."""
    name, home = str(page.relative_to(ROOT)), Path.cwd()
    faults: list[str] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        os.chdir(scratch)
        sys.path.insert(0, scratch)
        try:
            for block in blocks:
                if block.file:
                    Path(block.file).write_text(block.text, encoding="utf-8")
                    continue
                step = run_doctest if ">>> " in block.text else run_script
                step = run_shell if block.info[0] == "console" else step
                faults += step(name, block, names)
        finally:
            sys.path.remove(scratch)
            os.chdir(home)
    return faults


def run_doctest(page: str, block: Block, names: dict[str, Any]) -> list[str]:
    """Run a block with prompts and compare its output."""
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(block.text, names, page, page, block.line - 1)
    doctest.DocTestRunner(Checker(), optionflags=FLAGS).run(test, out=report.append, clear_globs=False)
    names.update(test.globs)
    return ["".join(report)] if report else []


def run_script(page: str, block: Block, names: dict[str, Any]) -> list[str]:
    """Run a block without prompts, which is correct if it does not raise."""
    try:
        code = compile("\n" * (block.line - 1) + block.text, page, "exec")
        exec(code, names)  # noqa: S102 - the documents are ours
    except Exception:  # noqa: BLE001 - any exception is a fault to report
        return [f"{page}:{block.line}: this example raises\n{traceback.format_exc()}"]
    return []


def run_shell(page: str, block: Block, names: dict[str, Any]) -> list[str]:  # noqa: ARG001 -- a shell has no names
    """Run the commands of a block, with the scripts of this environment, and compare their output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    faults = []
    for example in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, wanted = example.partition("\n")
        shown = subprocess.run(  # noqa: S602 -- the documents are ours
            command,
            shell=True,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        ).stdout
        if not Checker().check_output(wanted, shown, FLAGS):
            faults.append(f"{page}:{block.line}: $ {command}\nshould print\n{wanted}\nand prints\n{shown}")
    return faults


def follow(page: Path, targets: list[str]) -> Iterator[str]:
    """Yield the links of `page` within the repository that have no target."""
    for target in targets:
        path, _, anchor = unquote(target).partition("#")
        if re.match(r"[a-z][a-z+.-]*:", path):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.is_relative_to(ROOT) or not there.exists():
            yield f"{page.relative_to(ROOT)}: {target} does not exist"
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            yield f"{page.relative_to(ROOT)}: {target}: no such heading"


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of `page`, as the usual renderers name them."""
    found: set[str] = set()
    for heading in HEADING.findall(read(page)[1]):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = base = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while slug in found:
            number += 1
            slug = f"{base}-{number}"
        found.add(slug)
    return found


if __name__ == "__main__":
    sys.exit(main() > 0)
