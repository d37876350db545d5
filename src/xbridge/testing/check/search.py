"""A staged search for failures of functions of arrays, over libraries, within a time.

Each function is called with plain arrays of each library first. A library with which this fails has one
finding. With the others, one property at a time is added. What a library cannot do itself, or the package of
the function declares as unsupported, is not a finding.
"""

from __future__ import annotations

import inspect
import re
import sys
import time
from functools import partial, wraps
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from xbridge._registry.registry import get, known_backends
from xbridge.backends import HOST
from xbridge.testing import _derived
from xbridge.testing._call import program, removals
from xbridge.testing._contract import races, repetitions, roundings
from xbridge.testing._outcome import Difference, Promise, compare, first_line, is_panic, outcome, parts
from xbridge.testing._reachable import ReachableState
from xbridge.testing._reproduction import reproduction
from xbridge.testing._settings import Settings
from xbridge.testing._source import is_described, properties_of
from xbridge.testing.check.draws import calls_like, is_as_described, is_degenerate, run_draws
from xbridge.testing.check.findings import Checked, Finding, name_of, needs
from xbridge.testing.check.ghostwriting import write_test
from xbridge.testing.check.names import begins_with, ends_with, has_word
from xbridge.testing.check.native import library_of, on_plain_arrays, takes_only
from xbridge.testing.check.relations import namesake, negative_axes, rules, ufunc_methods
from xbridge.testing.check.shrinking import Failure, fail, line_of_definition, shrink
from xbridge.testing.check.signatures import Base, bases, call_plainly
from xbridge.testing.check.stages import Stage, devices_of, exists, plain, stages, with_values
from xbridge.testing.check.targets import declared, missing_among, named_among, packages_named, unsafe
from xbridge.testing.check.triage import DEFAULT, PANIC, class_of_stage, classify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from xbridge.testing._call import Call
    from xbridge.testing.check.targets import Declared, Target

_OF_DTYPES = re.compile(
    r"not implemented for|dtypes? (is|are) allowed|cannot be promoted|only .* dtype|No loop matching"
    r"|must (be|have) (a )?(real|floating|complex|numeric)|invalid dtype|can't convert complex|same dtype"
    r"|unrecognized dtype|uint64|promotion|expected (scalar type|.* to have dtype|m1 and m2|a floating)"
    r"|Implicit conversion|could not infer output dtype|to have floating point|not 'complex'"
    r"|complex (numbers|values)",
    re.IGNORECASE,
)
"""Messages by which a library refuses a dtype that it does not have, or a mixture of dtypes."""

_UNSUPPORTED = re.compile(
    r"not (currently )?support|unsupported|does not support|not available"
    r"|type unknown|unknown (array|tensor)? ?type|not be permitted|\brechunk\b|only supports?\b",
    re.IGNORECASE,
)
"""Messages by which a library refuses what it does not have, or chunks that its function does not take."""


_UNORDERED = re.compile(r"(arg)?partition|\w*roots|\w*zpk\w*|\w*2sos|eig\w*|poles")
"""Words in the names of functions whose results have no specified order."""

_EMPTY = re.compile("empty")
"""The first word in the names of functions whose results have no specified values."""

_LIKE = re.compile("like")
"""The last word in the names of functions without a gradient: they read the shape and the dtype alone."""

_NO_AXIS = re.compile(r"\b(axis|axes|dimension|dim)\b.*out of (bounds|range)", re.IGNORECASE)
"""Messages that a 0-d array does not have an axis, which NumPy's reductions ignore."""

_CONSTANT = re.compile(r"stop|detach(ed)?|nograd|constant", re.IGNORECASE)
"""Words in the names of functions whose purpose is a result without a gradient."""

_MISSING = ("raises NotImplementedError", "raises ImportError", "raises ModuleNotFoundError")
"""How a function says that it does not support a library."""

_SETS = re.compile(r"unique|union1?d?|setdiff(1d)?|setxor(1d)?|intersect(1d)?|in1d|isin")
"""Words in the names of functions for which NaNs are not equal in the standard, and are in NumPy."""


TIME_IS_OVER = "the time is over"


