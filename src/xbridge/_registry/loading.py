"""Import and check the module of a backend and find those of plugins, or raise the reason why not."""

from __future__ import annotations

import sys
from importlib import import_module

from xbridge.backends import Entry
from xbridge.errors import (
    FOREIGN_ERRORS,
    Chained,
    MissingLibraryError,
    OptionError,
    UnknownBackendError,
    shown,
    type_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

Module: type[ModuleType] = type(sys)  # an import of `types` would take longer

OTHER_NAMES = {"np": "numpy", "jnp": "jax", "da": "dask", "cp": "cupy", "pytorch": "torch"}
"""Usual other names of libraries."""

_SIMILARITY = 0.8
"""The least similarity of a name that is suggested. With less, `scipy` and `numba` would suggest others."""


def load(name: str, entry: Entry) -> Any:
    """Import the module of a backend, and check the names that it defines."""
    module = _import(name, entry.module, entry) if isinstance(entry.module, str) else entry.module
    fault = next(_faults(name, module), None)
    if fault:
        raise OptionError.build(f"use backend {name!r}", f"its module {entry} {fault[0]}", fault[1])
    return module


def _import(name: str, path: str, entry: Entry) -> ModuleType:
    with Chained(lambda error: _import_failure(name, path, entry, error)):
        try:
            return import_module(path)
        except SystemExit as error:  # of a library that ends the program, as without a driver that it needs
            raise ImportError(repr(error)) from error


def _import_failure(name: str, path: str, entry: Entry, error: Exception) -> MissingLibraryError:
    absent = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
    if absent and entry.package and f"{path}.".startswith(f"{absent}."):
        reason = f"the package {entry.package} announces a module {path}, and there is none"
        hint = f"pip install --upgrade {entry.package}"
    elif absent.partition(".")[0] in {*entry.roots, path.partition(".")[0]}:
        reason, hint = f"{absent.partition('.')[0]} is not installed", entry.install
    else:
        reason, hint = f"importing {entry} failed with {error!r}", f'python -c "import {path}"'
    return MissingLibraryError.build(f"use backend {name!r}", reason, hint)


def _faults(name: str, module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield each reason why a module is not a backend, with a hint."""
    from xbridge._core.protocol import (  # noqa: PLC0415 -- 20 ms, and comes with the first backend
        CONSTANTS,
        REQUIRED,
        REQUIRED_TOGETHER,
        names_written,
    )

    words = names_written(module)
    missing = [word for word in REQUIRED if word not in words]
    if missing:
        yield f"has no {', '.join(missing)}", f"writing {', '.join(REQUIRED)} in it"
    for word in words:
        value, kind = getattr(module, word), CONSTANTS.get(word)
        if kind is None and not callable(value):
            yield f"says {word} = {value!r}, which is not a function", f"def {word}, or another name"
        if kind is not None and not isinstance(value, kind):
            yield f"says {word} = {value!r}, which is not a {kind.__name__}", f"{word} = {kind.__name__}(...)"
    for word in filter(words.__contains__, ("array_types", "scalar_types")):
        strange = [cls for cls in getattr(module, word) if not isinstance(cls, type)]
        if strange:
            yield f"names {strange[0]!r} in {word}, which is not a type", f"types alone in {word}"
    for word, *others in REQUIRED_TOGETHER:
        lacking = [other for other in others if word in words and other not in words]
        if lacking:
            yield f"has {word}, and no {', '.join(lacking)}", f"writing {', '.join(lacking)} too"
    if module.name != name:
        yield f"is named {module.name!r}", f"name = {name!r}"


def find_plugins() -> dict[str, tuple[Entry, ...]]:
    """Return the entries that installed packages announce, by name, without importing their modules."""
    from importlib.metadata import distributions  # noqa: PLC0415 -- 11 ms, and only a miss needs it

    claims: dict[str, tuple[Entry, ...]] = {}
    for package in distributions():
        try:
            points = [point for point in package.entry_points if point.group == "xbridge.backends"]
        except FOREIGN_ERRORS:  # its metadata is broken
            continue
        for point in points:
            entry = Entry(point.value, (point.name,), f"pip install {package.name}", package.name)
            held = claims.get(point.name, ())
            if package.name not in [claim.package for claim in held]:  # else a second copy on `sys.path`
                claims[point.name] = (*held, entry)
    return claims


def unknown_backend_error(name: object, names: tuple[str, ...]) -> UnknownBackendError:
    """Return the error for an unknown name. Its hint is a similar name, or the first part of a dotted one."""
    from difflib import get_close_matches  # noqa: PLC0415 -- 6 ms, and only an error needs it

    from xbridge._core.wording import option_of, text_of  # noqa: PLC0415 -- as above

    known = f"the known names are {', '.join(names)}"
    word = option_of(name, ["device", "dtype"])
    if word:
        hint = f"backend='torch', {word}={text_of(name)}"
        return UnknownBackendError.build(f"find a backend by {shown(name)}", f"it is a {word}", hint)
    if isinstance(name, str):
        root = name.casefold().partition(".")[0]
        near = get_close_matches(OTHER_NAMES.get(root, root), names, n=1, cutoff=_SIMILARITY)
        return UnknownBackendError.build(f"find backend {shown(name)}", known, repr(near[0]) if near else "")
    if isinstance(name, Module):
        title = f"the module {name.__name__}"
        called = shown(name, lambda _: title)
        return UnknownBackendError.build(f"find a backend by {called}", known)
    cls = name if isinstance(name, type) else type(name)
    root = str(cls.__module__).partition(".")[0]
    if text_of(name) == "y":
        reason = "it is an array, and like= takes one"
        return UnknownBackendError.build(f"find a backend by {type_of(name)}", reason, "asarray(x, like=y)")
    hint = repr(root) if root in names else ""
    reason = f"a backend is a name or a module, and {known}"
    return UnknownBackendError.build(f"find a backend by {shown(name)}", reason, hint)
