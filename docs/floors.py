"""Read which modules of xbridge import which at run time, and stack its packages into floors."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

SPEC = find_spec("xbridge")
assert SPEC is not None
assert SPEC.origin is not None
ROOT = Path(SPEC.origin).parent
FILES = {
    ".".join(("xbridge", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
"""The file of each module."""

GUESTS = ("files", "functions", "testing")
"""Packages beside the core. The top has names of them, and imports none before its first use."""

PARTS = {"__main__": "files"}
"""Modules outside the package that they belong to."""


def package_of(module: str) -> str:
    """Return the package or module at the top of `xbridge` that a module belongs to."""
    top = f"{module}.__init__".split(".")[1]
    return PARTS.get(top, top)


def imported(tree: ast.AST, *, by_name: bool = False, types: bool = False) -> set[str]:
    """Return the modules of xbridge that code imports at run time, also those that its functions import.

    With `by_name`, strings that are the name of a module count too. With `types`, imports under
    `if TYPE_CHECKING` do.
    """
    inner = ast.AST if by_name else (ast.stmt, ast.ExceptHandler, ast.match_case)  # which hold statements
    words: list[str] = []
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and not types and "TYPE_CHECKING" in ast.dump(node.test):
            left += node.orelse
            continue
        if isinstance(node, ast.Import):
            words += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            words += [word if word in FILES else str(node.module) for word in inside]
        elif by_name and isinstance(node, ast.Constant) and node.value in FILES:
            words.append(str(node.value))
        left += [child for child in ast.iter_child_nodes(node) if isinstance(child, inner)]
    return {word for word in words if word.partition(".")[0] == "xbridge"}


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module."""
    return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in FILES.items()}


@cache
def imports(*, types: bool = False) -> dict[str, set[str]]:
    """Return the modules that each module imports, with `types` also those that only type checkers import.

    The top of `xbridge` and `extend` import some late, by name.
    """
    late = () if types else ("xbridge", "xbridge.extend")
    found = {module: imported(tree, by_name=module in late, types=types) for module, tree in trees().items()}
    found["xbridge"] = {one for one in found["xbridge"] if package_of(one) not in GUESTS}
    return {module: others - {module} for module, others in found.items()}


_SAMPLES = "xbridge.testing.samples."


def references() -> dict[str, set[str]]:
    """Return the modules that each module imports or names in a string, by which it could import them.

    A package may name its own modules, and the name of the top is only a word. So is that of the samples of a
    backend, which the test kit imports.
    """
    found = {}
    for module, tree in trees().items():
        named = {one for one in imported(tree, by_name=True) if not one.startswith(_SAMPLES)} - {"xbridge"}
        inside = {one for one in named if one.startswith(f"{module}.")}
        found[module] = (named - inside - {module}) | imports()[module]
    return found


def packages() -> dict[str, set[str]]:
    """Return the other packages that each package imports from."""
    found: dict[str, set[str]] = {package_of(module): set() for module in FILES}
    for module, others in imports().items():
        found[package_of(module)] |= {package_of(other) for other in others} - {package_of(module)}
    return found


def floors() -> list[list[str]]:
    """Stack the packages, lowest first: each is on the floor above the highest package that it imports."""
    left = packages()
    stacked: list[list[str]] = []
    while left:
        below = {package for floor in stacked for package in floor}
        floor = sorted(package for package, others in left.items() if others <= below)
        if not floor:
            raise ValueError(f"packages import each other: {', '.join(sorted(left))}")
        stacked.append(floor)
        left = {package: others for package, others in left.items() if package not in floor}
    return stacked


def picture() -> str:
    """Draw the floors, the highest first, and say which package imports from which."""
    found = packages()
    lines = []
    for number, floor in reversed([*enumerate(floors(), 1)]):
        height = {package: n for n, row in enumerate(floors()) for package in row}
        for i, package in enumerate(floor):
            below = sorted(found[package], key=lambda one: (-height[one], one))
            lines.append(f"{number if not i else ' '}  {package:<12}  {' '.join(below)}".rstrip())
    return "\n".join(["```", *lines, "```"])