def check(
    targets: Iterable[Target],
    backends: Iterable[str],
    words: dict[str, str],
    seconds: float,
    *,
    options: Options | None = None,
    asked: Iterable[str] = (),
    before: Callable[[str], object] = str,
) -> Iterator[Checked]:
    """Check functions one after the other. Each has an equal share of the time that is left.

    Parameters
    ----------
    targets : iterable of Target
        The functions.
    backends : iterable of str
        The libraries to call them with. NumPy is the reference.
    words : dict
        Kinds of arguments by name, see `xbridge-array check --help`.
    seconds : float
        The time for all of them.
    options : Options, optional
        Which classes of findings are looked for, the seed of the draws, and the time for each function.
    asked : iterable of str
        Functions as `MODULE:FUNCTION` that the caller names, and that are called whatever they may do.
    before : callable
        It is called with the backend and the program of each call, before the call; and with "" before each
        function.

    Yields
    ------
    Checked
        The findings of a function, or the reason why it was not called.
    """
    options = options or Options()
    listed = list(targets)
    end = time.monotonic() + seconds
    for number, target in enumerate(listed):
        left = end - time.monotonic()
        reason = "" if target.spec in asked else unsafe(target)
        reason = reason or (TIME_IS_OVER if left <= 0 else "")
        if reason:
            yield Checked(target.name, [], reason)
            continue
        limit = Limit(options.each, share_of(left, len(listed) - number, options.each))
        one = _Check(target, tuple(filter(is_described, backends)), words, options, limit, before)
        found = outcome(one.run)
        reason = f"its check raises {type(found.error).__name__}: {first_line(str(found.error))}"
        yield found.result or Checked(target.name, one.findings, reason)


_CLOCK = 10.0
"""How many seconds on the clock are allowed for one second of processor time, because machines are busy."""


def share_of(seconds: float, count: int, each: float) -> float:
    """Return the seconds on the clock for the next of some functions, which have a time together."""
    return max(min(seconds / count, _CLOCK * each), 1.0)


class Options(NamedTuple):
    """How functions are checked."""

    include: tuple[str, ...] = DEFAULT
    """The classes of findings."""
    seed: int = 0
    each: float = 2.0
    """The seconds of processor time for each function."""
    draws: int = 100
    """The most calls of a function that are drawn with each library."""


class Limit:
    """Seconds of processor time and of the clock, whichever are over first."""

    def __init__(self, processor: float, clock: float) -> None:
        self._processor, self._clock = time.process_time() + processor, time.monotonic() + clock

    def is_over(self) -> bool:
        """Return True if no time is left."""
        return time.process_time() > self._processor or time.monotonic() > self._clock

    def share(self, part: float) -> Limit:
        """Return a limit for a part of the remaining time."""
        left = self._processor - time.process_time(), self._clock - time.monotonic()
        return Limit(left[0] * part, left[1] * part)


class _RepeatError(Exception):
    """Raised if the results of a function differ from call to call."""


