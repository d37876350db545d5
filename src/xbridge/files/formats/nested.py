"""Nested containers of a checkpoint: one part of them, or all arrays in them under flat names.

A file may contain itself, or one container many times over. So the depth and the number of values are
bounded.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from reprlib import Repr

from xbridge.errors import type_of
from xbridge.files.errors import RefusedError, format_list, unreadable_error

_DEEPEST = 100
_MOST = 1 << 20

_SHORT = Repr()
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def pick(content: object, keys: Sequence[str], path: Path) -> object:
    """Return the part of the content that keys lead to, one key for each level."""
    for number, key in enumerate(keys):
        inside = [(str(name), value) for name, value in _children(content) if type(name) in (str, int)]
        found = [value for name, value in inside if name == key]
        if len(found) == 1:
            content = found[0]
            continue
        action = f"find {key!r} in {path}{''.join(f'[{one!r}]' for one in keys[:number])}"
        if not inside:
            raise RefusedError.build(action, f"it is {describe(content)}")
        if found:
            raise RefusedError.build(action, "it is both a string and a number there")
        raise RefusedError.build(action, f"its keys are {format_list(name for name, _ in inside)}")
    return content


def flatten_content(
    content: object, path: Path, at: Sequence[str], *, flatten: bool
) -> Iterator[tuple[str, object]]:
    """Yield the values of a container that are not containers, in order, with their names.

    With `flatten`, the values of containers inside are included, under their keys joined by dots. Without it,
    such a container raises. An empty container is a value.
    """
    waiting: list[tuple[tuple[str | int, ...], object]] = [((), content)]
    count = 0
    while waiting:
        keys, value = waiting.pop()
        children = _children(value)
        if keys and not children:
            yield ".".join(map(str, keys)), value
            continue
        if keys and not flatten:
            reason = f"{keys[0]!r} is of type {type(value).__name__}, which is not a tensor"
            hint = f"{_at_options((*at, str(keys[0])))}, or --flatten, which takes the tensors of all levels"
            raise unreadable_error(path, reason, hint)
        inside = dict(children)
        named = [((*keys, _check_key(key, inside, path, flatten=flatten)), x) for key, x in children]
        count += len(named)
        if count > _MOST or len(keys) > _DEEPEST:
            reason = f"it has more than {_MOST} values, or values more than {_DEEPEST} levels deep"
            raise unreadable_error(path, reason, "--at KEY, which takes a part of it")
        waiting += reversed(named)


def is_container(value: object) -> bool:
    """Return True for a dict, a list or a tuple."""
    return isinstance(value, dict | list | tuple)


def describe(value: object) -> str:
    """Describe a value that is not an array."""
    kind = type(value).__name__
    if type(value) in _SIMPLE:
        return "None" if value is None else f"{kind} {_SHORT.repr(value)}"
    return f"an empty {kind}" if is_container(value) and not value else type_of(value)


def _check_key(key: object, others: Container[object], path: Path, *, flatten: bool) -> str | int:
    if isinstance(key, str):
        return key
    if flatten and type(key) is int:
        return key
    hint = f"--flatten, which makes it {str(key)!r}" if type(key) is int and str(key) not in others else ""
    raise unreadable_error(path, f"the name {key!r} is not a string", hint)


def _children(value: object) -> list[tuple[object, object]]:
    """Return the keys and values of a container; none for another value."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def _at_options(keys: Iterable[str]) -> str:
    return " ".join(f"--at {shlex.quote(key)}" for key in keys)
