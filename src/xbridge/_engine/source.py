"""Find the backend of an input, and import arrays of libraries that have no backend."""

from __future__ import annotations

from contextlib import suppress

from xbridge._core.devices import CPU, Device
from xbridge._core.dtypes import DTYPES
from xbridge._core.literals import NUMBERS
from xbridge._core.protocol import Array, ArrayInfo, Backend
from xbridge._host.advice import aim
from xbridge._host.dlpack import NotOnHostError
from xbridge._host.importers import castable_names, import_array
from xbridge._host.memory import with_named_bits
from xbridge._host.sequences import is_literal
from xbridge._plan.steps import Options
from xbridge._registry.registry import backend_for, get
from xbridge.backends import HOST
from xbridge.errors import DTypeError, UnsupportedArrayError, XBridgeError


class Source:
    """An input and its backend. An input that no backend owns has that of the host, which imports it."""

    __slots__ = ("_info", "array", "backend", "foreign", "is_array")

    def __init__(
        self, array: Array, backend: Backend, *, is_array: bool = True, foreign: bool = False
    ) -> None:
        self.array = array
        self.backend = backend
        self.is_array = is_array
        """True if `array` is an array of the backend: not a scalar, an exporter, a number or a list."""
        self.foreign = foreign
        """True if no backend owns the input. Then every conversion leaves the library of the input."""
        self._info: ArrayInfo | None = None

    def info(self) -> ArrayInfo:
        """Return the backend's description of the array, which is computed once."""
        if self._info is None:
            self._info = self.backend.array_info(self.array)
        return self._info

    def location(self) -> tuple[str, Device, str]:
        """Return the name of the backend, the device and the dtype of the array."""
        backend, info = self.backend, self._info
        if info is None:
            return backend.name, backend.device_of(self.array), backend.dtype_of(self.array)
        return backend.name, info.device, info.dtype

    def is_literal(self) -> bool:
        """Return True if the input is a Python number or a sequence, which has no backend."""
        return self.foreign and not self.is_array and is_literal(self.array)

    def is_number(self) -> bool:
        """Return True if the input is a Python number, which has no backend."""
        return self.is_literal() and issubclass(type(self.array), NUMBERS)

    def adapts(self) -> bool:
        """Return True if `align` returns the input as it is: a Python number, or None."""
        return self.array is None or self.is_number()

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

    An exporter on the host becomes a host array. With `fetch`, an exporter on a device must move to the host.
    Without `fetch`, the target or another backend imports the memory on its device. With a dtype, the columns
    of a table are cast to it.
    """
    # A compiler takes a NumPy scalar for an array while it traces, and gives the scalar itself to this call.
    if source.is_array and not isinstance(source.array, source.backend.scalar_types):
        return source
    try:
        host = import_array(source.array, must_share=must_share, fetch=fetch, dtype=dtype)
        return Source(host, get(HOST), foreign=source.foreign)
    except NotOnHostError as error:
        refused = error
    except (DTypeError, UnsupportedArrayError) as error:
        raise error if target is None else aim(error, target) from error.__cause__
    from xbridge._engine import device_import  # noqa: PLC0415 -- only unregistered device memory needs it

    array, importer = device_import.import_device_array(source.array, refused, target, must_share=must_share)
    return Source(array, importer, foreign=True)


def mapped_dtype(source: Source, target: Backend, options: Options) -> str | None:
    """Return the dtype that a call maps an input to, or all columns of a table; None if it keeps its own."""
    dtypes = dict(options.by_dtype)
    with suppress(XBridgeError):  # the conversion raises it too
        names = set() if source.is_array else set(castable_names(source.array))
        made = {dtypes.get(name, name) for name in names}
        if len(made) == 1 and not names.isdisjoint(dtypes):
            return made.pop()
        return dtypes.get(import_source(source, fetch=target.host_only).info().dtype)
    return None


def with_mapped_dtype(source: Source, target: Backend, options: Options) -> Options:
    """Return options with the dtype that a call maps an input to."""
    if not options.by_dtype:
        return options
    return options._replace(dtype=mapped_dtype(source, target, options), by_dtype=())


def import_for(source: Source, target: Backend, options: Options) -> Source:
    """Import an input for a conversion to the target with these options."""
    fetch = target.host_only or options.device == CPU
    named = options.dtype if options.dtype in DTYPES else None
    found = import_source(source, target, must_share=options.copy is False, fetch=fetch, dtype=named)
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
