"""Make arrays of lists: stack the arrays in them, and numbers beside arrays.

The arrays are converted together for the library that stacks them: the target if one of them is its own, else
NumPy, from views of all. Every element is read once. Plain arrays of one dtype and shape are stacked without
a plan for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from math import isfinite
from typing import Any, NamedTuple, TypeVar

from xbridge._core.devices import CPU, SHARDED, Device
from xbridge._core.dtypes import DTYPES, UNNAMED, category, exact_integers, is_inexact, is_numeric
from xbridge._core.literals import NUMBERS
from xbridge._core.protocol import Array, ArrayInfo, Backend, HostArray
from xbridge._core.tracing import constant_in_traces, is_traced, none_in_traces
from xbridge._engine import literals
from xbridge._engine.convert import call_untraced, convert, each, in_groups, refuse_unsupported
from xbridge._engine.execute import is_observed, run_observed, run_steps
from xbridge._engine.literals import Filler
from xbridge._engine.numbers import (
    explicit_dtype,
    from_numbers,
    options_of_numbers,
    read_numbers,
    refuse_overflow,
)
from xbridge._engine.repeat import convert_by_type, importer, is_global
from xbridge._engine.source import Source, import_for, resolve_source
from xbridge._host import sequences
from xbridge._host.sequences import Nest, are_between
from xbridge._plan.options import find_converter
from xbridge._plan.reasons import reason
from xbridge._plan.rules import check_destination, chosen, destination, refuse_unreadable
from xbridge._plan.steps import Conversion, Options, Plan, Step
from xbridge._registry.call_cache import decline, direct, lookup_direct, unchanged
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.errors import CopyError, DeviceError, GradientError, OptionError, ValueLossError, XBridgeError

_Stack = Callable[[list[Array]], Array | None]

T = TypeVar("T")

_MOST_AXES = 64
"""The most axes of an array in NumPy. A plan refuses a stack of more."""

_PARTS = {"complex64": "float32", "complex128": "float64"}
"""The dtypes of the parts of complex numbers."""


class _Element(NamedTuple):
    """An array of a list, or a number beside arrays."""

    source: Source
    info: ArrayInfo
    weak: bool
    """True for a Python number, which takes the dtype of the arrays, as in NumPy's promotion."""
    scalar: bool
    """True for a NumPy scalar, which goes to the device of the arrays."""

    def is_checkable(self) -> bool:
        """Return True if the values can be read, unlike those in a transform of the library."""
        backend = self.source.backend
        return backend.is_tracing() or backend.unsupported(self.source.array, leaving=True) is None


def read_list(source: Source) -> tuple[Nest, list[Backend]]:
    """Return what a number or nested lists hold, and the backends of its arrays, the leading one first."""
    nest = sequences.flatten(source.array)
    backends = {kind: backend_for(kind) or source.backend for kind in nest.array_types()}
    proper = [backend for kind, backend in backends.items() if not issubclass(kind, backend.scalar_types)]
    return nest, [*proper, *backends.values()] or [source.backend]


def from_list(nest: Nest, backends: list[Backend], target: Backend, options: Options) -> Array:
    """Make an array of a number or nested lists. It is made first if the call maps its dtype."""
    if options.copy is False:
        why = "its elements are in separate memory" if nest.shape else "no array can share its memory"
        raise CopyError.build(f"make an array of this {nest.noun} with copy=False", why, "copy=None")
    given = options._replace(copy=None)
    if options.by_dtype:
        given = given._replace(by_dtype=(), requires_grad=None)
    make = _from_arrays if nest.array_types() else from_numbers
    y = call_untraced(make, nest, backends, target, given)
    return each([y], target, options)[0] if options.by_dtype else y


def _from_arrays(nest: Nest, target: Backend, options: Options) -> Array:
    """Stack the arrays of a list in one array."""
    y = _stack_at_once(nest, target, options)
    if y is None:
        nest = _without_numbers(nest, target, options.dtype) if is_traced() else nest
        y = convert(_stack_each(nest, target, options), target, options)
    return y


