"""Convert inputs: by cached converters of their types, and the rest together by plans.

This is the one road for all calls. `align` chooses a target first, a tree is flattened first and built again,
the arrays of a list are stacked afterwards, and a function is called with them.

Each array has a plan of its own. Steps that a backend can do for many arrays in one call, such as a move to a
device or the computation of lazy arrays, wait until all arrays have come to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from xbridge._core.devices import CPU
from xbridge._core.protocol import Array, Backend
from xbridge._engine.execute import call_untraced, is_observed, run_observed, run_steps
from xbridge._engine.repeat import cache_import, plan_cacher
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

        def convert_part(dtype: str | None, part: list[Any]) -> list[Array]:
            return each(part, target, options._replace(dtype=dtype, by_dtype=()), otherwise=otherwise)

        return in_groups(dtypes, xs, convert_part)
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
    if otherwise:
        _fill_gaps(done, xs, lambda rest: list(index_errors(otherwise(x, options) for x in rest)))
    _fill_gaps(done, xs, lambda rest: _convert_planned(rest, target, options, version))
    return done


def _fill_gaps(done: list[Any], xs: list[Any], convert: Callable[[list[Any]], list[Any]]) -> None:
    """Convert the inputs without a result together, and enter what is returned for them."""
    gaps = [i for i, y in enumerate(done) if y is None]
    if gaps:
        try:
            ys = convert([xs[i] for i in gaps])
        except XBridgeError as error:
            error.remap_index(gaps)
            raise
        for i, y in zip(gaps, ys, strict=True):
            done[i] = y


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


def _convert_planned(xs: list[Any], target: Backend, options: Options, version: int) -> list[Array]:
    """Convert inputs by plans, those of the target and those of other libraries by themselves."""
    sources = [resolve_source(x) for x in xs]

    def convert_part(_: bool, part: list[Source]) -> list[Array]:  # noqa: FBT001 -- a group
        owners = list(dict.fromkeys(source.backend for source in part))
        return call_untraced(partial(convert_all, version=version), part, owners, target, options)

    # The target's own arrays come first: what is refused of them is, before others are computed or moved.
    return in_groups([source.backend is target for source in sources], sources, convert_part, first=True)


def convert(source: Source, target: Backend, options: Options) -> Array:
    """Convert an input by a plan, as `convert_all` does."""
    return convert_all([source], target, options, cache_version())[0]


def convert_all(sources: list[Source], target: Backend, options: Options, version: int) -> list[Array]:
    """Convert each input by a plan, but run the joint steps for many arrays at once.

    The plans are cached for inputs with the same key, unless they are observed, or the version of the cache
    is another one than the given one.
    """
    if not is_observed(target):
        return _run_together(list(index_errors(_prepare(sources, target, options, version))))
    prepared = list(index_errors(_prepare(sources, target, options, None)))
    arrays, plans = [x for x, _ in prepared], [found for _, found in prepared if found]
    return run_observed(arrays, plans, lambda: _run_together(prepared))


def _prepare(
    sources: list[Source], target: Backend, options: Options, version: int | None
) -> Iterator[tuple[Array, Plan | None]]:
    """Yield each array with its plan; or the result of a plan that was just cached, and None."""
    is_cached = False
    for given in sources:
        source, found = import_for(given, target, options), None
        x = source.array
        y = find_converter(options, target.name, type(x))(x) if is_cached else None
        if y is None:
            cache_plan = None
            if version is not None:
                cache_plan = plan_cacher(version, x, source.backend, target, options)
            found = plan(source, target, options)
            if cache_plan and (len(sources) == 1 or not any(_is_joint(step, found) for step in found.steps)):
                cache_plan(found)
                is_cached = True
        if version is not None and not given.is_array:
            cache_import(version, type(given.array), x, target, options)
        yield (x if y is None else y), found


def _run_together(prepared: list[tuple[Array, Plan | None]]) -> list[Array]:
    """Run the plans: each joint step for all arrays that have come to it, and the other steps one by one."""
    arrays = [x for x, _ in prepared]
    plans = {i: found for i, (_, found) in enumerate(prepared) if found}
    begins = dict.fromkeys(plans, 0)
    while begins:
        waiting: dict[Step, list[int]] = {}
        for i, begin in list(begins.items()):
            steps = plans[i].steps
            joint = (at for at in range(begin, len(steps)) if _is_joint(steps[at], plans[i]))
            end = next(joint, None) if len(arrays) > 1 else None
            try:
                arrays[i] = run_steps(arrays[i], plans[i], steps[begin:end])
            except XBridgeError as error:
                error.index = i
                raise
            if end is None:
                del begins[i]
            else:
                begins[i] = end + 1
                waiting.setdefault(steps[end], []).append(i)
        for step, chosen in waiting.items():
            _run_jointly(step, arrays, plans, chosen)
    return arrays


def _is_joint(step: Step, plan: Plan) -> bool:
    """Return True if a backend may do the step for many arrays in one call: they are not too large."""
    if step.op == "materialize":
        return step.module.materialize_many is not None
    nbytes = nbytes_of(plan.conversion.info.shape, plan.conversion.info.dtype)
    return step.op == "to_device" and nbytes is not None and nbytes <= SMALL_NBYTES


def _run_jointly(step: Step, arrays: list[Array], plans: dict[int, Plan], chosen: list[int]) -> None:
    """Run one step for the chosen arrays. If a move fails, move them one by one to find the culprit."""
    xs, ours = [arrays[i] for i in chosen], [plans[i] for i in chosen]
    done: list[Array] | None = None
    try:
        try:
            done = run_steps(xs, ours[0], (step._replace(op=_JOINT_OPS[step.op]),), ours)
        except XBridgeError:
            if step.op != "to_device":
                raise
        if done is None:
            done = list(index_errors(run_steps(x, plan, (step,)) for x, plan in zip(xs, ours, strict=True)))
    except XBridgeError as error:
        error.remap_index(chosen)
        raise
    for i, y in zip(chosen, done, strict=True):
        arrays[i] = y
