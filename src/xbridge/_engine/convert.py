"""Convert one array by a plan, and the functions that are variations of it: explain, list values, share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, hint_for_missing_dtype, holds_every, is_numeric
from xbridge._core.protocol import Array, Backend
from xbridge._engine.execute import observers, run, run_steps
from xbridge._engine.repeat import cache_import, cache_plan, state_reader
from xbridge._engine.source import Source, import_for, import_source
from xbridge._host.advice import aim
from xbridge._host.importers import castable_names
from xbridge._host.memory import check_castable, native_dtype, ones, overlap
from xbridge._plan.reasons import reason
from xbridge._plan.rules import has_device, plan_between, plan_within
from xbridge._plan.steps import Conversion, Options, Plan, Step, in_words, nbytes_of
from xbridge._registry.registry import get
from xbridge.backends import HOST
from xbridge.errors import CopyError, DTypeError, UnsupportedArrayError, XBridgeError, type_of


def convert(
    source: Source,
    target: Backend,
    options: Options,
    *,
    leaving: bool = False,
    version: int | None = None,
) -> Array:
    """Convert an input by a plan.

    With `leaving`, the input is checked as if it left its library, even if it does not. With the version of
    the cache before the call, the conversion is cached for inputs with the same key.
    """
    given, source = source, import_for(source, target, options)
    read_state = None if version is None else state_reader(source.backend, target, options)
    state = read_state() if read_state else None
    found = plan(source, target, options, leaving=leaving)
    result = run(source.array, found)
    if version is not None and read_state:
        cache_plan(version, source.array, found, read_state, state)
        if not given.is_array:
            cache_import(version, type(given.array), source.array, target, options)
    return result


def plan(source: Source, target: Backend, options: Options, *, leaving: bool = False) -> Plan:
    """Plan the conversion of an array, or raise the reason that forbids it."""
    backend, array, info = source.backend, source.array, source.info()
    leaving = leaving or source.foreign or backend is not target
    refused = backend.unsupported(array, leaving=leaving)
    if refused:
        error = refused.error.build(in_words(backend, info, target), refused.reason, refused.hint)
        raise aim(error, target.name)
    if backend is target:
        return plan_within(backend, array, info, options)
    return plan_between(backend, target, array, info, options)


def list_values(source: Source, host: Backend, options: Options, *, version: int | None = None) -> Any:
    """List the values of an array as Python numbers."""
    source = import_for(source, host, options)
    info, cast = source.info(), None
    dtype, is_known = info.dtype, info.dtype in DTYPES
    if is_known and host.unsupported_dtype(dtype, CPU):
        cast = "float32"
    elif is_known and not info.native_byteorder:
        cast = dtype  # to name it gives native byte order, in which each lists
    listable = is_known or not is_numeric(dtype)
    options = options._replace(dtype=cast)
    listed = convert(source, host, options, leaving=True, version=version) if listable else None
    if listed is None or host.array_info(listed).dtype not in DTYPES:
        hint = f"to_numpy(x, {hint_for_missing_dtype(dtype)}).tolist()"
        raise DTypeError.build(f"list an array of {dtype}", "Python has no such numbers", hint)
    return listed.tolist()


def plan_for_explain(source: Source, target: Backend, options: Options) -> Plan:
    """Return the plan that `explain` shows: with sizes, the source's layout, and any error it would raise."""
    given, names = _import_view(source, target, options)
    backend, info = given.backend, given.info()
    try:
        if options.copy is False:
            import_source(source, target, must_share=True)
        found = plan(given, target, options).with_sizes(given.array)
        if backend.name == HOST and any(step.op == "astype" for step in found.steps):
            check_castable(given.array, native_dtype(found.conversion.dtype))
        for step in found.steps:  # within a library, a mode may accept a device that is not here
            if step.op == "to_device" and not has_device(target, found.conversion.device):
                run_steps(step.module.from_numpy(ones(native_dtype("float32"))), found, [step])
        for observer in observers():
            observer.forbid(found)
    except XBridgeError as error:
        conversion = Conversion(backend, target, info, options, info.dtype, info.device)
        found = Plan(conversion, (), error=error.with_traceback(None))  # a traceback holds the array
    if names and not found.error:
        found = _after_columns(found, names)
    if backend.unsupported(given.array, leaving=True):
        return found
    layout = backend.memory_layout(given.array)
    # A scalar stands for a value, which has no address.
    return replace(found, layout=layout._replace(address=0) if source.is_scalar() else layout)


def _import_view(source: Source, target: Backend, options: Options) -> tuple[Source, list[str]]:
    """Import an input without copying its memory, so that its plan can be shown. A scalar is copied.

    A table whose columns are not in one piece of memory is copied, too. Their dtypes are returned then.
    """
    try:
        return import_source(source, target, must_share=source.foreign), []
    except CopyError as error:
        names = castable_names(source.array)
        if names:
            return import_for(source, target, options), names
        action = f"explain a conversion of {type_of(source.array)}"
        reason = "its memory cannot be shown without a copy or a computation"
        raise UnsupportedArrayError.build(action, reason) from error


def _after_columns(found: Plan, names: list[str]) -> Plan:
    """Return the plan of a table, which begins with the cast of its columns when it is imported."""
    info = found.conversion.info
    why = reason("cast", f"{' and '.join(names)} become {info.dtype}, column by column")
    cast = Step(get(HOST), "astype", (info.dtype,), why, nbytes_of(info.shape, info.dtype))
    # The dtype of the columns that decides whether each value is kept.
    before = next((name for name in names if not holds_every(name, info.dtype)), names[0])
    conversion = found.conversion._replace(info=info._replace(dtype=before))
    return replace(found, conversion=conversion, steps=(cast, *found.steps))


def share(source: Source, target: Backend, options: Options) -> Array:
    """Convert an array over the same memory, for `unsafe_share`, even if the contract would copy it."""
    source = import_source(source, target, must_share=True)
    result = convert(source, target, options)
    if source.backend is target:
        return result
    layouts = source.backend.memory_layout(source.array), target.memory_layout(result)
    if not any(layout.is_unallocated() for layout in layouts) and not overlap(*layouts):
        action, reason = f"share this memory with {target.name}", f"{target.name} has copied it"
        raise CopyError.build(action, reason, f"to_backend(x, {target.name!r})")
    return result
