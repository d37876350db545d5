"""Read the advice at the end of a message, and apply it to the call that failed.

A call is a line of source. What follows "; try " is code if it names an option, a backend, or an expression
of `x`; `follow` writes it into the call, and runs that.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import xbridge.tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LEADS = r"^naming (one|it): "
_TAILS = (
    r"(, which (wraps|is) .*"
    r"| (to accept rounding|to cut it|to compute them|first|around it|if it spells .*|for the arrays in it"
    r"|for one array|for a list of arrays|if it holds lists|if it holds numbers|for labels))$"
)
_THEN = r"(?P<before>.*), and (?P<then>asarray|xbridge\.tree\.to_backend)( if it holds numbers)?"
_MESSAGES = {"build": 3, "Unsupported": 3, "unreadable_error": 3, "write_error": 3, "_refused": 2}
"""What takes a hint as its last argument, and of how many."""
_RESULTS = (
    "[asarray(",
    "x.unbind()",
    *(f"xbridge.tree.{name}(" for name in xbridge.tree.__all__),
    *(f"{before}{name}(" for before in ("", "xbridge.") for name in xbridge.__all__),
)


def alternatives(hint: str) -> list[str]:
    """The pieces of code in a hint, each of which is to be tried."""
    pieces: list[str] = []
    x = "x"
    for part in re.split(r",? or ", re.sub(_LEADS, "", hint)):
        piece = re.sub(_TAILS, "", part)
        found = re.fullmatch(_THEN, piece)
        if found:  # what is done to what comes of the first
            x, piece = found["before"], found["then"]
        if piece in ("asarray", "xbridge.tree.to_backend"):
            piece = f"asarray({x})" if piece == "asarray" else f"xbridge.tree.to_backend({x}, 'numpy')"
        if is_code(piece):
            pieces.append(piece)
    return pieces


def is_code(text: str) -> bool:
    """Whether a piece can be typed: an option, a name in quotes, or an expression that calls something."""
    try:
        tree = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError:
        return False
    assert isinstance(tree, ast.Call)
    if tree.keywords:
        return not tree.args
    one = tree.args[0] if len(tree.args) == 1 else None
    if isinstance(one, ast.Constant):
        return isinstance(one.value, str)
    return isinstance(one, (ast.Call, ast.Subscript, ast.Attribute, ast.BinOp, ast.List, ast.ListComp))


def follow(source: str, piece: str, names: dict[str, Any]) -> object:
    """The call with a piece of advice written into it: what comes of that."""
    tree = ast.parse(source, mode="eval")
    call, advice = tree.body, ast.parse(f"f({piece})", mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(advice, ast.Call)
    for option in advice.keywords:
        call.keywords = [given for given in call.keywords if given.arg != option.arg] + [option]
    if not advice.args:
        return _run(tree, names)
    new = advice.args[0]
    if isinstance(new, ast.Constant):
        named = [given for given in call.keywords if given.arg == "backend"]
        if named:
            named[0].value = new
        else:
            call.args[-1] = new
        return _run(tree, names)
    values = [_run(ast.Expression(one), names) for one in call.args]
    several = values[0] if len(values) == 1 and type(values[0]) is list else values
    made = _run(ast.Expression(new), {**names, "x": values[0], "xs": several, "arrays": values[0]})
    if piece.startswith(_RESULTS) or piece.endswith(".tolist()"):
        return made
    if made is not None:  # or it has changed what there is
        call.args = [ast.Starred(ast.Name("made_", ast.Load()), ast.Load())] if "*xs" in piece else call.args
        call.args[0] = call.args[0] if "*xs" in piece else ast.Name("made_", ast.Load())
    return _run(tree, {**names, "made_": made})


def _run(tree: ast.Expression, names: dict[str, Any]) -> Any:
    return eval(compile(ast.fix_missing_locations(tree), "<advice>", "eval"), dict(names))


def templates(path: Path) -> Iterator[tuple[int, str]]:
    """Every hint in a file, as far as it is written there, with `{}` in place of what is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.FunctionDef, ast.Module)):
            for node in _within(scope):
                if isinstance(node, ast.Call) and len(node.args) == _MESSAGES.get(_called(node)):
                    yield from ((node.lineno, text) for text in _texts(node.args[-1], scope))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, and not in one inside it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _within(child)


def _texts(node: ast.expr, scope: ast.AST, seen: frozenset[str] = frozenset()) -> list[str]:
    """What an expression may say. `seen` are the names whose values are being read."""
    if isinstance(node, ast.Constant):
        return [str(node.value)] if node.value else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, scope, seen), *_texts(node.orelse, scope, seen)]
    if isinstance(node, ast.Name):
        if node.id in seen:  # such as `hint = better or hint`
            return []
        inside = seen | {node.id}
        return [text for value in _assigned(node.id, scope) for text in _texts(value, scope, inside)]
    return []  # another function writes it


def _assigned(name: str, scope: ast.AST) -> Iterator[ast.expr]:
    """What a name is given in a function: alone, beside another, or as a default."""
    if isinstance(scope, ast.FunctionDef):
        named = [*scope.args.posonlyargs, *scope.args.args]
        positional = named[len(named) - len(scope.args.defaults) :]
        yield from (
            value for arg, value in zip(positional, scope.args.defaults, strict=True) if arg.arg == name
        )
    for node in _within(scope):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            assert isinstance(node, ast.Assign)
            if isinstance(target, ast.Name) and target.id == name:
                yield node.value
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)  # one of them may be starred
                yield from (value for one, value in pairs if isinstance(one, ast.Name) and one.id == name)
