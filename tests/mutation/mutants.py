"""List the changes: what mutmut's operators make of each expression and statement inside a function.

A mutant is kept as text: the lines that it replaces and the lines that replace them. So trying it takes
neither mutmut nor libcst, and a list can be made on one machine and tried on another.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType

UNTOUCHED = {"len", "isinstance"}
"""Calls that mutmut leaves alone: with another argument they raise, which any test notices."""


@dataclass(frozen=True)
class Mutant:
    """One change of one function."""

    id: str
    path: str
    function: str
    first: int
    """The line from which on lines are replaced, counted from 1."""
    old: tuple[str, ...]
    new: tuple[str, ...]
    covers: tuple[int, int]
    """The lines of which a test must run one: the statement, or the whole function for a default."""

    def applied(self, source: str) -> str:
        """The source of the module with the change in it."""
        lines = source.splitlines(keepends=True)
        at = self.first - 1
        if tuple(lines[at : at + len(self.old)]) != self.old:
            raise ValueError(f"{self.path} is not what the mutants were made of: list them again")
        lines[at : at + len(self.old)] = self.new
        return "".join(lines)

    def to_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Mutant:
        """What `to_json` gave."""
        tuples = {key: tuple(kept[key]) for key in ("old", "new", "covers")}
        return cls(**{**kept, **tuples})


def mutants(root: Path, path: str) -> tuple[list[Mutant], int]:
    """Every mutant of a file, and how many changes run at import, which are not tried."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
    from mutmut.mutation.mutators import mutation_operators

    source = (root / path).read_text()
    wrapper = MetadataWrapper(cst.parse_module(source))
    parents = wrapper.resolve(ParentNodeProvider)
    positions = wrapper.resolve(PositionProvider)
    found: list[Mutant] = []
    at_import = 0
    original = compile(source, path, "exec")
    skipped = (cst.Annotation, cst.Decorator)
    code = wrapper.module.code_for_node
    pieces: dict[cst.CSTNode, str] = {one: code(one) for one in wrapper.module.body}
    before, _, after = source.partition("".join(pieces.values()))

    def above(node: cst.CSTNode) -> list[cst.CSTNode]:
        chain = [node]
        while not isinstance(node, cst.Module):
            node = parents[node]
            chain.append(node)
        return chain

    def extent(chain: list[cst.CSTNode]) -> tuple[int, int]:
        """The lines of the statement that holds the node: a simple one, or the head of a compound one."""
        for inner, outer in pairwise(chain):
            if isinstance(outer, cst.FunctionDef) and inner is outer.params:
                return positions[outer.body].start.line, positions[outer.body].end.line
            if isinstance(inner, cst.BaseSmallStatement | cst.With) or isinstance(outer, cst.With):
                return positions[inner].start.line, positions[inner].end.line
            if isinstance(outer, cst.If | cst.While | cst.For | cst.ExceptHandler | cst.Try):
                return positions[outer].start.line, positions[inner].end.line
        node = chain[0]
        return positions[node].start.line, positions[node].end.line

    def visit(node: cst.CSTNode) -> None:
        nonlocal at_import
        if isinstance(node, skipped) or _is_untouched(node):
            return
        if isinstance(node, cst.If) and _is_for_types(node):
            return
        made = [new for kind, make in mutation_operators if isinstance(node, kind) for new in make(node)]
        if made:
            chain = above(node)
            functions = [one for one in chain if isinstance(one, cst.FunctionDef)]
            if functions:
                outermost = functions[-1]
                for new in made:
                    text = before + "".join(
                        {**pieces, chain[-2]: code(chain[-2].deep_replace(node, new))}.values()
                    )
                    text += after
                    mutant = _mutant(source, original, text, path, _name(outermost, chain), extent(chain))
                    if mutant is not None:
                        found.append(mutant)
            else:
                at_import += len(made)
        for child in node.children:
            visit(child)

    def _is_untouched(node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in UNTOUCHED

    def _is_for_types(node: cst.If) -> bool:
        return isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING"

    def _name(function: cst.FunctionDef, chain: list[cst.CSTNode]) -> str:
        classes = [one.name.value for one in chain if isinstance(one, cst.ClassDef)]
        return ".".join([*classes[::-1], function.name.value])

    visit(wrapper.module)
    return list({one.id: one for one in found}.values()), at_import


def _mutant(
    source: str, original: CodeType, text: str, path: str, function: str, covers: tuple[int, int]
) -> Mutant | None:
    """The lines that differ; None if the change is none, or no Python."""
    try:
        if compile(text, path, "exec") == original:
            return None
    except SyntaxError:
        return None
    old, new = source.splitlines(keepends=True), text.splitlines(keepends=True)
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    before, after = tuple(old[head : len(old) - tail]), tuple(new[head : len(new) - tail])
    # Lines elsewhere may move: what is around the change tells one of two equal lines from the other.
    near = "".join(old[max(head - 3, 0) : head + len(before) + 3])
    name = hashlib.sha256("\0".join([path, function, near, *before, *after]).encode()).hexdigest()[:12]
    return Mutant(name, path, function, head + 1, before, after, covers)