class _Check:
    """The check of one function: the stages of each base with each library, and then draws."""

    def __init__(
        self,
        target: Target,
        backends: tuple[str, ...],
        words: dict[str, str],
        options: Options,
        limit: Limit,
        before: Callable[[str], object],
    ) -> None:
        self.findings: list[Finding] = []
        self._seen: list[Finding] = []
        """All findings, those of classes that are off and those whose program does not fail too."""
        self._target, self._words, self._options = target, words, options
        self._backends, self._limit, self._before = backends, limit, before
        self._known = declared(target)
        self._package = target.name.partition(".")[0]
        self._bases: list[Base] = []
        self._returned: list[str] = []
        self._first = ""
        """The library with which the state between calls is looked for."""
        self._state, self._settings = ReachableState(target.function), Settings()

    def run(self) -> Checked:
        """Check the function until the time is over. The findings are appended as they are found."""
        self._before("")
        self._target, self._bases = arguments_of(self._target, self._words, self._backends, self._announce)
        name, library = self._target.name, self._target.backend
        if not self._bases and (lacks := missing_among(packages_named(self._target))):
            return Checked(name, [], needs(lacks), lacks=True)
        if not self._bases:
            return Checked(name, [], "no arguments were found with which it works; try --args")
        used = [each for each in self._backends if library in ("", each)]
        if not used:
            return Checked(name, [], f"it takes arrays of {library} alone, which --backends does not name")
        if not plain(self._target, self._bases[0], HOST).recipes():
            used = [HOST]
        used = [each for each in used if each not in self._known.backends]
        is_complete, self._first = True, next(iter(used), "")
        for number, backend in enumerate(used):
            limit = self._limit.share(1 / (len(used) - number))
            try:
                is_complete &= self._check_with(backend, limit)
            except _RepeatError:
                return Checked(name, [], "its results differ from call to call")
        self._state.restore()
        test = write_test(self._target, plain(self._target, self._bases[0], HOST)) if used else ""
        meant = named_among(self._returned, packages_named(self._target))
        return Checked(
            name, self.findings, "", is_complete, tuple(used), tuple(self._returned), tuple(meant), test
        )

    def _check_with(self, backend: str, limit: Limit) -> bool:
        """Run the stages with a library, and then draws. Return False if the time is over before."""
        passing: list[tuple[str, Call]] = []
        stages_limit = limit.share(_SHARE_OF_STAGES)
        for number, base in enumerate(self._bases):
            call = plain(self._target, base, backend)
            passing.append((base.label, call))
            for stage in map(self._alone, self._stages(call, stages_limit, is_first=number == 0)):
                if stages_limit.is_over():
                    return False
                kind = class_of_stage(stage.group, stage.label, is_optional=bool(base.label))
                is_asked = stage.group == "plain" or kind in self._options.include
                if not is_asked and kind != "special-values":
                    continue
                self._announce(backend, stage.call)
                if not is_asked and not is_panic(_run(stage.call)):  # it may end the process, or not return
                    continue
                if stage.call.by is None and not exists(stage):
                    continue
                if self._judge(stage, backend, base.label, limit) and stage.group == "plain":
                    passing.pop()
                    if number == 0:
                        return True
                    break
                if stage.group == "plain" and number == 0 and library_of(call.run().result) == backend:
                    self._returned.append(backend)
        self._draw(backend, passing, limit)
        return True

    def _stages(self, call: Call, limit: Limit, *, is_first: bool) -> Iterator[Stage]:
        """Yield the plain call, what it leaves behind, the stages of one property each, and threads."""
        yield Stage("plain", "", call)
        if is_first and call.promise.backend == self._first:
            for one in repetitions(call, self._state, self._settings):
                yield Stage("state", "another call", one._replace(state=self._state))
            for one in roundings(call):
                yield Stage("precision", "float64", one)
        yield from _all_stages(call, self._target, self._known, is_first=is_first)
        if is_first and call.promise.backend == self._first:
            for one in races(call, self._state, limit.share(_SHARE_OF_THREADS).is_over):
                yield Stage("state", "another thread", one)

    def _alone(self, stage: Stage) -> Stage:
        """Let the call be the first one if earlier calls matter, which is a finding that explains others."""
        is_stateful = any(one.category == "state" for one in self._seen)
        return stage._replace(call=stage.call._replace(state=self._state)) if is_stateful else stage

    def _draw(self, backend: str, calls: list[tuple[str, Call]], limit: Limit) -> None:
        """Judge calls that Hypothesis draws."""
        devices = () if self._known.host_only else devices_of(backend)

        def judge(drawn: tuple[str, Call]) -> None:
            label, call = drawn
            stage = self._alone(Stage("draws", "", call))
            self._announce(backend, call)
            if not call.recipes():
                _run(call)
            elif exists(stage) and is_as_described(call) and not is_degenerate(call):
                self._judge(stage, backend, label, limit)

        special = "special-values" in self._options.include
        if calls and self._options.draws:
            drawn, options = calls_like(calls, devices, special=special), self._options
            run_draws(drawn, judge, options.seed, options.draws, limit.is_over)

    def _announce(self, backend: str, call: Call) -> None:
        """Store the program of the next call."""
        self._before(f"{backend}\n{program(call).text}")

    def _judge(self, stage: Stage, backend: str, label: str, limit: Limit) -> bool:
        """Run a stage, and append a finding of its simplest call that fails. Return True if it fails."""
        failure = fail(stage.call, self._package)
        if failure is None or _is_noise(stage, failure.difference):
            return False
        if stage.group in _REPEATED and self._is_explained(failure, backend, stage.group):
            return True
        if failure.difference.kind == "values" and _is_repeated(stage, backend):
            if self._state.is_empty or fail(stage.call._replace(state=self._state), self._package):
                raise _RepeatError
            return False  # it depends on earlier calls, which is a finding
        needed: list[str] = []
        whole = failure
        if stage.call.by is None or class_of_stage(stage.group, stage.label) == "overflow":
            failure, needed = shrink(failure, self._package, limit.is_over)
        if _is_unstable(failure, needed):
            return True
        if label.isidentifier() and label not in failure.call.kwargs:
            label = ""
        group, words = _cause(stage, needed)
        words = [*words, f"{label}=" if label.isidentifier() else label] if label else words
        kind, message = failure.difference.kind, failure.difference.message
        code = _program_of(failure)
        if _DOES_NOT_FAIL in code:
            code = _program_of(whole)
        name = self._target.name
        finding = Finding(name, backend, kind, tuple(words), message, code, group, failure.line)
        finding = classify(finding, is_optional=bool(label))
        self._seen.append(finding)
        if finding.category in self._options.include and _DOES_NOT_FAIL not in code:
            line = finding.line or line_of_definition(self._target.function, self._package)
            finding = finding._replace(line=line)
            if _cause_of(finding) not in map(_cause_of, self.findings):  # each axis fails by itself
                self.findings.append(finding)
        return True

    def _is_explained(self, failure: Failure, backend: str, group: str) -> bool:
        """Return True if a finding shows what fails: the same problem with properties that the call has."""
        names = {name for name, _ in removals(failure.call)}
        names |= {name.partition(" ")[0] for name in names}  # a transposed batch is transposed
        for one in self._seen:
            if one.category == "special-values" and one.category not in self._options.include:
                continue  # no such values are drawn, except for equal ones
            if (one.backend, one.problem, one.line) == (backend, failure.difference.kind, failure.line):
                needed = {*one.needed} & _PROPERTIES
                if needed <= names and (needed or group == "draws"):
                    return True
        return False


