"""The functions of a module that take arrays, and what their library declares of them.

A function is left out if calling it with invented arguments may do harm or cannot be repeated: it writes
files, runs programs or draws random numbers.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbridge._registry.registry import backend_for, entries_for, is_available, known_backends
from xbridge.backends import HOST
from xbridge.errors import OptionError
from xbridge.testing._outcome import first_line, outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

_RANDOM = re.compile(r"rng|random|seed|generator$|key$|(n_)?resamples$")
"""The beginnings of the names of parameters that control random numbers."""

_UNSAFE_NAME = re.compile(
    r"^(_|test_|set_|rand(?!_(score|index|error)))|(^|_)(save|load|write|read|open|dump|plot|show|print|fetch|download|rvs|random|seed"
    r"|register|delete|remove|main|run|exec|import|install"
    r"|unlink|rmdir|rmtree|removedirs|rename|mkdir|makedirs|chmod|kill|send|upload)(_|$)"
)
_DRAWS = re.compile(r"random\.")
_SEEDED = re.compile(r"(seed|default_rng|RandomState)\(\s*\d")
"""The choice of the random numbers that follow."""

WRITES = re.compile(
    r"\b(open|tofile|memmap|write(_\w+)?|save(z|z_compressed|txt|mat|fig|_file)?|dump|to_(csv|json|pickle|parquet)"
    r"|unlink|rmdir|rmtree|removedirs|rename|touch|mkdir|makedirs|truncate|chmod|system|popen|urlopen)\("
    r"|(?<!\.)\bremove\(|\bos\.(remove|replace|exec|spawn|fork)|subprocess|shutil|socket"
)
"""Calls that change files or run programs."""


class Target(NamedTuple):
    """A function to check."""

    name: str
    """The module and the name by which it is imported."""
    function: Callable[..., Any]
    setup: tuple[str, ...] = ()
    """Statements that enable arrays of other libraries in its package."""
    backend: str = ""
    """The only library whose arrays it takes; "" for any."""
    reference: Callable[..., Any] | None = None
    """NumPy's function, if it is one of a single library."""
    declaration: Callable[..., Any] | None = None
    """The function of the standard, if it is one of a namespace: its signature says how to call it."""
    code: str = ""
    """The definition of the function `f` in a program, if it is a method."""

    @property
    def place(self) -> tuple[str, str]:
        """The module, and the name in it: that of a function, or `CLASS.METHOD`."""
        words = self.name.rsplit(".", 2 if self.code else 1)
        return words[0], ".".join(words[1:])

    @property
    def spec(self) -> str:
        """The name as `MODULE:FUNCTION`."""
        return ":".join(self.place)


_SETUP: dict[str, tuple[str, ...]] = {
    "scipy": ("import os", "os.environ['SCIPY_ARRAY_API'] = '1'"),
    "sklearn": (
        "import os",
        "os.environ['SCIPY_ARRAY_API'] = '1'",
        "import sklearn",
        "sklearn.set_config(array_api_dispatch=True)",
    ),
}
"""Packages that dispatch by array library only if they are told to."""


def find_targets(spec: str) -> list[Target]:
    """Return the functions that `MODULE` or `MODULE:FUNCTION` names.

    Raises
    ------
    OptionError
        There is no such module or function.
    """
    path, colon, name = spec.partition(":")
    setup = _SETUP.get(path.partition(".")[0], ())
    exec("\n".join(setup), {})  # noqa: S102 -- our own statements
    with redirect_stdout(sys.stderr):  # what a module prints is not a result
        loaded = outcome(partial(import_module, path))
    if loaded.error is not None:
        reason = first_line(loaded.error) or type(loaded.error).__name__
        if isinstance(loaded.error, SystemExit):
            reason = "it ends the process when it is imported"
        raise OptionError.build(f"check {spec!r}", reason, "MODULE or MODULE:FUNCTION") from loaded.error
    module: ModuleType = loaded.result
    owner, _, method = name.rpartition(".")
    found = getattr(getattr(module, owner, None), method, None) if owner else getattr(module, name, None)
    if colon and not callable(found):
        raise OptionError.build(f"check {spec!r}", f"{path} has no such function", path)
    if owner or inspect.isclass(found):
        cls = getattr(module, owner or name)
        return [
            _target_of_method(path, cls, word, setup) for word in ([method] if owner else methods_of(cls))
        ]
    backend, beside, standard = _namespace_of(path)
    names = (
        [name]
        if colon
        else [word for word in _public(module) if not backend or _is_of(module, word, standard)]
    )
    classes = [] if colon or backend else [getattr(module, word) for word in _public(module, inspect.isclass)]
    targets = [_target_of_method(path, cls, word, setup) for cls in classes for word in methods_of(cls)]
    return targets + [
        Target(
            f"{path}.{word}",
            getattr(module, word),
            setup,
            backend,
            getattr(beside, word, None),
            getattr(standard, word, None),
        )
        for word in names
    ]


