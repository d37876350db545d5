"""A staged search for failures of functions of arrays, over libraries, within a time.

Each function is called with plain arrays of each library first. A library with which this fails has one
finding. With the others, one property at a time is added. What a library cannot do itself, or the package of
the function declares as unsupported, is not a finding.
"""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from xbridge._registry.registry import get
from xbridge.backends import HOST
from xbridge.testing import _derived
from xbridge.testing._call import minimal, program
from xbridge.testing._outcome import Difference, first_line, outcome, parts
from xbridge.testing._reproduction import reproduction
from xbridge.testing._source import is_described
from xbridge.testing.check.findings import Finding, name_of
from xbridge.testing.check.names import begins_with, ends_with, has_word
from xbridge.testing.check.relations import namesake, rules
from xbridge.testing.check.signatures import bases
from xbridge.testing.check.stages import Stage, devices_of, exists, plain, stages
from xbridge.testing.check.targets import declared, unsafe

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
    r"|type unknown|unknown (array|tensor)? ?type|not be permitted",
    re.IGNORECASE,
)
"""Messages by which a library refuses what it does not have."""


_UNORDERED = re.compile(r"(arg)?partition|\w*roots|\w*zpk\w*|\w*2sos|eig\w*|poles")
"""Words in the names of functions whose results have no specified order."""

_EMPTY = re.compile("empty")
"""The first word in the names of functions whose results have no specified values."""

_LIKE = re.compile("like")
"""The last word in the names of functions without a gradient: they read the shape and the dtype alone."""

_NO_AXIS = re.compile(r"axis|axes|dim|out of (bounds|range)", re.IGNORECASE)
"""Messages that a 0-d array has no axis, which NumPy's reductions ignore."""

_SETS = re.compile(r"unique|union1?d?|setdiff(1d)?|setxor(1d)?|intersect(1d)?|in1d|isin")
"""Words in the names of functions for which NaNs are not equal in the standard, and are in NumPy."""


TIME_IS_OVER = "the time is over"


class Checked(NamedTuple):
    """The result for one function."""

    function: str
    findings: list[Finding]
    skipped: str
    """Why it was not checked; "" if it was."""
    is_complete: bool = True
    """False if the time was over before all calls of it."""