_REPEATED = ("layout", "device", "draws")
"""Groups of stages in which one cause makes many calls fail."""

_DOES_NOT_FAIL = "this program does not fail"


def _cause_of(finding: Finding) -> Finding:
    """Return a finding without what differs between calls that fail for one cause."""
    return finding._replace(message="", program="")


def _run(call: Call) -> BaseException | None:
    """Call the function, and return what it raises."""
    return outcome(call.bind(one.make() for one in call.recipes())).error


_SHARE_OF_THREADS = 0.3
"""The part of the time that is left after its other stages, for a function in threads."""

_SHARE_OF_STAGES = 0.7
"""The part of the time of a library that its stages may take. Draws have the rest."""

_PROPERTIES = {"another device", *(name for backend in known_backends() for name in properties_of(backend))}

_LAYOUTS = _PROPERTIES - {"another device"}


def _program_of(failure: Failure) -> str:
    """Return a program that shows a failure. That of a method defines its function."""
    code = reproduction(failure.call, failure.difference)
    return code.removesuffix("\n# f is the function of the test")


def _cause(stage: Stage, needed: list[str]) -> tuple[str, list[str]]:
    """Return the group of a failure, and the words for its cause."""
    if stage.group == "draws":
        groups = {"layout": _LAYOUTS, "device": {"another device"}, "values": {"NaN", "infinity"}}
        group = next((name for name, words in groups.items() if words.intersection(needed)), "draws")
        return group, needed or [_THESE]
    group, words = stage.group, needed
    if group == "layout" and not needed:  # the layout does not matter, but the form that it needs does
        return _FORMED.get(stage.label, ("shape", ["more axes"]))
    if stage.label and group != "device" and (not needed or group in ("dtype", "values")):
        words = [stage.label]
    if group == "device" and "another device" not in needed:
        group = "plain"
    return group, words


_THESE = "these values"
"""The cause of a failure that Hypothesis drew and that has no property."""