def _is_of(module: ModuleType, name: str, standard: ModuleType | None) -> bool:
    """Return True if a function is one of the standard, or of the package of an array namespace itself."""
    root = module.__name__.partition(".")[0]
    place = getattr(getattr(module, name), "__module__", None) or ""
    return hasattr(standard, name) or place.startswith(f"{root}.")


def _namespace_of(path: str) -> tuple[str, ModuleType | None, ModuleType | None]:
    """Return the library of an array namespace that a module is a part of, and that part of others.

    The others are NumPy's, and array_api_strict's or, without it, NumPy's again.
    """
    words = path.split(".")
    for count in range(len(words), 0, -1):
        place = sys.modules[".".join(words[:count])]
        if hasattr(place, "__array_namespace_info__"):
            backend = backend_for(type(place.asarray([0.0])))
            if backend is None or backend.name == HOST:
                return "", None, None
            beside, standard = (
                outcome(partial(import_module, ".".join([root, *words[count:]]))).result
                for root in ("array_api_compat.numpy", "array_api_strict")
            )
            return backend.name, beside, standard or beside
    return "", None, None


def _is_function(x: object) -> bool:
    return callable(x) and (inspect.isroutine(x) or isinstance(x, np.ufunc) or hasattr(x, "__wrapped__"))


def _public(module: ModuleType, is_asked: Callable[[object], bool] = _is_function) -> Iterator[str]:
    """Yield the names of the functions, or of other objects, that belong to a module.

    Without `__all__`, those are its own, and of a package also those of its modules. A module that has none
    shows those of private ones; what another imports from there are its helpers.
    """
    root = module.__name__.partition(".")[0]
    names = getattr(module, "__all__", None)
    found = {name: getattr(module, name, None) for name in (vars(module) if names is None else names)}
    places = {
        name: getattr(one, "__module__", None) or root
        for name, one in sorted(found.items())
        if is_asked(one) and not name.startswith("_")
    }
    is_whole = names is not None or module.__package__ == module.__name__
    has_own = module.__name__ in places.values()
    for name, place in places.items():
        is_moved = place.startswith(f"{root}.") and (is_whole or (not has_own and "._" in place))
        if names is not None or place == module.__name__ or is_moved:
            yield name


def methods_of(cls: type) -> Iterator[str]:
    """Yield the names of the public methods that a class or a base of it in its package defines."""
    root = cls.__module__.partition(".")[0]
    for name in sorted({*dir(cls)}):
        found = inspect.getattr_static(cls, name)
        place = getattr(found, "__module__", None) or ""
        is_bound = isinstance(found, staticmethod | classmethod)
        if (
            name.startswith("_")
            or place.partition(".")[0] != root
            or not (inspect.isfunction(found) or is_bound)
        ):
            continue
        if len(inspect.signature(getattr(cls, name)).parameters) > 1 - is_bound:
            yield name


def _target_of_method(path: str, cls: type, name: str, setup: tuple[str, ...]) -> Target:
    """Return a method as a function: it takes the arguments that its class requires before its own ones.

    Each call makes a new object, so that no call depends on the one before. A static method or a class method
    needs none.
    """
    lines = (*setup, f"from {path} import {cls.__name__}")
    if isinstance(inspect.getattr_static(cls, name), staticmethod | classmethod):
        code = f"f = {cls.__name__}.{name}"
        return Target(f"{path}.{cls.__name__}.{name}", getattr(cls, name), lines, code=code)
    made = outcome(partial(inspect.signature, cls)).result or inspect.Signature()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = [one for one in made.parameters.values() if one.kind in positional and one.default is one.empty]
    method = getattr(cls, name)
    own = [*inspect.signature(method).parameters.values()][1:]
    taken = {one.name for one in own}
    first = [one.replace(name=f"{one.name}_" * (one.name in taken) or one.name) for one in first]

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(cls(*args[: len(first)]), name)(*args[len(first) :], **kwargs)

    plain = [one.replace(kind=inspect.Parameter.POSITIONAL_ONLY) for one in first]
    starred: Any = call
    starred.__signature__ = inspect.Signature(sorted([*plain, *own], key=lambda one: one.kind))
    call.__module__ = cls.__module__
    call.__name__, call.__doc__ = name, f"{inspect.getdoc(cls)}\n\n{inspect.getdoc(method)}"
    starred.__wrapped__ = method
    names = "".join(f"{one.name}, " for one in first)
    code = f"f = lambda {names}*args, **kwargs: {cls.__name__}({names[:-2]}).{name}(*args, **kwargs)"
    return Target(f"{path}.{cls.__name__}.{name}", call, lines, code=code)


