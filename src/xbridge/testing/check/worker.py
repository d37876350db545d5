"""The process that calls the functions of a module, and holds each of them to the default contract.

A line of JSON says what is called next, and another one what was found. So the process that reads them knows
which call has ended this one.
"""

from __future__ import annotations

import inspect
import json
import os
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge import known_backends
from xbridge.errors import MissingLibraryError
from xbridge.extend import CPU, HOST, backend_for, entries_for, get_backend
from xbridge.testing._call import Call, program
from xbridge.testing._contract import Contract, check
from xbridge.testing._diff import overlap
from xbridge.testing._matches import MismatchError
from xbridge.testing._outcome import compare, first_line, kept, outcome, parts
from xbridge.testing._precision import narrow
from xbridge.testing._reachable import ReachableState
from xbridge.testing._settings import Settings
from xbridge.testing._source import AROUND
from xbridge.testing.check.arguments import arguments_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import TextIOWrapper

    from xbridge import Device
    from xbridge.protocol import Array
    from xbridge.testing._outcome import Outcome
    from xbridge.testing._source import Recipe

    Trial = tuple[str, Call, Contract]
    """A promise, a call, and a contract to which it is held."""

_MEMORY = 0.25
"""The share of the machine's memory that the process may allocate."""

_PLAIN: Contract = {"layouts": False, "empty": False, "repeatable": False, "threads": False}
"""The contract that every function keeps: it returns, and leaves its arguments as they are."""

_NARROWER = {"float64": "float32", "complex128": "complex64", "int64": "int32"}
"""What stands for a dtype that a library does not have on a device."""


def main(path: str, spec: str, reached: str, backends: str, seconds: str) -> None:
    """Check the functions that a specification names, from a number on, and write what is found to a file."""
    with open(path, "w", encoding="utf-8") as stream:  # noqa: PTH123 -- flushed after each line
        write = partial(_write, stream)
        loaded = outcome(partial(functions_of, spec))
        if loaded.error is not None:
            write({"refused": _reason(loaded.error), "missing": _missing_library(loaded.error)})
            return
        functions, classes = loaded.result
        write({"functions": [*functions], "classes": classes})
        devices = {name: _devices(name) for name in backends.split(",")}
        _limit_memory()
        write({"ready": True})
        for name, function in [*functions.items()][int(reached) :]:
            checked = outcome(partial(_Check(name, function, float(seconds), write).run, devices))
            unknown = {"skipped": f"its check raises {_reason(checked.error)}"} if checked.error else None
            write({"done": unknown or checked.result})


def _reason(error: BaseException) -> str:
    """Return the class of an error and the first line of its message."""
    return f"{type(error).__name__}: {first_line(error)}".rstrip(": ")


def _missing_library(error: BaseException) -> str:
    """Return the array library whose import has failed; "" if an error says something else."""
    name = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ImportError) else ""
    roots = {root for backend in known_backends() for entry in entries_for(backend) for root in entry.roots}
    return name if name in roots else ""


def _write(stream: TextIOWrapper, line: object) -> None:
    print(json.dumps(line), file=stream, flush=True)


