"""Convert numbers, and nested lists of numbers and arrays.

The arrays of a list are stacked by the target if one of them is its own, else by the library of lazy arrays,
so that they are computed together, else by NumPy from views of all. Every element is read once. Plain arrays
of one dtype and shape are stacked without a plan for each.
"""

from __future__ import annotations

from functools import partial
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from xbridge._core.devices import CPU, SHARDED
from xbridge._core.dtypes import (
    DTYPES,
    UNNAMED,
    category,
    exact_integers,
    holds_every,
    is_inexact,
    is_numeric,
)
from xbridge._core.literals import LITERALS, NUMBERS
from xbridge._core.protocol import ArrayInfo
from xbridge._core.tracing import none_in_traces
from xbridge._engine.batch import convert_all
from xbridge._engine.convert import convert
from xbridge._engine.each import by_type
from xbridge._engine.execute import is_observed, run
from xbridge._engine.repeat import compose
from xbridge._engine.source import Source, import_for, resolve_source
from xbridge._host import sequences
from xbridge._host.advice import aim
from xbridge._plan.options import find_converter
from xbridge._plan.reasons import reason
from xbridge._plan.rules import check_destination, chosen, destination, refuse_unreadable
from xbridge._plan.steps import Conversion, Options, Plan, Step, is_known
from xbridge._registry.call_cache import decline, direct, lookup_direct, resolve_on_call, unchanged
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.errors import (
    CopyError,
    DeviceError,
    DTypeError,
    GradientError,
    OptionError,
    UnsupportedArrayError,
    ValueLossError,
    with_article,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, Backend, HostArray
    from xbridge._engine.repeat import Convert
    from xbridge._host.sequences import Nest

    _Stack = Callable[[list[Array]], Array | None]
    _Filler = Callable[[list[Any], tuple[int, ...] | None], Array | None]
    """From items, and the shape of the nested lists around them."""

T = TypeVar("T")

_NUMBER_DTYPES: dict[type, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
"""NumPy's dtypes for Python numbers."""

_UNEVEN = "arrays of one shape, or xbridge.tree.to_backend(x, 'numpy') for a list of arrays"
_NUMBER_TYPES = frozenset(NUMBERS)
_LONG = 1 << 16
"""The longest range that is converted without a plan, which finds out whether memory can hold it."""


class _Element(NamedTuple):
    """An array of a list, or a number beside arrays."""

    source: Source
    info: ArrayInfo
    weak: bool
    """True for a Python number, which takes the dtype of the arrays, as in NumPy's promotion."""
    scalar: bool
    """True for a NumPy scalar, which goes to the device of the arrays."""

    def is_computed_for(self, stacker: Backend) -> bool:
        """Return True if the array must be computed for the stacker, and can be computed with others."""
        backend = self.source.backend
        return backend is not stacker and backend.materialize_many is not None

    def must_stay_exact(self, dtype: str) -> bool:
        """Return True if a cast to the dtype must be checked: it might round a number or an integer array."""
        if self.weak or category(self.info.dtype) != "int" or holds_every(self.info.dtype, dtype):
            return self.weak
        backend = self.source.backend
        return backend.is_tracing() or backend.unsupported(self.source.array, leaving=True) is None

    def needs_care(self, dtype: str, stacker: Backend) -> bool:
        """Return True if a cast by the stacker might change the value."""
        given = self.info.dtype
        alike = given == dtype or stacker.cast_matches_numpy(given, dtype, CPU)
        return not alike or self.must_stay_exact(dtype)

    def is_rounded(self, dtype: str, last: str) -> bool:
        """Return True for an integer that is promoted to a dtype, and that a last, narrower one may round."""
        given = self.info.dtype
        return given != dtype and category(given) == "int" and self.must_stay_exact(last)


def choose_converter(source: Source) -> tuple[Callable[..., Array], Any, list[Backend]]:
    """Choose the function that converts an input.

    Return the function, its first argument, and the backends of the arrays in it, the leading one first.
    """
    if not source.is_literal():
        return convert, source, [source.backend]
    content = sequences.copy_lists(source.array)
    nest = sequences.nest(content)
    if nest is None:
        return from_numbers, content, [source.backend]
    kinds = dict.fromkeys(map(type, compress(nest.leaves, map(not_, nest.weak))))
    backends = {kind: backend_for(kind) or source.backend for kind in kinds}
    proper = [backend for kind, backend in backends.items() if not issubclass(kind, backend.scalar_types)]
    return from_arrays, nest, [*proper, *backends.values()]


def from_numbers(obj: object, target: Backend, options: Options, *, version: int | None = None) -> Array:
    """Convert numbers, to the target's default dtypes unless the caller named one."""
    named = _explicit_dtype(options)
    device = destination(target, options.device, CPU)
    floating = None if named else target.default_dtype("float", device)
    try:
        host = _read_numbers(obj, floating, target, options)
    except (OptionError, UnsupportedArrayError) as error:
        raise aim(error, target.name) from error.__cause__
    _refuse_sharing(options, host.shape)
    if host.dtype.kind in "iu":
        _refuse_overflow(host, named or chosen("default", host.dtype.name, target, device), target, device)
    return convert(Source(host, get(HOST)), target, _options_of_numbers(options), version=version)


def _options_of_numbers(options: Options) -> Options:
    """Return the options with which the host array of a list of numbers is converted."""
    return options._replace(dtype=_explicit_dtype(options) or "default", copy=None)


def _read_numbers(obj: object, floating: str | None, target: Backend, options: Options) -> HostArray:
    """Return numbers as a host array. Integers become floats only if the caller named such a dtype."""
    named = _explicit_dtype(options)

    def nearest_of_target(dtype: str) -> str:
        return chosen("nearest", dtype, target, destination(target, options.device, CPU))

    return sequences.literal(
        obj, floating, nearest_of_target, rounding=named is not None and is_inexact(named)
    )


def from_arrays(nest: Nest, target: Backend, options: Options, *, version: int | None = None) -> Array:
    """Stack the arrays of a list in one array.

    With `copy=False` the stack is empty, or an error was raised. A cast of an empty stack is an error too.
    """
    kinds = frozenset(map(type, nest.leaves))
    whole = _stack_at_once(nest.leaves, kinds, nest.shape, target, options)
    whole = whole or _stack_described(nest, target, options, version)
    return convert(whole, target, options._replace(copy=options.copy and None), version=version)


def literal_converter(  # noqa: C901 -- its functions share a table, and a class would take longer per call
    cls: type, target: Backend | None, options: Options
) -> Convert:
    """Return the function that converts numbers, or lists, of a type as similar ones were, or returns None.

    Without a target, the first array decides, and numbers become NumPy's. What is done with a list depends on
    the types of its items, so that is decided once for a set of types.
    """
    if options.copy is False or cls not in LITERALS:  # only nothing can be shared; a class may hide its items
        return decline
    if cls in NUMBERS:
        one, fit = _number_converter(frozenset((cls,)), target, options)
        make = compose(*one)
        return make if fit is None else lambda n: make(n) if fit((n,)) else None
    if cls is range:
        steps, test = _number_converter(frozenset((int,)), target, options)
        whole = compose(*steps)
        return lambda x: whole(x) if x and not x[_LONG:] and (test is None or test((x[0], x[-1]))) else None
    fillers: dict[sequences.Kind, _Filler] = {}

    def choose(kind: sequences.Kind, leaves: Sequence[Any]) -> _Filler:
        kinds = kind if isinstance(kind, frozenset) else frozenset(() if kind is None else (kind,))
        if kinds <= _NUMBER_TYPES:
            filler = _number_filler(*_number_converter(kinds, target, options))
        elif kinds <= sequences.ROWS:
            filler = fill_from_rows
        else:
            chosen = target or _find_leading_backend(leaves, kinds)
            found = _stacker_filler(kinds, chosen, options) if chosen else None
            if found is None:
                return decline
            if len(kinds) > 1:  # the first item may be of another type next time
                return found
            filler = found
        fillers[kind] = filler
        return filler

    def fill_from_rows(rows: list[Any], _: object) -> Array | None:
        found = sequences.outline(rows)
        if found is None:
            return None
        shape, leaves, kind = found
        return (fillers.get(kind) or choose(kind, leaves))(leaves, shape)

    def convert(obj: Any) -> Array | None:
        leaves = [*obj]  # another thread may change a list meanwhile
        kind = sequences.kind_of_items(leaves)
        return (fillers.get(kind) or choose(kind, leaves))(leaves, None)

    return convert


def _number_converter(
    kinds: frozenset[type], target: Backend | None, options: Options
) -> tuple[tuple[Convert, Convert], Callable[[Sequence[Any]], bool] | None]:
    """Return how to convert Python numbers of these types, and a test for them or None.

    One function makes a host array, and another one converts that. The test is for integers that would be
    rounded, or wrapped, without an error.
    """
    host, named = get(HOST), _explicit_dtype(options)
    own, host_options = target or host, _options_of_numbers(options)
    finish: Convert = unchanged
    # NumPy's dtypes of Python numbers are its default dtypes. If the first array decides, the options were
    # checked for the library of another list.
    if own is not host or named or options.requires_grad or options.device not in (None, CPU):
        finish = resolve_on_call(partial(find_converter, host_options, own.name))
    steps = sequences.array_of(kinds), finish
    limits: tuple[int, int] | None = None
    if int not in kinds:
        return steps, None
    if kinds <= sequences.WHOLE:
        if not named or category(named) != "int" or named == _NUMBER_DTYPES[int]:
            return steps, None
        limits = exact_integers(named)
    elif named or own is host:
        limits = _exact_within(_NUMBER_DTYPES[float])

    def fit(numbers: Sequence[Any]) -> bool:
        # A default dtype may change between calls.
        return sequences.are_between(numbers, *(limits or _exact_within(own.default_dtype("float", CPU))))

    return steps, fit


def _number_filler(steps: tuple[Convert, Convert], fit: Callable[[Sequence[Any]], bool] | None) -> _Filler:
    """Return the function that makes an array of the numbers of a list, if they pass the test."""
    make, finish = steps

    def fill(numbers: list[Any], shape: tuple[int, ...] | None) -> Array | None:
        host = make(numbers) if fit is None or fit(numbers) else None
        if host is None:
            return None
        if shape is not None:
            host = sequences.fold(host, shape)
        return host if finish is unchanged else finish(host)

    return fill


def _exact_within(dtype: str) -> tuple[int, int]:
    """Return a range of integers that a floating dtype does not round to others in it."""
    most = exact_integers(dtype)[1] - 1
    return -most, most


def _stacker_filler(kinds: frozenset[type], target: Backend, options: Options) -> _Filler | None:
    """Return the function that stacks the arrays of a list of these types; None if they are planned."""
    found = None if options.grad == "keep" else _find_stack(kinds, target, options)
    if found is None:
        return None
    stack, owner = found
    rest = options._replace(copy=None)
    is_plain = rest == Options()
    finish: Convert = unchanged
    if not (is_plain and owner is target):
        finish = resolve_on_call(partial(find_converter, rest, target.name))
    if owner.autograd and owner is not target:  # new memory needs no protection
        finish = compose(owner.detach, finish)
    is_direct = is_plain and owner.name == HOST  # then it is known which function to try first
    first = lookup_direct(target.name, owner.array_types[0]) if is_direct else finish

    def fill(leaves: list[Any], shape: tuple[int, ...] | None) -> Array | None:
        row = stack(leaves)
        if shape is not None:
            row = _reshape(row, shape)
        if row is None or finish is unchanged:
            return row
        y = first(row)
        return finish(row) if y is None else y

    return fill


def _find_leading_backend(leaves: Sequence[Array], kinds: frozenset[type]) -> Backend | None:
    """Return the backend of the first array; None if a scalar is before it, which only a plan passes over."""
    if all(map(_is_scalar, kinds)):
        return get(HOST)
    return None if _is_scalar(type(leaves[0])) else backend_for(type(leaves[0]))


def _is_scalar(kind: type) -> bool:
    """Return True for the types of Python's numbers and of NumPy's scalars."""
    return kind in NUMBERS or issubclass(kind, get(HOST).scalar_types)


def _stack_described(nest: Nest, target: Backend, options: Options, version: int | None) -> Source:
    """Stack arrays one by one: describe all, choose dtype, device and stacker, convert each for the stacker.

    With the version of the cache before the call, the conversions are cached.
    """
    elements = _describe_elements(nest, target, options)
    _refuse_ragged(elements)
    shape = (*nest.shape, *elements[0].info.shape)
    _refuse_sharing(options, shape)
    place = _common_device(elements, options)
    _refuse_cut_graph(elements, target, options)
    named = _explicit_dtype(options)
    dtype = _common_dtype(elements, target, options, place)

    stacker = _choose_stacker(elements, target, options)
    if stacker.host_only:  # a sharded array is gathered if any device was named
        spot = None if options.device is None else CPU
    else:
        spot = destination(stacker, options.device, place)
    where = CPU if spot is None else spot
    narrow = False
    if options.dtype in UNNAMED:
        # A stacker without the common dtype cannot stack in it and narrow the stack. One that has it must not
        # if there are integers: a stack of floats does not tell which of its values must not be rounded.
        lacks = dtype in DTYPES and stacker.unsupported_dtype(dtype, where) is not None
        goal = (stacker, where) if lacks else (target, _find_goal(target, options, place))
        last = chosen(options.dtype, dtype, *goal)
        narrow = lacks or (last != dtype and any(element.is_rounded(dtype, last) for element in elements))
        dtype = last if narrow else dtype
    if dtype in DTYPES:  # an error now, before the stack is computed, or its parts are fetched for nothing
        first = _placing_elements(elements)[0].source.backend
        fetched = stacker.host_only and options.device is None and place not in (CPU, SHARDED)
        info = ArrayInfo(dtype, place if fetched else where, shape)
        check_destination(first if fetched else stacker, target, info, options)
    _refuse_casts(elements, dtype, options)
    part = Options(spot, dtype, None, options.grad)
    checked = part._replace(check_loss=not named)
    lazy = [i for i, element in enumerate(elements) if element.is_computed_for(stacker)]
    try:
        parts = [
            None
            if i in lazy
            else _convert_element(
                element, stacker, checked if narrow or element.needs_care(dtype, stacker) else part, version
            )
            for i, element in enumerate(elements)
        ]
        if lazy:  # all are checked together: promotion loses no floating value, so only integers can fail
            computed = convert_all([elements[i].source for i in lazy], stacker, checked)
            for i, array in zip(lazy, computed, strict=True):
                parts[i] = array
    except ValueLossError as error:
        if not is_inexact(dtype) or "dtype=" not in error.hint:  # or the target lacks the dtype to name
            raise
        raise _loss_error(error, elements, dtype, target, where) from error

    for element in elements:
        if element.source.backend is stacker:
            refuse_unreadable(stacker, element.source.array, element.info)
    tracked = any(element.info.requires_grad for element in elements)
    requires_grad = tracked and any(stacker.array_info(one).requires_grad for one in parts)
    info = _strong_elements(elements)[0].info._replace(
        dtype=dtype, device=where, shape=shape, requires_grad=requires_grad
    )
    stack = Step(
        stacker, "stack", (nest.shape,), reason("stack", "the arrays of a list are in separate memory")
    )
    plan = Plan(Conversion(stacker, stacker, info, part, dtype, where), (stack,))
    return Source(run(parts, plan), stacker)


def _describe_elements(nest: Nest, target: Backend, options: Options) -> list[_Element]:
    options = options._replace(copy=None)  # `copy=False` is refused for the whole list
    given = [
        Source(_read_numbers(leaf, None, target, options), get(HOST)) if weak else resolve_source(leaf)
        for leaf, weak in zip(nest.leaves, nest.weak, strict=True)
    ]
    sources = [import_for(source, target, options) for source in given]
    _compute_unknown(sources, target)
    return [
        _Element(source, source.info(), weak, leaf.is_scalar())
        for source, leaf, weak in zip(sources, given, nest.weak, strict=True)
    ]


def _compute_unknown(sources: list[Source], target: Backend) -> None:
    """Compute the arrays of a library that has to know their shapes, unless it is the target itself."""
    backends = {source.backend for source in sources if not is_known(source.info().shape)} - {target}
    for backend in backends:
        places = [i for i, source in enumerate(sources) if source.backend is backend]
        for i, host in zip(
            places, convert_all([sources[i] for i in places], get(HOST), Options()), strict=True
        ):
            sources[i] = Source(host, get(HOST))


def _strong_elements(elements: list[_Element]) -> list[_Element]:
    """Return the elements that decide dtype and device: all but Python numbers. There is at least one."""
    return [element for element in elements if not element.weak]


def _placing_elements(elements: list[_Element]) -> list[_Element]:
    """Return the elements that decide the device: arrays, or scalars if there are no arrays."""
    return [element for element in _strong_elements(elements) if not element.scalar] or _strong_elements(
        elements
    )


def _common_dtype(elements: list[_Element], target: Backend, options: Options, place: Device) -> str:
    """Return the dtype of the stack, and raise if an integer does not fit."""
    strong = _strong_elements(elements)
    numbers = [element.source.array for element in elements if element.weak]
    mixed, named = _is_mixed(elements), _explicit_dtype(options)
    if mixed and named:
        dtype = named
    elif mixed or numbers:
        own = all(element.source.backend is target for element in strong)
        weak = [sequences.sample(number) for number in numbers]
        dtype = promote_dtypes([element.info.dtype for element in strong], weak, target if own else get(HOST))
    else:
        dtype = strong[0].info.dtype
    for number in numbers:
        device = _find_goal(target, options, place)
        last = named or (chosen(options.dtype, dtype, target, device) if options.dtype else dtype)
        _refuse_overflow(number, last, target, device)
    return dtype


def _find_goal(target: Backend, options: Options, place: Device) -> Device:
    """Return the device of the result: the one asked for, or that of the elements if the target has it."""
    has = place == CPU or place in target.devices()  # a compiler cannot follow `devices`
    return destination(target, options.device, place if has else CPU)


def promote_dtypes(dtypes: list[str], weak: list[complex], library: Backend) -> str:
    """Promote dtypes by the rules of a library, or by NumPy's if the library has none for them."""
    own = library.promote and library.promote(dtypes, weak)
    return own or sequences.promote(dtypes, weak)


def _is_mixed(elements: list[_Element]) -> bool:
    return len({element.info.dtype for element in elements}) > 1


def _choose_stacker(elements: list[_Element], target: Backend, options: Options) -> Backend:
    """Return the backend that stacks the elements."""
    place = _placing_elements(elements)[0].info.device
    own = any(element.source.backend is target for element in elements)
    there = CPU not in (place, options.device) and place in target.devices()
    if own or there or (_explicit_dtype(options) and _is_mixed(elements)):
        return target
    host, (first, *_) = get(HOST), _strong_elements(elements)
    if is_numeric(first.info.dtype) and host.unsupported_dtype(first.info.dtype, CPU):
        return first.source.backend  # no other library has the dtype, so all elements are of this one
    return _find_lazy_backend([element.source for element in elements]) or host


def _convert_element(element: _Element, stacker: Backend, options: Options, version: int | None) -> Array:
    """Convert an element for the stacker."""
    source, cls = element.source, type(element.source.array)
    version = None if source.foreign else version
    array = None if version is None else find_converter(options, stacker.name, cls)(source.array)
    if array is not None:
        return array
    leaving = stacker.host_only and cls not in stacker.fast.types  # its class may be lost
    return convert(source, stacker, options, leaving=leaving, version=version)


@none_in_traces
def _stack_at_once(
    leaves: list[Array], kinds: frozenset[type], shape: tuple[int, ...], target: Backend, options: Options
) -> Source | None:
    """Stack plain arrays of one dtype and shape without a description of each; None if that is not safe."""
    if options.grad == "keep" or options.copy is False or is_observed(target):
        return None
    found = _find_stack(kinds, target, options)
    if found is None:
        return None
    stack, owner = found
    row = _reshape(stack(leaves), shape)
    if row is None or (owner is not target and owner.unsupported(row, leaving=True)):
        return None
    return Source(row if owner is target else owner.detach(row), owner)  # new memory needs no protection


def _find_stack(kinds: frozenset[type], target: Backend, options: Options) -> tuple[_Stack, Backend] | None:
    """Return the function that stacks plain arrays of these types, or returns None, and whose the stack is.

    Their own library stacks them, if it can check that they are alike. Otherwise the host stacks its views.
    Of arrays of several types, the target stacks them if one is its own. Others become its own first.
    Return None if there is no such function.
    """
    host = get(HOST)
    if all(map(_is_scalar, kinds)):
        if options.dtype and len(kinds) > 1:
            return None
        return sequences.array_of_scalars(kinds), host
    numbers, kinds = kinds.intersection(NUMBERS), kinds.difference(NUMBERS)
    backends = {backend_for(kind) for kind in kinds}
    backend = next(iter(backends)) if len(kinds) == 1 else target if target in backends else host
    if backend is None or any(map(_is_scalar, kinds)):  # arrays beside scalars seldom have no shape, as these
        return None
    stacker = backend if backend.fast.stack_many else host
    # A copy, because the table is emptied when another thread begins to observe calls.
    many, converters = stacker.fast.stack_many, direct[stacker.name].copy()
    is_planned = (backend is target and stacker is not target) or (numbers and options.dtype)
    if not many or is_planned or not kinds <= converters.keys():
        return None
    rules = target if backends == {target} else host
    several = numbers or len(kinds) > 1
    convert = by_type(converters) if several or backend is not stacker else None
    if not (numbers or convert or backend is target):  # there is nothing to do before or after
        return many, stacker

    def stack(leaves: list[Array]) -> Array | None:
        given: list[Array] | None = _convert_numbers(leaves, numbers, stacker, rules) if numbers else leaves
        if given is not None and convert:
            given = convert(given)
        if given is None:
            return None
        row = many(given)
        if row is None and backend is target and not numbers:
            alike = _promote_at_once(given, target, options, rules)
            row = None if alike is None else many(alike)
        return row

    return stack, stacker


def _reshape(row: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Return a stack as the nested lists around its items had it; None if it has too many axes for that."""
    if row is None or len(shape) == 1:
        return row
    try:
        return row.reshape((*shape, *row.shape[1:]))
    except ValueError:  # NumPy has 64 axes at most
        return None


def _convert_numbers(
    leaves: list[Array], kinds: frozenset[type], stacker: Backend, rules: Backend
) -> list[Array] | None:
    """Replace Python numbers by host arrays of the first array's dtype; None if the stack may have another.

    Only the first array is asked. If the others have another dtype, `stack_many` or NumPy declines later.
    """
    first = next(x for x in leaves if type(x) not in kinds)
    owner = backend_for(type(first))
    dtype = owner.dtype_of(first) if owner else ""
    if dtype not in DTYPES:
        return None
    alike = all(stacker.cast_matches_numpy(_NUMBER_DTYPES[kind], dtype, CPU) for kind in kinds)
    if not alike or promote_dtypes([dtype], [kind() for kind in kinds], rules) != dtype:
        return None
    host = sequences.of_numbers([x for x in leaves if type(x) in kinds], dtype, kinds)
    if host is None:
        return None
    rows = iter(range(len(host)))
    return [host[next(rows), ...] if type(x) in kinds else x for x in leaves]


def _promote_at_once(
    leaves: list[Array], target: Backend, options: Options, rules: Backend
) -> list[Array] | None:
    """Cast the target's own arrays to their common dtype by cached calls; None if one of these is missing."""
    names = list(map(target.dtype_of, leaves))
    kinds, named = list(dict.fromkeys(names)), _explicit_dtype(options)
    if len(kinds) < 2 or options.device not in (None, CPU):
        return None
    try:
        dtype = named or promote_dtypes(kinds, [], rules)
    except DTypeError:  # there is no common dtype: the plan raises that, if no other error comes first
        return None
    last = chosen(options.dtype, dtype, target, CPU) if options.dtype in UNNAMED else dtype
    if not (named or all(holds_every(name, last if category(name) == "int" else dtype) for name in kinds)):
        return None  # an integer may be rounded
    cast = Options(CPU, dtype, grad=options.grad)
    return by_type({kind: find_converter(cast, target.name, kind) for kind in set(map(type, leaves))})(leaves)


def _find_lazy_backend(sources: list[Source]) -> Backend | None:
    """Return the backend of several lazy arrays; None if there is none."""
    for backend, source in {source.backend: source for source in sources}.items():
        if source.is_lazy() and sum(other.backend is backend for other in sources) > 1:
            return backend
    return None


def _explicit_dtype(options: Options) -> str | None:
    """Return the dtype that the caller named; None for "nearest", "default" or none."""
    return None if options.dtype in UNNAMED else options.dtype


def _refuse_overflow(numbers: HostArray, dtype: str, target: Backend, device: Device) -> None:
    """Raise if an integer of a list does not fit the dtype, also if the caller named that dtype."""
    if not numbers.size or numbers.dtype.kind not in "iu" or category(dtype) != "int":
        return
    if not _fits(numbers, dtype):
        given = numbers.dtype.name
        reason, wide = "an integer does not fit", chosen("default", given, target, device)
        hint, lacks = f"dtype={wide!r}", target.unsupported_dtype(given, device)
        if lacks and not _fits(numbers, wide):
            reason = f"{reason}, and {lacks.reason}"
            hint = "smaller ones" if "dtype=" in lacks.hint else f"{lacks.hint} first"
        elif not holds_every(dtype, wide):  # such as uint64, beside a negative number
            hint = f"{hint}, which wraps what does not fit"
        raise ValueLossError.build(f"make {with_article(dtype)} array of this list", reason, hint)


def _loss_error(
    error: ValueLossError, elements: list[_Element], dtype: str, target: Backend, device: Device
) -> ValueLossError:
    """Return the error for a value that the inexact dtype of a list cannot hold. It names one that can."""
    wide = "complex128" if category(dtype) == "complex" else "float64"
    whole = [element for element in elements if category(element.info.dtype) == "int"]
    hint = f"dtype={wide!r}"  # a target that lacks it says so when asked for it
    if any(element.must_stay_exact(dtype) for element in whole):
        hint = f"dtype={dtype if target.unsupported_dtype(wide, device) else wide!r} to accept rounding"
    return error.build(error.action, error.reason, hint)


def _fits(numbers: HostArray, dtype: str) -> bool:
    """Return True if all integers are in the range of an integer dtype."""
    least, most = exact_integers(dtype)
    return least <= int(numbers.min()) and int(numbers.max()) <= most


def _common_device(elements: list[_Element], options: Options) -> Device:
    """Return the device of the elements. Without a named device, all must be on one."""
    places = _unique(element.info.device for element in _placing_elements(elements))
    if options.device is None and len(places) > 1:
        raise DeviceError.build(
            "stack the arrays of this list", f"they are on {', '.join(places)}", "align(*arrays) first"
        )
    return places[0]


def _refuse_cut_graph(elements: list[_Element], target: Backend, options: Options) -> None:
    tracked = any(element.info.requires_grad for element in elements)
    if options.grad == "keep" and tracked and not target.is_grad_enabled():
        raise GradientError.build(
            "stack the arrays of this list with grad='keep'",
            f"{target.name} records no graph now",
            "grad=None",
        )


def _refuse_ragged(elements: list[_Element]) -> None:
    shapes = _unique(element.info.shape for element in elements)
    if len(shapes) > 1:
        unknown = not all(map(is_known, shapes))
        raise OptionError.build(
            "make an array of this list",
            f"it holds shapes {', '.join(map(str, shapes))}",
            f"backend={HOST!r} to compute them" if unknown else _UNEVEN,
        )


def _unique(things: Iterable[T]) -> list[T]:
    """Return each thing once, in order, without hashes: a traced size can be compared, but not hashed."""
    found: list[T] = []
    for thing in things:
        if thing not in found:
            found.append(thing)
    return found


def _refuse_casts(elements: list[_Element], dtype: str, options: Options) -> None:
    """Raise if empty arrays would be cast with `copy=False`. A change of their byte order is no cast."""
    cast = next((element for element in elements if element.info.dtype != dtype), None)
    if options.copy is False and cast:
        raise CopyError.build(
            "make an array of this list with copy=False", f"{cast.info.dtype} becomes {dtype}", "copy=None"
        )


def _refuse_sharing(options: Options, shape: tuple[int, ...]) -> None:
    if options.copy is False and 0 not in shape:
        raise CopyError.build(
            "make an array of this list with copy=False",
            "its elements are in separate memory",
            "copy=None",
        )
