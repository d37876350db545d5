"""Find the backend of an input, import arrays of libraries that have none, and recognize mistaken calls.

A call is mistaken if its arguments are in the wrong order, or an input belongs to another function.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from xbridge._core.devices import CPU, Device
from xbridge._core.dtypes import DTYPES
from xbridge._core.literals import NUMBERS
from xbridge._core.protocol import Array, ArrayInfo, Backend
from xbridge._core.wording import option_of, text_of
from xbridge._host.advice import aim, hint_for_object, literal_error
from xbridge._host.importers import import_array, is_exporter, names_in_table
from xbridge._host.memory import with_named_bits
from xbridge._host.sequences import is_literal
from xbridge._plan.steps import Options
from xbridge._registry.registry import backend_for, get, known_backends
from xbridge.backends import HOST
from xbridge.errors import (
    DTypeError,
    OptionError,
    UnknownBackendError,
    UnsupportedArrayError,
    XBridgeError,
    type_of,
)


@dataclass(slots=True, eq=False)
class Source:
    """An input and its backend. An input that no backend owns has that of the host, which imports it."""

    array: Array
    backend: Backend
    is_array: bool = True
    """True if `array` is an array of the backend: not a scalar, an exporter, a number or a list."""
    foreign: bool = False
    """True if no backend owns the input. Then every conversion leaves the library of the input."""
    _info: ArrayInfo | None = None

    def info(self) -> ArrayInfo:
        """Return the backend's description of the array, which is computed once."""
        if self._info is None:
            self._info = self.backend.array_info(self.array)
        return self._info

    def is_literal(self) -> bool:
        """Return True if the input is a Python number or a sequence, which has no backend."""
        return self.foreign and not self.is_array and is_literal(self.array)

    def adapts(self) -> bool:
        """Return True if `align` returns the input as it is: a Python number, or None."""
        return self.array is None or (self.is_literal() and issubclass(type(self.array), NUMBERS))

    def is_scalar(self) -> bool:
        """Return True if the input is a scalar of its backend, such as one of NumPy's."""
        return not self.is_array and not self.foreign

    def is_followed(self) -> bool:
        """Return True if autograd or a transform follows the array."""
        backend = self.backend
        if backend.follows is None:
            return False
        return self.info().requires_grad if backend.is_tracing() else backend.follows(self.array)


def resolve_source(x: object) -> Source:
    """Find the backend of an input by its type alone, which a compiler can trace."""
    backend = backend_for(type(x))
    if backend is None:
        return Source(x, get(HOST), is_array=False, foreign=True)
    return Source(x, backend, is_array=not isinstance(x, backend.scalar_types))


def import_source(
    source: Source,
    target: Backend | None = None,
    *,
    must_share: bool = False,
    fetch: bool = False,
    dtype: str | None = None,
) -> Source:
    """Import a scalar or an exporter. An array stays as it is.

    An exporter becomes a host array. With `fetch`, one on a device is asked to copy its memory to the host;
    otherwise it is refused. With a dtype, the columns of a table are cast to it.
    """
    # A compiler takes a NumPy scalar for an array while it traces, and gives the scalar itself to this call.
    if source.is_array and not isinstance(source.array, source.backend.scalar_types):
        return source
    try:
        host = import_array(source.array, must_share=must_share, fetch=fetch, dtype=dtype)
    except (DTypeError, UnsupportedArrayError) as error:
        raise error if target is None else aim(error, target) from error.__cause__
    return Source(host, get(HOST), foreign=source.foreign)


def with_mapped_dtype(source: Source, target: Backend, options: Options) -> Options:
    """Return the options for one input, in which a mapping of dtypes is the dtype that it gives this input.

    That is None for an input that keeps its dtype. A table is cast if all its columns get one dtype.
    """
    if not options.by_dtype:
        return options
    dtypes, dtype = dict(options.by_dtype), None
    with suppress(XBridgeError):  # the conversion raises it too
        names = set() if source.is_array else set(names_in_table(source.array))
        made = {dtypes.get(name, name) for name in names}
        if len(made) == 1 and not names.isdisjoint(dtypes):
            dtype = made.pop()
        else:
            dtype = dtypes.get(import_source(source, fetch=target.host_only).info().dtype)
    return options._replace(dtype=dtype, by_dtype=())


def import_for(source: Source, target: Backend, options: Options) -> Source:
    """Import an input for a conversion to the target with these options."""
    fetch = target.host_only or options.device == CPU
    named = options.dtype if options.dtype in DTYPES else None
    try:
        found = import_source(source, target, must_share=options.copy is False, fetch=fetch, dtype=named)
    except DTypeError as error:
        if options.dtype != "default":
            raise
        hint = error.hint.replace("'float64'", repr(target.default_dtype("float", CPU)))
        raise error.build(error.action, error.reason, hint) from error.__cause__
    array = found.array
    if found.backend.on_one_device and found.backend is not target:
        array = found.backend.on_one_device(array)
    elif named and found.backend.name == HOST:
        array = with_named_bits(array, named)
    return found if array is found.array else Source(array, found.backend, foreign=found.foreign)