def _limit_memory() -> None:
    """Limit the memory that this process allocates."""
    try:
        import resource  # noqa: PLC0415 -- there are systems without limits
    except ImportError:
        return
    most = int(_MEMORY * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _devices(name: str) -> list[Device]:
    """Return the default device of a library and another one, if there is one: for torch, an emulated one."""
    if name == "torch" and len(get_backend(name).devices()) == 1:
        from xbridge.testing import emulated  # noqa: PLC0415 -- it imports torch

        with suppress(MissingLibraryError, RuntimeError):  # as `install` says
            emulated.install()
    return [*get_backend(name).devices()[:2]]


def functions_of(spec: str) -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """Return the functions that `MODULE` or `MODULE:FUNCTION` names, and the names of its classes.

    Those of a module are the ones that it lists in `__all__`, or defines; of a package, also those that its
    modules define.
    """
    path, colon, name = spec.partition(":")
    module = import_module(path)
    if colon:
        return {f"{path}.{name}": getattr(module, name)}, []
    listed = getattr(module, "__all__", None)
    public = [word for word in sorted(listed or vars(module)) if not word.startswith("_")]
    found: dict[str, Any] = {word: getattr(module, word, None) for word in public}

    def is_own(one: object) -> bool:
        place = getattr(one, "__module__", None) or ""
        return place == path or (hasattr(module, "__path__") and place.startswith(f"{path}."))

    def is_function(one: object) -> bool:
        is_wrapped = callable(one) and hasattr(one, "__wrapped__")
        return is_wrapped or inspect.isroutine(one) or isinstance(one, np.ufunc)

    own = {word: one for word, one in found.items() if listed or is_own(one)}
    functions = {f"{path}.{word}": one for word, one in own.items() if is_function(one)}
    return functions, [word for word, one in own.items() if inspect.isclass(one)]


class _Check:
    """The check of one function with each library, within a time."""

    def __init__(
        self, name: str, function: Callable[..., Any], seconds: float, write: Callable[[object], None]
    ) -> None:
        self._name, self._function, self._write = name, function, write
        self._end = time.process_time() + seconds
        self._settings, self._state = Settings(), ReachableState(function)
        self._known: set[tuple[object, ...]] = set()
        self._left_out: dict[str, str] = {}
        """Why a library was not used, by its name."""
        self._late: dict[str, None] = {}
        """The promises that were not checked, or not to the end, for lack of time."""

    def run(self, devices: dict[str, list[Device]]) -> dict[str, object]:
        """Write each finding, and return what was not checked."""
        found = [Call.of(self._function, *each) for each in arguments_of(self._function)]
        tried = [call._replace(state=self._state) for call in found]
        host = self._find(tried, HOST)
        self._left_out.clear()
        skipped, checked = "" if tried else "a required parameter is of no known type, or none is an array", 0
        for library, there in devices.items():
            types = get_backend(library).array_types  # NumPy's ufuncs convert those of others to NumPy's
            if isinstance(self._function, np.ufunc) and not all(hasattr(t, "__array_ufunc__") for t in types):
                self._left_out[library] = "it is a ufunc of NumPy"
                continue
            call = self._find([host] if host else tried, library)
            if call is not None and not _is_repeatable(call):
                skipped = "its results differ from call to call"
                if _is_repeatable(call.map(_surrounded)):  # it reads what is beside its arrays
                    layouts: Contract = {**_PLAIN, "layouts": True}
                    self._hold(iter([("layout", call, layouts)]))
                break
            if call is not None:
                self._hold(_trials(call, there[1:], is_first=not checked, has_host=host is not None))
                checked += 1
        self._restore()
        skipped = skipped or ("" if checked else "no arguments were found with which it works")
        return {"skipped": skipped, "left_out": self._left_out, "late": [*self._late]}

    def _find(self, tried: Sequence[Call], library: str) -> Call | None:
        """Return the first call that works with arrays of a library, and note why there is none."""
        reason = ""
        for call in tried:
            moved = call.map(partial(_at, library=library, device=CPU))
            self._announce(moved, "arguments")
            made = moved.run()
            if not (why := _refusal(made, library)):
                return moved
            reason = reason or why
            if self._is_over():
                break
        self._left_out[library] = reason
        return None

    def _hold(self, trials: Iterator[Trial]) -> None:
        """Hold calls to their contracts, and write a finding for each new problem."""
        for promise, call, contract in trials:
            self._restore()
            if self._is_over():
                self._late[promise] = None
                continue
            self._announce(call, promise)
            filled = call.fill([one.make() for one in call.recipes()])
            held = outcome(partial(check, call.f, filled.args, filled.kwargs, contract, self._is_over))
            if isinstance(held.error, MismatchError):
                found = held.error.finding._replace(function=self._name)
                cause = found.backend, found.problem, found.needed
                if cause not in self._known:
                    self._known.add(cause)
                    self._write({"finding": found._asdict()})
            elif held.error is not None or not held.result:
                self._late[promise] = None

    def _restore(self) -> None:
        """Let the next call be the first."""
        self._settings.restore()
        self._state.restore()

    def _announce(self, call: Call, promise: str) -> None:
        """Write the program of the next call, which may end the process."""
        made = program(call)
        self._write(
            {
                "backend": call.promise.backend,
                "promise": promise,
                "program": "\n".join([*made.lines, made.call]),
            }
        )

    def _is_over(self) -> bool:
        return time.process_time() > self._end


def _at(one: Recipe, *, library: str, device: Device) -> Recipe:
    """Return an array of a library on a device, in a narrower dtype if it does not have the given one."""
    name = one.dtype
    lacks = get_backend(library).unsupported_dtype(name, device) is not None
    values = one.values.astype(_NARROWER.get(name, name)) if lacks else one.values
    return one._replace(backend=library, values=values, device=device)


def _refusal(made: Outcome, library: str) -> str:
    """Return why a call does not count as one that works; "" if it does."""
    if made.error is not None:
        return f"it raises {type(made.error).__name__}"
    types = get_backend(library).array_types + ((int, float, complex, np.generic) if library == HOST else ())
    is_any = any(isinstance(part, types) for _, part in parts(made.result))
    return "" if is_any else "its result has none of its arrays"


def _is_repeatable(call: Call) -> bool:
    """Return True if a call gives the same twice, from the same state."""
    first = kept(call.run())
    return compare(call.run(), first, call.promise) is None


def _surrounded(one: Recipe) -> Recipe:
    return one._replace(properties=(AROUND,)) if one.takes(AROUND) else one


def _trials(call: Call, others: Sequence[Device], *, is_first: bool, has_host: bool) -> Iterator[Trial]:
    """Yield the calls that show whether a function keeps the default contract with a library."""
    library = call.promise.backend
    reference = call.f if has_host and library != HOST else None
    compared: Contract = {**_PLAIN, "reference": reference}
    yield ("values", call, compared)
    for device in others:
        yield ("device", call.map(partial(_at, library=library, device=device)), compared)
    yield ("layout", call, {**_PLAIN, "layouts": True})
    narrowed = call.map(narrow)
    dtypes = {one.dtype for one in call.recipes()}
    if (
        dtypes & _NARROWER.keys()
        and {get_backend(library).array_info(x).dtype for x in _arrays(call.run())} == dtypes
    ):
        yield ("dtype", narrowed, {**_PLAIN, "dtype": "kept"})
    if not get_backend(library).assumes_immutable:
        variants = [one for one in (call, call.map(_centre), narrowed) if one.run().error is None]
        sharing = [one for one in variants if _shares_memory(one)]
        if sharing and len(sharing) < len(variants):
            yield ("aliasing", sharing[0], {**_PLAIN, "aliases": False})
    if is_first:  # state does not depend on the library; these take longest
        yield ("state and threads", call, {**_PLAIN, "repeatable": True, "threads": True})


def _arrays(made: Outcome) -> list[Array]:
    """Return the arrays in a result."""
    found = [(part, backend_for(type(part))) for _, part in parts(made.result)]
    return [part for part, owner in found if owner is not None and isinstance(part, owner.array_types)]


def _centre(one: Recipe) -> Recipe:
    """Return floating numbers around zero, so that some of them are negative."""
    return one._replace(values=one.values - one.values.mean()) if one.values.dtype.kind in "fc" else one


def _shares_memory(call: Call) -> bool:
    """Return True if a result has memory in common with an argument."""
    given = [one.make() for one in call.recipes()]
    return any(overlap(x, y) for x in _arrays(outcome(call.bind(given))) for y in given)
