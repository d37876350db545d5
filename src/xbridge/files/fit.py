"""Fit the content of a file to the format of the target, by no changes but those that the caller allows.

Values and shapes never change, and the order of elements only if the target has one alone. The caller can
allow a cast in which no value changes, and the loss of a name or of metadata.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from xbridge.extend import DTYPES, native_dtype
from xbridge.files.errors import RefusedError, format_list, write_error
from xbridge.files.formats import UNNAMED, Content, Format, ambiguity_of, name_of_array
from xbridge.files.formats.stored import Cast, Relaid, Stored, name_of

RAW = re.compile(r"V\d+")
"""Matches the name of raw items, which is all that NumPy's files keep of a dtype of ml_dtypes."""


class Allowed(NamedTuple):
    """The changes that the caller allows."""

    array: str | None = None
    """The name of the only array to convert, which may be lost in a format without names."""
    casts: Mapping[str, str] = {}
    rounds: bool = False
    drop_metadata: bool = False


def fit_content(content: Content, to: Format, allowed: Allowed, target: Path) -> Content:
    """Return the content in the form that the target's format holds; raise if it cannot hold it."""
    if allowed.array is not None:
        content = content.pick(allowed.array)
    for refused in content.refused:
        error, skip = refused.error, f"--skip {shlex.quote(name_of_array(refused))}" if content.arrays else ""
        raise type(error).build(error.action, error.reason, skip if allowed.array is None else "")
    text = {} if allowed.drop_metadata else content.metadata
    if text and not to.metadata and set(text) != {"format"}:
        reason = f"its format cannot hold the metadata {format_list(text)}"
        raise write_error(target, reason, "--drop-metadata")
    _check_names(content, to, allowed, target)
    dtypes = list(dict.fromkeys(_name_of(x) for x in content.arrays))
    for name in allowed.casts.keys() - dtypes:
        reason = f"no array has that dtype, only {', '.join(dtypes) or 'none'}"
        raise RefusedError.build(f"cast {name}", reason)
    named = [replace(x, name=UNNAMED) if x.name is None and not to.unnamed else x for x in content.arrays]
    skips = allowed.array is None and len(named) > 1
    fit = [_relay(_cast(x, allowed), to, target, skips=skips) for x in named]
    return Content(fit, text if to.metadata else {}, content.others)


def _check_names(content: Content, to: Format, allowed: Allowed, target: Path) -> None:
    """Raise if arrays have the same name, or would lose a name that the caller did not pick."""
    names = [name_of_array(x) for x in content.arrays]
    for name, times in Counter(names).items():
        if times > 1:
            raise write_error(target, *ambiguity_of(name))
    if allowed.array is None and not to.names and names != [UNNAMED]:
        one = names[0] if names else "NAME"
        reason = f"it holds one array without a name, and there are {format_list(names)}"
        raise write_error(target, reason, f"--array {shlex.quote(one)}, or a suffix with names")


def _cast(x: Stored, allowed: Allowed) -> Stored:
    """Cast an array if the caller named a dtype for its dtype."""
    name = _name_of(x)
    to = allowed.casts.get(name)
    if to is None:
        return x
    if RAW.fullmatch(name):
        if to not in _named_by(x):
            raise RefusedError.build(f"cast {x.label}", f"NumPy's files do not keep {to} as {name}")
        return replace(x, dtype=native_dtype(to))
    if DTYPES[name].kind == "complex" and DTYPES[to].kind != "complex":
        raise RefusedError.build(f"cast {x.label}", f"{to} has no imaginary part")
    return Cast(x.name, native_dtype(to), x.shape, x.order or "C", x, allowed.rounds)


def _relay(x: Stored, to: Format, target: Path, *, skips: bool) -> Stored:
    """Change the axis order and byte order of an array to one that the format can hold."""
    lacks = to.lacks(x.dtype)
    if lacks:
        raise write_error(target, f"{x.label} is {x.dtype}, and {lacks}", _dtype_hint(x, skips=skips))
    if x.order in to.orders and (x.dtype.isnative or to.swaps):
        return x
    return Relaid(x.name, x.dtype.newbyteorder("="), x.shape, "C", x, target.parent)


def _name_of(x: Stored) -> str:
    return name_of(x.dtype).lstrip("|")


def _named_by(x: Stored) -> list[str]:
    """Return the dtypes of ml_dtypes whose raw items NumPy has written; none for other arrays."""
    if not RAW.fullmatch(_name_of(x)):
        return []
    return [
        name
        for name, facts in DTYPES.items()
        if native_dtype(name).itemsize == x.dtype.itemsize and native_dtype(name).str[1:] == _name_of(x)
    ]


def _dtype_hint(x: Stored, *, skips: bool) -> str:
    """Return a hint for a dtype that the format lacks, and with `skips` one that leaves the array out."""
    raw, meaning = _named_by(x), DTYPES.get(_name_of(x))
    if meaning and meaning.kind == "float" and meaning.bits < 32:
        return f"a .safetensors or .pt file, or --cast {x.dtype}=float32, which changes no value"
    if len(raw) == 1:
        return f"--cast {_name_of(x)}={raw[0]}"
    skip = f", or --skip {shlex.quote(name_of_array(x))}" if skips else ""
    return f"a .npz file{skip}"