def _is_unstable(failure: Failure, needed: list[str]) -> bool:
    """Return True if NumPy's own result differs as much after a change of some last bits of the numbers."""
    call = failure.call
    if failure.difference.kind != "values" or call.by is not None or _PROPERTIES.intersection(needed):
        return False
    usual = call.expected()
    of_positions = not any(np.asarray(part).dtype.kind in "fc" for _, part in parts(usual.result))
    for sign in (1, -1):
        moved = call.nudged(sign, keep_ties=of_positions).expected()
        if compare(moved, usual, Promise(HOST, get(HOST).devices()[0], dtype="any")) is not None:
            return True
    return False


def arguments_of(
    target: Target,
    words: dict[str, str],
    backends: Iterable[str],
    announce: Callable[[str, Call], object] = lambda _backend, _call: None,
) -> tuple[Target, list[Base]]:
    """Return the arguments with which a function works: with NumPy, or with the library that it is of.

    A function whose results are of another library than NumPy's arguments is one of that library. It is
    compared with itself for plain arrays. Each call that is tried is announced: it may end the process.
    """

    def announced(f: Callable[..., Any], backend: str) -> Callable[..., Any]:
        @wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            announce(backend, plain(target, Base(args, kwargs), backend))
            return f(*args, **kwargs)

        return call

    place = ("", "") if target.code else target.place
    find = partial(bases, target.declaration or target.function, words, place=place)
    annotated = [] if target.reference else _annotated(target.function, _libraries_of(target, backends))
    found = [] if annotated else [*find(announced(target.reference or target.function, HOST))]
    library = ""
    if target.reference is None and found:
        library = library_of(call_plainly(target.function, found[0]).result)
        if not takes_only(library):
            return target, found
    if found and not library:
        return target, found
    for backend in (library,) if library else _libraries_of(target, backends):
        alone = on_plain_arrays(target.function, backend)
        found = [*find(announced(alone, backend))]
        if found:
            return target._replace(backend=backend, reference=alone), found
    return target, []


def _annotated(f: Callable[..., Any], libraries: Iterable[str]) -> list[str]:
    """Return those libraries whose arrays the annotations of a function name, if they do not name NumPy's."""
    read = outcome(partial(inspect.signature, f)).result
    hints = " ".join(str(one.annotation) for one in read.parameters.values()) if read else ""
    words = {*re.findall(r"\w+", hints)}
    named = [name for name in libraries if words & {each.__name__ for each in get(name).array_types}]
    return [] if "ndarray" in words else named


def _libraries_of(target: Target, backends: Iterable[str]) -> list[str]:
    """Return the libraries that the modules which have and define a function are parts of or use."""
    roots = set[str]()
    for place in (target.place[0], getattr(inspect.unwrap(target.function), "__module__", None) or ""):
        values = [*vars(sys.modules[place]).values()] if place in sys.modules else []
        used = [str(getattr(one, "__module__", None) or getattr(one, "__name__", "")) for one in values]
        roots |= {name.partition(".")[0] for name in (place, *used)}
    return [name for name in backends if name != HOST and name in roots]


def _is_repeated(stage: Stage, backend: str) -> bool:
    """Return True if a call is the same as the one that it is compared with."""
    call = stage.call
    plainly = not any(one.properties for one in call.recipes()) and call.by is None and call.reference is None
    return plainly and backend == HOST


def _all_stages(call: Call, target: Target, known: Declared, *, is_first: bool) -> Iterator[Stage]:
    """Yield the calls with a property, then the rules and what a library derives."""
    backend = call.promise.backend
    short = target.name.rpartition(".")[2]
    devices = () if known.host_only else devices_of(backend)
    yield from stages(call, devices, is_first=is_first)
    if backend == HOST:
        if is_first:
            yield from rules(call, short)
            yield from ufunc_methods(call)
        yield from negative_axes(call)
        reference = namesake(call, short)
        for stage in stages(call, (), is_first=is_first) if reference else ():
            if stage.group in ("values", "shape"):
                options = {**stage.call.options, "dtype": "any"}
                call_beside = stage.call._replace(reference=reference, options=options)
                yield Stage("NumPy's function", stage.label, call_beside)
    if backend == "torch" and is_first and not ends_with(short, _LIKE) and not has_word(short, _CONSTANT):
        yield Stage(
            "derived",
            "requires_grad",
            call._replace(by=_cuts, written=((), "assert {}.requires_grad")).map(_tracked),
        )
    floating = any(one.values.dtype.kind == "f" for one in call.recipes())
    if backend in _derived.DIFFERENTIABLE and is_first and floating:
        yield Stage("derived", "a derivative", _derived.as_differentiable(call))
    if (backend == "dask" and known.lazy) or (backend == "jax" and known.jit):
        yield Stage("derived", "lazy arrays", _derived.as_lazy(call))