def _without_numbers(nest: Nest, target: Backend, named: str | None) -> Nest:
    """Replace the numbers beside arrays of one dtype by such arrays, which a compiler can follow."""
    numbers = tuple(leaf for leaf in nest.leaves if type(leaf) in NUMBERS)
    arrays = [leaf for leaf in nest.leaves if type(leaf) not in NUMBERS]
    if not numbers or any(backend_for(type(x)) is not target or tuple(x.shape) for x in arrays):
        return nest
    dtype, *others = _unique(map(target.dtype_of, arrays))
    if others or named not in (None, dtype) or not _are_kept(numbers, dtype, target.name):
        return nest
    full_like = target.namespace(arrays[0]).full_like
    return nest._replace(leaves=[full_like(arrays[0], x) if type(x) in NUMBERS else x for x in nest.leaves])


@constant_in_traces
def _are_kept(numbers: tuple[complex, ...], dtype: str, target: str) -> bool:
    """Return True if numbers get the dtype of the arrays beside them, and are far from its limits."""
    promote = get(target).promote
    if promote is None or promote([dtype], [*numbers]) != dtype or not DTYPES[dtype].rounds_as_numpy:
        return False
    most = 1 << (15 if dtype == "float16" else 127)
    # The compiler cannot write a complex number that is not finite.
    small = (type(n) is int or abs(n) < most or (type(n) is float and not isfinite(n)) for n in numbers)
    return are_between(numbers, *exact_integers(dtype)) and all(small)


@none_in_traces
def _stack_at_once(nest: Nest, target: Backend, options: Options) -> Array | None:
    """Stack plain arrays of one dtype and shape without a description of each; None if that is not safe."""
    found = None if is_observed(target) else _find_stack(nest.kinds, target, options)
    if found is None:
        return None
    stack, owner = found
    is_mixed = any(backend_for(kind) is not owner for kind in nest.kinds)
    if owner is target and options != Options() and is_mixed:
        return None  # the stack does not tell which of its values came from elsewhere
    y = stack(nest.shape, nest.leaves)
    if y is not None:
        with suppress(XBridgeError):  # the error has to be about the list
            return convert(Source(y, owner), target, options)
    return None


def _stack_each(nest: Nest, target: Backend, options: Options) -> Source:
    """Choose dtype, device and stacker, convert each array for the stacker, and stack them."""
    elements = _describe_elements(nest, target, options)
    strong = [element for element in elements if not element.weak]  # at least one
    placing = [element for element in strong if not element.scalar] or strong
    _refuse_ragged(elements, target)
    shape = (*nest.shape, *elements[0].info.shape)
    source_device = _common_device(placing, options)
    _refuse_cut_graph(elements, target, options)
    dtype = _common_dtype(elements, strong, target, options)
    last = dtype
    # A compiler cannot follow `devices`.
    has_place = source_device == CPU or source_device in target.devices()
    result_device = destination(target, options.device, source_device if has_place else CPU)
    if options.dtype in UNNAMED:
        last = chosen(options.dtype, dtype, target, result_device)
    _check_numbers(elements, nest, last, result_device, target, options)
    stacker = _choose_stacker(elements, placing, target, options)
    stack_device = CPU if stacker.host_only else destination(stacker, options.device, source_device)
    # A sharded array is gathered if any device was named.
    part_device = None if stacker.host_only and options.device is None else stack_device
    # A stack of floats does not tell which of its values must not be rounded once more.
    promoted = is_inexact(dtype) and any(category(element.info.dtype) == "int" for element in elements)
    if promoted or (dtype in DTYPES and stacker.unsupported_dtype(dtype, stack_device)):
        dtype = last
    if dtype in DTYPES:  # an error now, before the parts are fetched from a device that the target lacks
        fetched = part_device is None and source_device != CPU and source_device.kind != SHARDED
        info = ArrayInfo(dtype, source_device if fetched else stack_device, shape)
        check_destination(placing[0].source.backend, target, info, options)
    part = Options(part_device, dtype, None, options.grad)
    for element in elements:
        _refuse_own(element, stacker)
    checked = part._replace(check_loss=not explicit_dtype(options))
    try:
        parts = _convert_elements(elements, stacker, checked)
    except ValueLossError as error:
        if not is_inexact(dtype) or "dtype=" not in error.hint:  # or the target lacks the dtype to name
            raise
        wide = "complex128" if category(dtype) == "complex" else "float64"
        named = dtype if target.unsupported_dtype(wide, stack_device) else wide
        raise error.build(error.action, error.reason, f"dtype={named!r} to accept rounding") from error
    tracked = any(element.info.requires_grad for element in elements)
    requires_grad = tracked and any(stacker.array_info(one).requires_grad for one in parts)
    info = strong[0].info._replace(dtype=dtype, device=stack_device, shape=shape, requires_grad=requires_grad)
    why = reason("stack", "the arrays of a list are in separate memory")
    step = Step(stacker, "stack", (nest.shape,), why)
    plan = Plan(Conversion(stacker, stacker, info, part, dtype, stack_device), (step,))
    if is_observed(stacker):
        return Source(run_observed(parts[:1], [plan], lambda: run_steps(parts, plan)), stacker)
    return Source(run_steps(parts, plan), stacker)