def check(
    targets: Iterable[Target],
    backends: Iterable[str],
    words: dict[str, str],
    seconds: float,
    *,
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
    listed = list(targets)
    end = time.monotonic() + seconds
    for number, target in enumerate(listed):
        left = end - time.monotonic()
        reason = "" if target.spec in asked else unsafe(target)
        reason = reason or (TIME_IS_OVER if left <= 0 else "")
        if reason:
            yield Checked(target.name, [], reason)
            continue
        limit = time.monotonic() + max(left / (len(listed) - number), 1.0)
        used = [name for name in backends if is_described(name) and target.backend in ("", name)]
        findings: list[Finding] = []
        found = outcome(partial(_check_one, target, used, words, limit, before, findings))
        reason = f"its check raises {type(found.error).__name__}: {first_line(str(found.error))}"
        yield found.result or Checked(target.name, findings, reason)


def _check_one(
    target: Target,
    backends: list[str],
    words: dict[str, str],
    limit: float,
    before: Callable[[str], object],
    findings: list[Finding],
) -> Checked:
    """Run all stages of all bases with each backend, until the time is over. The findings are appended."""
    known = declared(target)
    before("")
    found = list(bases(target.declaration or target.function, words, target.reference or target.function))
    if not found:
        return Checked(target.name, [], "no arguments were found with which it works; try --args")
    failed: set[str] = set()
    for number, base in enumerate(found):
        for backend in backends:
            if backend in known.backends or backend in failed:
                continue
            call = plain(target, base, backend)
            for stage in _all_stages(call, target, known, is_first=number == 0):
                if time.monotonic() > limit:
                    return Checked(target.name, findings, "", is_complete=False)
                before(f"{backend}\n{program(stage.call).text}")
                if stage.call.by is None and not exists(stage):
                    continue
                finding = _judge(stage, target, backend, base.label)
                if finding is None:
                    continue
                if finding.problem == "values" and _is_repeated(stage, backend):
                    return Checked(target.name, [], "its results differ from call to call")
                findings.append(finding)
                if stage.group == "plain":
                    failed.update([backend] if number == 0 else [])
                    break
    return Checked(target.name, findings, "")


def _is_repeated(stage: Stage, backend: str) -> bool:
    """Return True if a call is the same as the one that it is compared with."""
    call = stage.call
    plainly = not any(one.properties for one in call.recipes()) and call.by is None and call.reference is None
    return plainly and backend == HOST


def _all_stages(call: Call, target: Target, known: Declared, *, is_first: bool) -> Iterator[Stage]:
    """Yield the plain call, then the properties, then the rules and what a library derives."""
    backend = call.promise.backend
    short = target.name.rpartition(".")[2]
    yield Stage("plain", "", call)
    devices = () if known.host_only else devices_of(backend)
    yield from stages(call, devices, is_first=is_first)
    if backend == HOST:
        if is_first:
            yield from rules(call, short)
        reference = namesake(call, short)
        for stage in stages(call, (), is_first=is_first) if reference else ():
            if stage.group in ("values", "shape"):
                options = {**stage.call.options, "dtype": "any"}
                call_beside = stage.call._replace(reference=reference, options=options)
                yield Stage("NumPy's function", stage.label, call_beside)
    if backend == "torch" and is_first and not ends_with(short, _LIKE):
        yield Stage(
            "derived",
            "requires_grad",
            call._replace(by=_cuts, written=((), "assert {}.requires_grad")).map(_tracked),
        )
    if (backend == "dask" and known.lazy) or (backend == "jax" and known.jit):
        yield Stage("derived", "lazy arrays", _derived.as_lazy(call))


def _tracked(recipe: Any) -> Any:
    return recipe._replace(properties=("requires_grad",)) if recipe.takes("requires_grad") else recipe


def _cuts(call: Call, run: Callable[[], Any]) -> Difference | None:
    """Find floating results that do not require grad, if the call does not raise."""
    found = outcome(run)
    torch = get("torch")
    floating: list[Any] = [
        part
        for _, part in parts(found.result)
        if isinstance(part, torch.array_types) and torch.array_info(part).dtype.startswith("float")
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


def _judge(stage: Stage, target: Target, backend: str, label: str) -> Finding | None:
    """Run a stage, and return a finding of its simplest call that fails."""
    difference = stage.call.judge()
    if difference is None or _is_noise(stage, difference):
        return None
    simplest, needed = (stage.call, []) if stage.call.by is not None else minimal(stage.call, difference.kind)
    found = simplest.judge() or difference
    group, words = stage.group, needed
    if group == "layout" and not needed:  # the layout does not matter, but the form that it needs does
        group, words = _FORMED.get(stage.label, ("shape", ["more axes"]))
    elif stage.label and group != "device" and (not needed or group in ("dtype", "values")):
        words = [stage.label]
    words = [*words, f"{label}=" if label.isidentifier() else label] if label else words
    code = reproduction(simplest, found)
    return Finding(target.name, backend, found.kind, tuple(words), found.message, code, group)


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
    refused = kind.startswith("raises") and (
        stage.group == "NumPy's function"
        or kind == "raises NotImplementedError"
        or _UNSUPPORTED.search(difference.message)
        or (_OF_DTYPES.search(difference.message) and not _has_usual_dtype(stage.call))
    )
    return bool(
        refused
        or kind in ("does not raise", "raises")
        or (kind == "values" and stage.call.by is None and _is_unordered(name))
        or (kind == "backend" and "numpy" in name)  # it is the purpose
        or (stage.label == "0-d" and (kind == "shape" or _NO_AXIS.search(difference.message)))
        or ("NaN" in stage.label and has_word(name, _SETS))
    )