def _tracked(recipe: Any) -> Any:
    return recipe._replace(properties=("requires_grad",)) if recipe.takes("requires_grad") else recipe


def _run_moved(call: Call) -> Any:
    """Call the function with numbers that differ a little, of arrays that do not require grad."""
    moved = with_values(call, lambda _, v: v * (1 + 2.0**-8) if v.dtype.kind == "f" else v)
    filled = moved.fill([one._replace(properties=()).make() for one in moved.recipes()])
    return call.f(*filled.args, **filled.kwargs)


def _cuts(call: Call, run: Callable[[], Any]) -> Difference | None:
    """Find floating results that depend on the numbers and do not require grad."""
    found = outcome(run)
    torch = get("torch")
    moved = outcome(partial(_run_moved, call))
    floating: list[Any] = [
        part
        for (_, part), (_, other) in zip(parts(found.result), parts(moved.result), strict=False)
        if isinstance(part, torch.array_types)
        and torch.array_info(part).dtype.startswith("float")
        and not bool((part == other).all())
    ]
    is_tracked = any(one.properties for one in call.recipes())
    if (
        found.error is not None
        or not floating
        or not is_tracked
        or any(one.requires_grad for one in floating)
    ):
        return None
    return Difference("cuts the graph", "the result does not require grad, and the argument does")


_FORMED = {"expanded": ("values", ["equal values"]), "broadcast": ("values", ["equal values"])}
"""The group and the property of the values that a layout needs."""


def _is_unordered(name: str) -> bool:
    return has_word(name, _UNORDERED) or begins_with(name, _EMPTY)


def _has_usual_dtype(call: Call) -> bool:
    """Return True if all arrays are of one real floating dtype, which every library has."""
    dtypes = {one.values.dtype.name for one in call.recipes()}
    return len(dtypes) == 1 and dtypes <= {"float32", "float64"}


def _is_noise(stage: Stage, difference: Difference) -> bool:
    """Return True if a library refuses what it does not have, or NumPy refuses more."""
    name, kind = name_of(stage.call.f), difference.kind
    if kind == PANIC:
        return False
    refused = kind.startswith("raises") and (
        stage.group in ("NumPy's function", "axis")
        or kind in _MISSING
        or _UNSUPPORTED.search(difference.message)
        or (_OF_DTYPES.search(difference.message) and not _has_usual_dtype(stage.call))
        or _is_of_library(stage.call, name, difference.message)
    )
    return bool(
        refused
        or kind in ("does not raise", "raises")
        or (stage.label == "a derivative" and kind != "gradient")
        or (kind == "values" and stage.call.by is None and _is_unordered(name))
        or (kind == "backend" and "numpy" in name)  # it is the purpose
        or (kind in ("backend", "device") and not stage.call.recipes())  # no array to follow
        or (
            name.endswith("_") and (kind == "changes its input" or "read-only" in difference.message)
        )  # in place
        or (stage.label == "0-d" and (kind == "shape" or _NO_AXIS.search(difference.message)))
        or ("NaN" in stage.label and has_word(name, _SETS))
    )


def _is_of_library(call: Call, name: str, message: str) -> bool:
    """Return True if the library's own function of that name refuses the same arguments in the same words."""
    backend, arrays = get(call.promise.backend), [one.make() for one in call.recipes()]
    if backend.name == HOST:
        return False
    own = getattr(outcome(partial(backend.namespace, arrays[0])).result, name, None)
    if not callable(own) or own is call.f:
        return False
    error = outcome(call._replace(f=own).bind(arrays)).error
    return error is not None and message == f"{type(error).__name__}: {first_line(error)}"