def _describe_elements(nest: Nest, target: Backend, options: Options) -> list[_Element]:
    elements = []
    for leaf in nest.leaves:
        inner = _as_nest(leaf)
        weak = not inner.array_types()
        if weak:
            given = Source(read_numbers(inner, None, target, options), get(HOST))
        else:
            given = _stack_each(inner, target, options) if inner is leaf else resolve_source(leaf)
        source = import_for(given, target, options)
        elements.append(_Element(source, source.info(), weak, given.is_scalar()))
    return elements


def _check_numbers(
    elements: list[_Element], nest: Nest, dtype: str, device: Device, target: Backend, options: Options
) -> None:
    """Raise if a number beside arrays does not fit the dtype of the stack, or if an integer is rounded."""
    named = explicit_dtype(options)
    weak = [(one.source.array, x) for one, x in zip(elements, nest.leaves, strict=True) if one.weak]
    refuse_overflow([number for number, _ in weak], named or dtype, target, device)
    if is_inexact(dtype) and dtype in DTYPES and not named:
        for _, leaf in weak:
            # The array that was read does not tell its floats from its integers, which must be exact.
            read_numbers(_as_nest(leaf), _PARTS.get(dtype, dtype), target, options)


def _as_nest(leaf: Any) -> Nest:
    """Return what is in a list beside arrays: a row, or a number or an array alone."""
    return leaf if type(leaf) is Nest else Nest((), [leaf], frozenset((type(leaf),)))


def _common_dtype(elements: list[_Element], strong: list[_Element], target: Backend, options: Options) -> str:
    """Return the dtype of the stack before the word "nearest" or "default" is applied to it.

    Dtypes are promoted by the rules of the target if all arrays are its own and it has some for them, else by
    NumPy's.
    """
    mixed, named = _is_mixed(elements), explicit_dtype(options)
    weak = [sequences.sample(element.source.array) for element in elements if element.weak]
    if mixed and named:
        return named
    dtypes = [element.info.dtype for element in strong]
    if not (mixed or weak):
        return dtypes[0]
    is_own = all(element.source.backend is target for element in strong)
    promoted = target.promote(dtypes, weak) if is_own and target.promote else None
    return promoted or sequences.promote(dtypes, weak)


def _is_mixed(elements: list[_Element]) -> bool:
    return len({element.info.dtype for element in elements}) > 1


def _choose_stacker(
    elements: list[_Element], placing: list[_Element], target: Backend, options: Options
) -> Backend:
    """Return the backend that stacks the elements."""
    place = placing[0].info.device
    own = any(element.source.backend is target for element in elements)
    there = CPU not in (place, options.device) and place in target.devices()
    if own or there or (explicit_dtype(options) and _is_mixed(elements)):
        return target
    host, first = get(HOST), next(element for element in elements if not element.weak)
    if is_numeric(first.info.dtype) and host.unsupported_dtype(first.info.dtype, CPU):
        return first.source.backend  # no other library has the dtype, so all elements are of this one
    return host


def _convert_elements(elements: list[_Element], stacker: Backend, options: Options) -> list[Array]:
    """Convert the elements for the stacker together. A promotion must keep all values that can be read."""
    promoted = options.check_loss and any(one.info.dtype != options.dtype for one in elements)
    checked = [promoted and one.is_checkable() for one in elements]
    arrays = [element.source.array for element in elements]

    def convert_part(check: bool, part: list[Array]) -> list[Array]:  # noqa: FBT001 -- a group
        return each(part, stacker, options._replace(check_loss=check))

    return in_groups(checked, arrays, convert_part)