def device_for(source: Source, target: Backend, options: Options) -> Device:
    """Return the device of an input, which is imported if it has no backend."""
    return import_for(source, target, with_mapped_dtype(source, target, options)).info().device


def leading_index(sources: list[Source]) -> int | None:
    """Return the index of the input that decides the target: the first array, else the first scalar.

    Of arrays of several libraries, the first that autograd or a transform follows decides: to convert it to
    another library would end its graph.
    """
    arrays = [i for i, x in enumerate(sources) if x.is_array or not (x.is_literal() or x.array is None)]
    # No `next` with a default: not every compiler can follow it.
    proper = [i for i in arrays if sources[i].is_array or sources[i].foreign]
    libraries = {sources[i].backend.name for i in proper}
    followed = [i for i in proper if sources[i].is_followed()] if len(libraries) > 1 else []
    return (followed or proper or arrays)[0] if arrays else None


# -- mistaken calls ----------------------------------------------------------------------------------------


def resolve_request(x: object, name: str | ModuleType, verb: str = "to_backend") -> Source:
    """Return the source of a conversion, or raise an error that corrects the call."""
    refuse_order(x, name, verb)
    source = resolve_source(x)
    if source.is_literal() and not hasattr(type(x), "_fields"):
        raise literal_error(x, get(name).name)
    return source


def resolve_like(like: object) -> Source:
    """Resolve the argument `like`, which gives the backend and the device."""
    try:
        return import_source(resolve_source(like))
    except UnsupportedArrayError as error:
        given: Any = like
        word, hint = _option_for(like), "like=None"
        if word:
            hint = f"like=None, {word}={text_of(like)}"
        elif type(given) in (list, tuple) and given and backend_for(type(given[0])):
            hint = "like=y[0]"
        raise OptionError.build(f"take {type_of(like)} as like", "it is not an array", hint) from error


def refuse_order(x: object, name: object, verb: str) -> None:
    """Raise an error if the name of the backend comes before the array."""
    if type(x) is str and x in known_backends() and not isinstance(name, (str, ModuleType)):
        reason = "the array comes first, and the name of a backend after it"
        raise UnknownBackendError.build(f"find a backend by {type_of(name)}", reason, f"{verb}(x, {x!r})")


_ASKED = {
    "backend_of": "name the backend of",
    "dtype_of": "name the dtype of",
    "array_namespace": "find the namespace of",
}
"""What the functions that ask about an array do. The others find its device."""


def ownerless_error(x: Any, verb: str) -> UnsupportedArrayError:
    """Return the error for a question about an array that was asked of something else."""
    if type(x) in (list, tuple) and x and all(map(backend_for, map(type, x))):
        hint = f"{verb}(*x)" if verb == "array_namespace" else f"{verb}(x[0])"
    elif is_literal(x):
        hint = "asarray(x)"
    elif hasattr(type(x), "named_parameters"):  # a module of a neural network
        hint = f"{verb}(next(x.parameters()))"
    else:
        hint = f"{verb}(asarray(x))" if is_exporter(x) else hint_for_object(x)
    action = f"{_ASKED.get(verb, 'find the device of')} {type_of(x)}"
    return UnsupportedArrayError.build(action, "it is not an array of a known library", hint)


def refuse_alignment(sources: Sequence[Source], verb: str = "align") -> None:
    """Raise an error if all arrays are in one list, or an option is among the inputs."""
    first: Any = sources[0].array if len(sources) == 1 else None
    if type(first) in (list, tuple):
        kinds = set(map(type, first))
        if kinds and all(backend_for(kind) for kind in kinds):
            reason = "each argument is aligned as one array, and this one would be stacked"
            raise OptionError.build(f"align {type_of(first)} of arrays", reason, f"{verb}(*xs)")
    if any(type(source.array) is dict for source in sources):
        hint = "xbridge.tree.align(*xs)" if verb == "align" else ""
        raise OptionError.build("align a dict", "it is a tree of arrays", hint)
    refuse_options([source.array for source in sources])


def refuse_options(xs: Sequence[object]) -> None:
    """Raise an error if an option is among arguments that are to be aligned."""
    for i, x in enumerate(xs):
        word = _option_for(x)
        if word:
            text = text_of(x)
            raise OptionError.build(f"align {text} at xs[{i}]", f"a {word} is an option", f"{word}={text}")


def _option_for(x: object) -> str:
    """Return the option that a name or an object is for, where an array was expected; "" if none."""
    cls = type(x)
    if cls in (list, tuple, dict):  # a compiler does not follow a method of their names
        return ""
    if not (issubclass(cls, (str, ModuleType, type)) or cls.__name__.lower().endswith(("device", "dtype"))):
        return ""  # it is not looked at, because a proxy may raise
    word = option_of(x, ["backend", "device", "dtype"])
    return word if word != "backend" or text_of(x).strip("'") in known_backends() else ""