def unsafe(target: Target) -> str:
    """Return why a function is not called; "" if it may be called."""
    if _UNSAFE_NAME.search(target.name.rpartition(".")[2]):
        return "its name suggests an effect"
    signature = outcome(partial(inspect.signature, target.function))
    parameters = {*signature.result.parameters} if signature.error is None else set[str]()
    if any(map(_RANDOM.match, parameters - ({"key"} if "query" in parameters else set[str]()))):
        return "it draws random numbers"
    function = inspect.unwrap(target.function)
    source = _source(function)
    if (_DRAWS.search(source) and not _SEEDED.search(source)) or any(
        map(WRITES.search, map(_source, _called(function)))
    ):
        return "it may write, run or draw something"
    return ""


def missing_among(packages: Iterable[str]) -> list[str]:
    """Return the array libraries among some packages that cannot be imported."""
    asked = {*packages}
    return [
        name
        for name in known_backends()
        if asked.intersection(root for entry in entries_for(name) for root in entry.roots)
        and not is_available(name)
    ]


def named_among(backends: Iterable[str], names: set[str]) -> list[str]:
    """Return the libraries that some names in code are of: all, if one asks for a namespace."""
    is_any = any("namespace" in name for name in names)
    return [
        one
        for one in backends
        if is_any or names.intersection(root for entry in entries_for(one) for root in entry.roots)
    ]


def packages_of(error: BaseException) -> set[str]:
    """Return the packages whose import raised an error: the one that is missing, and those that ran."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [getattr(error, "name", None), *(frame.f_globals.get("__name__") for frame in frames)]
    return {str(name).partition(".")[0] for name in names}


def packages_named(target: Target) -> set[str]:
    """Return the names that a function and those that it calls use: that of a missing package is one."""
    codes = (getattr(one, "__code__", None) for one in _called(inspect.unwrap(target.function)))
    return {name.partition(".")[0] for code in codes if code for name in code.co_names}


def _called(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return a function and those of its module that it may call, at any depth, by the names in its code."""
    found = [function]
    for one in found:
        names = getattr(getattr(one, "__code__", None), "co_names", ())
        inside = [getattr(one, "__globals__", {}).get(name) for name in names]
        found += [
            each
            for each in inside
            if inspect.isfunction(each) and each.__module__ == one.__module__ and each not in found
        ]
    return found


def _source(function: Callable[..., Any]) -> str:
    """Return the source of a function without its docstring and comments; "" if it has none."""
    found = outcome(partial(inspect.getsource, function))
    return re.sub(r'""".*?"""|#.*?$', "", found.result or "", flags=re.DOTALL | re.MULTILINE)


class Declared(NamedTuple):
    """What a library declares of one of its functions."""

    backends: tuple[str, ...] = ()
    """Backends that it does not support."""
    host_only: bool = False
    lazy: bool = True
    jit: bool = True


def declared(target: Target) -> Declared:
    """Return what the package of a function declares: SciPy in a table, scikit-learn by its helpers."""
    root = target.name.partition(".")[0]
    function = target.function
    if root == "scipy":
        table = getattr(sys.modules.get("scipy._lib._array_api"), "xp_capabilities_table", {})
        found = outcome(lambda: table.get(function))
        return _of_scipy(found.result) if found.result else Declared(_ALL)
    if root == "sklearn":
        source = outcome(partial(inspect.getsource, inspect.unwrap(function)))
        if source.error is None and "get_namespace" not in source.result:
            return Declared(_ALL)
        return Declared(("dask", "jax"), lazy=False, jit=False)
    return Declared()


_ALL = ("torch", "jax", "dask", "cupy", "array_api_strict")
_OF_SCIPY = {"jax.numpy": "jax", "dask.array": "dask"}


def _of_scipy(table: dict[str, Any]) -> Declared:
    """Read an entry of SciPy's table."""
    if table["np_only"] or table["out_of_scope"]:
        kept = {_OF_SCIPY.get(name, name) for name in table["exceptions"]}
        return Declared(
            tuple(name for name in _ALL if name not in kept), host_only=True, lazy=False, jit=False
        )
    listed = [*table["skip_backends"], *table["xfail_backends"]]
    names: list[str] = [one[0] if isinstance(one, tuple) else one for one in listed]
    return Declared(
        tuple(_OF_SCIPY.get(name, name) for name in names),
        host_only=bool(table["cpu_only"]),
        lazy=not table["allow_dask_compute"],
        jit=bool(table["jax_jit"]),
    )