def _common_device(placing: list[_Element], options: Options) -> Device:
    """Return the device of the elements. Without a named device, all must be on one."""
    places = _unique(element.info.device for element in placing)
    if options.device is None and len(places) > 1:
        raise DeviceError.build(
            "stack the arrays of this list", f"they are on {', '.join(places)}", "align(*arrays) first"
        )
    return places[0]


def _refuse_own(element: _Element, stacker: Backend) -> None:
    """Raise if an array of the stacker cannot be read, or is of a class that the stack would not have."""
    source = element.source
    if source.backend is stacker:
        if source.foreign or (stacker.host_only and type(source.array) not in stacker.fast.types):
            refuse_unsupported(source, stacker, leaving=True)
        refuse_unreadable(stacker, source.array, element.info)


def _refuse_cut_graph(elements: list[_Element], target: Backend, options: Options) -> None:
    tracked = any(element.info.requires_grad for element in elements)
    if options.grad == "keep" and tracked and not target.is_grad_enabled():
        raise GradientError.build(
            "stack the arrays of this list with grad='keep'",
            f"{target.name} records no graph now",
            "grad=None",
        )


def _refuse_ragged(elements: list[_Element], target: Backend) -> None:
    shapes = _unique(element.info.shape for element in elements)
    if len(shapes) > 1:
        unknown = any(isinstance(n, float) for shape in shapes for n in shape)  # NaN, in those of Dask
        first = "x.compute_chunk_sizes() for each x of unknown length" if unknown else "arrays of one shape"
        hint = f"{first}, or xbridge.tree.to_backend(x, {target.name!r}) for a list of arrays"
        reason = f"it holds shapes {', '.join(map(str, shapes))}"
        raise OptionError.build("make an array of this list", reason, hint)


def _unique(things: Iterable[T]) -> list[T]:
    """Return each thing once, in order, without hashes: a traced size can be compared, but not hashed."""
    found: list[T] = []
    for thing in things:
        if thing not in found:
            found.append(thing)
    return found


# -- without a description of each ------------------------------------------------------------------------


def find_filler(nest: Nest, target: Backend, options: Options, *, target_is_inferred: bool) -> Filler | None:
    """Return the function that makes an array of items of the same types without a plan for each, or None.

    A list with these items has been converted before, so the conversion of its stack is cached if it can be.
    """
    options = options._replace(copy=None)  # a list is always copied
    if nest.kinds.issubset(NUMBERS):
        named = explicit_dtype(options)
        is_plain = options._replace(dtype=named, device=None) == Options() and options.device in (None, CPU)
        if is_plain and "host" not in target.gaps:
            return literals.default_filler(nest.kinds, target)
        fill, owner = literals.number_filler(nest.kinds, target, named), get(HOST)
        options = options_of_numbers(options)
    else:
        arrays = [kind for kind in nest.kinds if not is_scalar(kind)]
        if target_is_inferred and len(arrays) > 1 and is_scalar(type(nest.leaves[0])):
            return None  # the types do not tell which array comes first, and decides
        found = _find_stack(nest.kinds, target, options)
        if found is None:
            return None
        fill, owner = found
    if owner is target and options == Options():
        return fill
    finish = find_converter(options, target.name, owner.fast.types[0])
    if finish is decline:
        return None
    if owner is target and any(backend_for(kind) is not target for kind in nest.array_types()):
        finish = target.fast.outside_modes(finish)  # as a plan for arrays of two libraries
    return literals.chain(fill, finish)


