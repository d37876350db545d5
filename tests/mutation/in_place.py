"""Put a mutant into a running interpreter: its code replaces that of the functions that exist.

A function keeps its identity, so a reference that was taken before (in a table, by a decorator, by
`from module import name`) runs the mutant too.
"""

from __future__ import annotations

import ast
import functools
import gc
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from mutants import Mutant


class NotInPlaceError(Exception):
    """The mutant is in code that no function that exists has, so it cannot be put in."""


class Functions:
    """The functions of some files that exist now, and the caches that hold their answers."""

    def __init__(self, files: Collection[str], package: str) -> None:
        self._by_file: dict[str, list[FunctionType]] = defaultdict(list)
        self._caches: list[Any] = []
        gc.unfreeze()  # what is frozen is not among the objects
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename in files:
                self._by_file[thing.__code__.co_filename].append(thing)
            elif type(thing) is functools._lru_cache_wrapper:
                code = getattr(thing.__wrapped__, "__code__", None)
                if code is not None and code.co_filename.startswith(package):
                    self._caches.append(thing)
        gc.freeze()

    def change(self, root: Path, mutant: Mutant) -> None:
        """Run the mutant from now on, in this process."""
        file = str(root / mutant.path)
        source = Path(file).read_text()
        text = mutant.applied(source)
        old, new = compile(source, file, "exec"), compile(text, file, "exec")
        changed = dict(_codes(new))
        originals = {key: code for key, code in _codes(old) if changed.get(key, code) != code}
        done = False
        for function in self._by_file[file]:
            for key, code in originals.items():
                if _is_same(function.__code__, code):
                    if len(changed[key].co_freevars) == len(code.co_freevars):
                        function.__code__ = changed[key]
                        done = True
                    break
        done |= self._change_defaults(file, source, text)
        if not done:
            raise NotInPlaceError(mutant.id)

    def clear_caches(self) -> None:
        """Forget the answers from before."""
        for cache in self._caches:
            cache.cache_clear()

    def _change_defaults(self, file: str, source: str, text: str) -> bool:
        """Defaults belong to a function, not to its code: evaluate those that differ."""
        old, new = (list(_definitions(ast.parse(one))) for one in (source, text))
        done = False
        for before, after in zip(old, new, strict=True):
            if ast.dump(before.args) == ast.dump(after.args):
                continue
            first = min([before.lineno, *(one.lineno for one in before.decorator_list)])
            for function in self._by_file[file]:
                if (function.__code__.co_firstlineno, function.__name__) == (first, before.name):
                    values = [_value(one, function) for one in after.args.defaults]
                    function.__defaults__ = tuple(values) or None
                    named = zip(after.args.kwonlyargs, after.args.kw_defaults, strict=True)
                    function.__kwdefaults__ = {
                        name.arg: _value(one, function) for name, one in named if one is not None
                    }
                    done = True
        return done


def _definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _value(default: ast.expr, function: FunctionType) -> Any:
    return eval(compile(ast.Expression(default), function.__code__.co_filename, "eval"), function.__globals__)


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Whether two are of the same text. They may not be equal: what has run remembers what it has met."""
    place, other_place = ((code.co_qualname, code.co_firstlineno) for code in (one, other))
    return (
        place == other_place
        and one.co_code == other.co_code
        and list(one.co_positions()) == list(other.co_positions())
    )


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """The code of every function in a module, by its name and its number among those of one name."""
    seen: Counter[str] = Counter()

    def below(outer: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
        for inner in outer.co_consts:
            if isinstance(inner, CodeType):
                seen[inner.co_qualname] += 1
                yield (inner.co_qualname, seen[inner.co_qualname]), inner
                yield from below(inner)

    return below(code)
