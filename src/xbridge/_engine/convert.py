"""Convert inputs: by cached converters of their types, and the rest together by plans.

This is the one road for all calls. `align` chooses a target first, a tree is flattened first and built again,
the arrays of a list are stacked afterwards, and a function is called with them.

Each array has a plan of its own. Steps that a backend can do for many arrays in one call, such as a move to a
device or the computation of lazy arrays, wait until all arrays have come to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from xbridge._core.devices import CPU
from xbridge._core.protocol import Array, Backend
from xbridge._engine.execute import is_observed, run_observed, run_steps
from xbridge._engine.repeat import cache_import, cache_plan, read_plan_state
from xbridge._engine.source import Source, import_for, resolve_source, with_mapped_dtype
from xbridge._host.advice import aim
from xbridge._plan.options import find_converter
from xbridge._plan.rules import destination, plan_between, plan_within
from xbridge._plan.steps import Op, Options, Plan, Step, in_words, nbytes_of
from xbridge._registry import registry
from xbridge._registry.call_cache import cache_version
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.errors import DeviceError, XBridgeError, index_errors

K = TypeVar("K")
T = TypeVar("T")

SMALL_NBYTES = 1 << 18
"""The most bytes of an array that is moved with others. For larger ones the copy itself takes most time."""

_JOINT_OPS: dict[Op, Op] = {"materialize": "materialize_many", "to_device": "to_device_many"}
"""The optional function of a backend that does a step for many arrays at once."""


def each(
    xs: list[Any],
    target: Backend,
    options: Options,
    *,
    otherwise: Callable[[Any, Options], Any] | None = None,
) -> list[Array]:
    """Convert arrays, scalars and exporters, each as `to_backend` would. An error has the index of its input.

    `otherwise` converts an input that no cached call has converted, or returns None to have it planned.
    """
    version = cache_version()
    if options.by_dtype:
        dtypes = [with_mapped_dtype(resolve_source(x), target, options).dtype for x in xs]

        def convert_mapped(dtype: str | None, part: list[Any]) -> list[Array]:
            return each(part, target, options._replace(dtype=dtype, by_dtype=()), otherwise=otherwise)

        return in_groups(dtypes, xs, convert_mapped)
    # The fastest way that suits comes first: one call of C code for all arrays, packs for those that change
    # their device, a cached call for each, and a plan for the rest.
    converters = {cls: find_converter(options, target.name, cls) for cls in set(map(type, xs))}
    many = target.fast.from_numpy_many
    if many and set(converters.values()) == {target.fast.from_numpy}:
        ys = many(xs)
        if ys is not None:
            return ys
    done: list[Any] = _move_in_packs(target, xs, converters, options)
    done = [converters[type(x)](x) if y is None else y for x, y in zip(xs, done, strict=True)]
    if not [y for y in done if y is None]:  # as nearly always
        return done
    if otherwise:
        done = list(
            index_errors(otherwise(x, options) if y is None else y for x, y in zip(xs, done, strict=True))
        )
    given = [resolve_source(x) if y is None else y for x, y in zip(xs, done, strict=True)]

    def convert_part(is_own: bool | None, part: list[Any]) -> list[Array]:  # noqa: FBT001 -- a group
        return part if is_own is None else convert_all(part, target, options, version)

    # The target's own arrays come first: what is refused of them is, before others are computed or moved.
    keys = [x.backend is target if isinstance(x, Source) else None for x in given]
    return in_groups(keys, given, convert_part, first=True)


def in_groups(
    keys: list[K], xs: list[T], convert: Callable[[K, list[T]], list[Any]], *, first: K | None = None
) -> list[Any]:
    """Convert the inputs of each key together, and return all results in the order of the inputs.

    The inputs of the key `first` are converted first. An error has the index among all inputs.
    """
    if len(set(keys)) == 1:  # as nearly always
        return convert(keys[0], xs)
    groups: dict[K, list[int]] = {} if first is None else {first: []}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    done: dict[int, Any] = {}
    for key, at in groups.items():
        if at:
            try:
                done.update(zip(at, convert(key, [xs[i] for i in at]), strict=True))
            except XBridgeError as error:
                error.remap_index(at)
                raise
    return [done[i] for i in range(len(xs))]


# -- arrays that change their device, in packs -------------------------------------------------------------


def _move_in_packs(
    target: Backend, xs: list[Array], kinds: Iterable[type], options: Options
) -> list[Array | None]:
    """Move arrays in packs; return None in place of each array that has to be planned."""
    found = {kind: _find_packing(target, kind, options) for kind in kinds} if len(xs) > 1 else {}
    if not any(found.values()):
        return [None] * len(xs)

    def move_part(kind: type, part: list[Array]) -> list[Array | None]:
        move = found[kind]
        return (move and move(part)) or [None] * len(part)

    return in_groups(list(map(type, xs)), xs, move_part)


def _find_packing(
    target: Backend, kind: type, options: Options
) -> Callable[[list[Array]], list[Any] | None] | None:
    """Return the function that moves arrays of a type in packs; None if plans would do more than move them.

    It returns None in place of each array that has to be planned, or None if all have to be.
    """
    source, device = backend_for(kind), options.device
    end = target if source and source.name == HOST else source
    plain = options._replace(device=None, copy=None) == Options() and options.copy is not False
    if end is None or not (plain and end.transfers.has_packs) or registry.observers or target.is_tracing():
        return None
    if target.name == HOST:
        return end.transfers.fetch_many if device in (None, CPU) and kind in end.fast.types else None
    if (
        end is not target
        or kind not in get(HOST).array_types
        or (device is None and "host" not in target.gaps)
    ):
        return None
    try:
        place = destination(target, device, CPU)
    except DeviceError:  # the plan of an array raises it too, and names the array
        return None
    if place == CPU or place not in target.devices():
        return None
    return lambda xs: target.transfers.send_many(xs, place)


# -- plans -------------------------------------------------------------------------------------------------


def plan(source: Source, target: Backend, options: Options) -> Plan:
    """Plan the conversion of an array, or raise the reason that forbids it."""
    refuse_unsupported(source, target, leaving=source.foreign or source.backend is not target)
    if source.backend is target:
        return plan_within(target, source.array, source.info(), options)
    return plan_between(source.backend, target, source.array, source.info(), options)


def refuse_unsupported(source: Source, target: Backend, *, leaving: bool) -> None:
    """Raise an error if an array cannot be read, or cannot leave its library."""
    refused = source.backend.unsupported(source.array, leaving=leaving)
    if refused:
        action = in_words(source.backend, source.info(), target)
        raise aim(refused.error.build(action, refused.reason, refused.hint), target)


def call_untraced(
    fn: Callable[[Any, Backend, Options], T],
    given: object,
    sources: list[Backend],
    target: Backend,
    options: Options,
) -> T:
    """Call `fn(given, target, options)` with the tracing and modes of the libraries switched off.

    A conversion between libraries cannot be part of a program that one of them traces. A conversion within
    one library can, and is called directly. If a compiler traces the caller, `options.compiled` says so: the
    compiled program will receive the result.
    """
    if all(source is target for source in sources):
        return fn(given, target, options)
    backends = dict.fromkeys((*sources, target))
    for backend in backends:
        if backend.is_tracing():
            return backend.untraced(fn)(given, target, options._replace(compiled=True))  # type: ignore[no-any-return] # as `fn`
    for backend in backends:
        fn = backend.untraced(fn)
    return fn(given, target, options)


def convert(source: Source, target: Backend, options: Options) -> Array:
    """Convert an input as similar ones were converted, or by a plan."""
    options = with_mapped_dtype(source, target, options)
    return convert_all([source], target, options, cache_version())[0]


def convert_all(sources: list[Source], target: Backend, options: Options, version: int) -> list[Array]:
    """Convert each input by a plan, but run the joint steps for many arrays at once.

    The plans are cached for inputs with the same key, unless they are observed, or the version of the cache
    is another one than the given one.
    """
    owners = [source.backend for source in sources]
    return call_untraced(partial(_plan_and_run, version=version), sources, owners, target, options)


def _plan_and_run(sources: list[Source], target: Backend, options: Options, version: int) -> list[Array]:
    observed = is_observed(target)
    arrays: list[Array] = []
    plans: dict[int, Plan] = {}
    for i, given in enumerate(sources):
        try:
            source = import_for(given, target, options)
            x = source.array
            y = None if observed else find_converter(options, target.name, type(x))(x)
            if y is None:
                state = None if observed else read_plan_state(source.backend, target)
                plans[i] = found = plan(source, target, options)
                joint = len(sources) > 1 and any(_is_joint(step, found) for step in found.steps)
                if state and not joint:
                    cache_plan(x, found, version, state)
        except XBridgeError as error:
            error.index = i
            raise
        arrays.append(x if y is None else y)
        if not given.is_array:
            cache_import(version, type(given.array), x, target, options)
    if observed:
        return run_observed(arrays.copy(), list(plans.values()), lambda: _run_together(arrays, plans))
    return _run_together(arrays, plans)


def _run_together(arrays: list[Array], plans: dict[int, Plan]) -> list[Array]:
    """Run the plans: each joint step for all arrays that have come to it, and the other steps one by one."""
    left = [plans[i].steps if i in plans else () for i in range(len(arrays))]

    def run_part(joint: tuple[Step, ...], chosen: list[int]) -> list[Array]:
        xs = [arrays[i] for i in chosen]
        if not joint:
            return xs
        ours = [plans[i] for i in chosen]
        try:
            many = joint[0]._replace(op=_JOINT_OPS[joint[0].op])
            done: list[Array] | None = run_steps(xs, ours[0], (many,), ours)
        except XBridgeError:  # to move them one by one finds the one that fails
            if joint[0].op != "to_device":
                raise
            done = None
        return done or list(index_errors(run_steps(x, plan, joint) for x, plan in zip(xs, ours, strict=True)))

    while any(left):
        waiting = []
        for i, steps in enumerate(left):
            joint = (at for at, step in enumerate(steps) if len(arrays) > 1 and _is_joint(step, plans[i]))
            end = next(joint, len(steps))
            try:
                arrays[i] = run_steps(arrays[i], plans[i], steps[:end]) if steps else arrays[i]
            except XBridgeError as error:
                error.index = i
                raise
            waiting.append(steps[end : end + 1])
            left[i] = steps[end + 1 :]
        arrays = in_groups(waiting, list(range(len(arrays))), run_part)
    return arrays


def _is_joint(step: Step, plan: Plan) -> bool:
    """Return True if a backend may do the step for many arrays in one call: they are not too large."""
    if step.op == "materialize":
        return step.module.materialize_many is not None
    nbytes = nbytes_of(plan.conversion.info.shape, plan.conversion.info.dtype)
    return step.op == "to_device" and nbytes is not None and nbytes <= SMALL_NBYTES