def _find_stack(kinds: frozenset[type], target: Backend, options: Options) -> tuple[Filler, Backend] | None:
    """Return the function that stacks plain arrays of these types, and the backend of its result; or None.

    Their own library stacks them, if it can check that they are alike. Otherwise the host stacks its views.
    Of arrays of several types, the target stacks them if one is its own. Others become its own first.
    """
    if options.grad == "keep" or options.order:
        return None
    owner = get(HOST)
    if any(map(is_scalar, kinds)):
        many = _find_scalar_stack(kinds, target, options)
    else:
        backends = {backend_for(kind) for kind in kinds}
        one = next(iter(backends)) if len(kinds) == 1 else target if target in backends else owner
        owner = one if one and one.fast.stack_many else owner
        if one is target and owner is not target:
            return None
        many = _find_array_stack(kinds, owner, target, options)
    if many is None:
        return None
    must_be_alike = _must_be_alike(options)
    leaves_graph = owner.autograd and owner is not target
    finish = owner.detach if leaves_graph else unchanged  # new memory needs no guard

    def stack(shape: tuple[int, ...], items: list[Any]) -> Array | None:
        y = many(items)
        if y is None or len(shape) + y.ndim - 1 > _MOST_AXES:
            return None
        if must_be_alike and any(_dtype_of(x) != owner.dtype_of(y) for x in items):
            return None
        return finish(y.reshape((*shape, *y.shape[1:])) if len(shape) > 1 else y)

    return stack, owner


def _must_be_alike(options: Options) -> bool:
    """Return True if arrays of several dtypes are planned.

    A stack of floats does not tell which of its values were integers. Those must not be rounded once more,
    and wrap in a cast to other integers.
    """
    named = explicit_dtype(options)
    return options.dtype in UNNAMED or (named is not None and category(named) == "int")


def _find_array_stack(
    kinds: frozenset[type], stacker: Backend, target: Backend, options: Options
) -> _Stack | None:
    """Return how a library stacks arrays of these types, after others became its own; None if planned."""
    # A copy, because the table is emptied when another thread begins to observe calls.
    many, converters = stacker.fast.stack_many, direct[stacker.name].copy()
    if stacker.name == HOST and options.device in (None, CPU) and not _must_be_alike(options):
        exporters = (kind for kind in kinds if not (backend_for(kind) or sequences.is_literal_type(kind)))
        converters.update({kind: importer(target, options) for kind in exporters if is_global(kind)})
    if not many or not kinds <= converters.keys():
        return None
    are_own = {backend_for(kind) for kind in kinds} == {stacker}
    if len(kinds) == 1 and are_own:
        return many
    convert = convert_by_type(converters)

    def stack(items: list[Array]) -> Array | None:
        alike = convert(items)
        return None if alike is None else many(list(alike))

    # A plan stacks arrays of the library alone in the mode of the caller, and others outside of it.
    return stack if are_own else stacker.fast.outside_modes(stack)


def _find_scalar_stack(kinds: frozenset[type], target: Backend, options: Options) -> _Stack | None:
    """Return how to make a host array of scalars, numbers and arrays without axes; None if they are planned.

    Arrays are read as NumPy scalars. Those of the target that autograd or a transform follows are planned.
    """
    if all(map(is_scalar, kinds)):
        return None if options.dtype and len(kinds) > 1 else sequences.array_of_scalars(kinds)
    if _must_be_alike(options):
        return None
    views = {kind: lookup_direct(HOST, kind) for kind in kinds if not is_scalar(kind)}
    follows = {kind: target.follows for kind in views if backend_for(kind) is target}
    make_stack, dtype_of = cache(sequences.array_of_scalars), get(HOST).dtype_of

    def stack(items: list[Any]) -> HostArray | None:
        scalars = []
        for x in items:
            if type(x) in views:
                view = views[type(x)](x)
                if view is None or view.ndim:
                    return None
                is_followed = follows.get(type(x))
                # The view of an array that is followed is read-only.
                if is_followed and not view.flags.writeable and is_followed(x):
                    return None
                scalars.append(view[()])
            else:
                scalars.append(x)
        types = frozenset(map(type, scalars))
        row = make_stack(types)(scalars)
        # The libraries promote alike to a dtype that one of the values has.
        is_alike = row is not None and row.dtype.type in types
        return row if is_alike and options.dtype in (None, dtype_of(row)) else None

    is_own = all(kind in NUMBERS or backend_for(kind) is target for kind in kinds)
    return stack if is_own else target.fast.outside_modes(stack)


def _dtype_of(x: Array) -> str:
    """Return the dtype of an array whose type has a backend."""
    backend = backend_for(type(x))
    assert backend is not None  # noqa: S101 -- the type was looked up before
    return backend.dtype_of(x)


def is_scalar(kind: type) -> bool:
    """Return True for the types of Python's numbers and of NumPy's scalars."""
    return kind in NUMBERS or issubclass(kind, get(HOST).scalar_types)
