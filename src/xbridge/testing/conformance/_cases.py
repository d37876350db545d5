"""Arrays whose values are known, and the tests that run over them.

A check is a plain function of a backend's name and a `Sample`. It runs over a sweep first: every memory
layout with every dtype, and with every kind of shape, so that no fault hides in a pair that was not drawn.
Then Hypothesis draws more. `XBRIDGE_TEST_DTYPES` limits the dtypes of the sweep, and not those drawn.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xbridge._core.devices import CPU
from xbridge._core.dtypes import DTYPES, is_inexact
from xbridge._host.memory import native_dtype
from xbridge.backends import HOST
from xbridge.backends._registry import get
from xbridge.testing.samples.lookup import lay_on, samples_of
from xbridge.testing.samples.model import Sample
from xbridge.testing.strategies._arrays import samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any, Self, TypeAlias, TypeVar

    from xbridge._core.devices import Device
    from xbridge._core.protocol import Array, HostArray

    Shape: TypeAlias = tuple[int, ...]
    Example = TypeVar("Example")
    Check: TypeAlias = Callable[[str, Sample], None]

WHOLE = (3, 4)
"""A shape of enough elements for every telling value."""

SHAPES: tuple[Shape, ...] = ((), (5,), (2, 0), (1,), (2, 3, 2), (0,), (1, 2, 1, 2))


KINDS = ("float32", "complex128", "int16", "bool")
"""A dtype of each kind, for where the dtype matters less than the place."""


DTYPES_SETTING = "XBRIDGE_TEST_DTYPES"
"""The environment variable that names the dtypes of a sweep, such as `float32,bool`. Unset: all of them."""


def held(backend: str) -> tuple[str, ...]:
    """The canonical dtypes that both the library and the host have."""
    modules = get(backend), get(HOST)
    return tuple(
        word for word in DTYPES if not any(module.unsupported_dtype(word, CPU) for module in modules)
    )


def swept(backend: str) -> tuple[str, ...]:
    """Return the dtypes of a sweep: all that are held, or those that `XBRIDGE_TEST_DTYPES` names."""
    chosen = os.environ.get(DTYPES_SETTING, "").split(",")
    return tuple(word for word in held(backend) if word in chosen) or held(backend)


def telling(dtype: str, shape: Shape, turn: int = 0) -> HostArray:
    """Values whose loss would show: zeros with a sign, NaNs with a payload, ends of ranges, any bits."""
    made = native_dtype(dtype)
    size = int(np.prod(shape, dtype=int))
    if made.kind == "b":
        flags: HostArray = (np.arange(size) * 5 + turn) % 3 == 1
        return flags.reshape(shape)
    parts = 2 if made.kind == "c" else 1
    code = np.dtype(f"u{made.itemsize // parts}")
    rng = np.random.default_rng(crc32(f"{dtype} {shape} {turn}".encode()))
    bits = rng.integers(0, np.iinfo(code).max, size * parts, code, endpoint=True)
    ends = np.roll(np.array(_specials(dtype, code), code), turn)[: bits.size]
    bits[: ends.size] = ends
    values: HostArray = bits.view(made).reshape(shape)
    return values


def _specials(dtype: str, code: np.dtype[Any]) -> list[int]:
    sign = 1 << 8 * code.itemsize - 1
    ends = [sign, 1, sign - 1, 2 * sign - 1]
    if DTYPES[dtype].kind not in ("float", "complex") or code.itemsize == 1:
        return ends
    part = native_dtype({"complex64": "float32", "complex128": "float64"}.get(dtype, dtype))
    infinity = int(np.array(np.inf).astype(part).view(code))
    quiet = infinity | infinity >> 1
    return [*ends, infinity, infinity | sign, infinity + 1, quiet + 5, quiet | sign | 3, infinity - 1]


def lay(name: str, way: str, values: HostArray, device: Device = CPU) -> Sample:
    """A new array of a library that holds these values and lies that way, or was moved from where it did."""
    ways = samples_of(name).ways
    known = ways[way]
    values = known.fold(values) if known.fold else values
    writable = known.writable if known.is_on(device) else any(other.writable for other in ways.values())
    return Sample(lay_on(get(name), known, values, device), values, way, known.tracked, writable)


def variants(name: str, way: str, values: HostArray, device: Device = CPU) -> Iterator[Sample]:
    """An array that lies that way, one that is read-only as well, one that is tracked as well."""
    known = samples_of(name).ways[way]
    yield (first := lay(name, way, values, device))
    if known.as_readonly and known.writable and known.is_on(device):
        yield first._replace(array=known.as_readonly(lay(name, way, values, device).array), writable=False)
    if known.require_grad and is_inexact(values.dtype.name):
        array = known.require_grad(lay(name, way, values, device).array)
        yield first._replace(array=array, tracked=True, writable=False)


def plain(name: str, values: HostArray) -> Array:
    """A new ordinary array: without history, and writable if the library has such arrays."""
    ways = samples_of(name).ways
    fit = [
        way
        for way, known in ways.items()
        if not (known.tracked or known.fold) and known.takes(values.dtype.name, values.shape)
    ]
    return lay(name, max(fit, key=lambda way: ways[way].writable), values).array


def sweep(name: str, dtypes: tuple[str, ...]) -> Iterator[Sample]:
    """Every way with every dtype, and with every kind of shape in the first dtype that the way takes."""
    usual = [*filter(held(name).__contains__, ("float32", "complex64")), *dtypes]
    for turn, (way, known) in enumerate(samples_of(name).ways.items()):
        pairs: list[tuple[str, Shape]] = [(dtype, WHOLE) for dtype in dtypes if known.takes(dtype, WHOLE)]
        for shape in SHAPES:
            pairs += [(dtype, shape) for dtype in usual if known.takes(dtype, shape)][:1]
        for dtype, shape in pairs:
            yield from variants(name, way, telling(dtype, shape, turn))


def sweep_away(name: str) -> Iterator[Sample]:
    """Every way on every device but the host, with a dtype of each kind.

    Nobody has read such an array, nor waited for it.
    """
    module = get(name)
    for device in module.devices():
        away = device != module.devices()[0]
        here = [dtype for dtype in KINDS if away and not module.unsupported_dtype(dtype, device)]
        for turn, (way, known) in enumerate(samples_of(name).ways.items()):
            for dtype, shape in [*((dtype, WHOLE) for dtype in here), *((dtype, ()) for dtype in here[:1])]:
                if known.takes(dtype, shape):
                    yield from variants(name, way, telling(dtype, shape, turn), device)


def of_its_own(check: Check) -> Callable[[str], None]:
    """A test that holds for every array of the backend in host memory."""
    return _over(check, lambda backend: backend)


def of_other_devices(check: Check) -> Callable[[str], None]:
    """A test that holds for every array of the backend elsewhere than in host memory."""

    @wraps(check)
    def test(backend: str) -> None:
        for sample in sweep_away(backend):
            with _Told(sample):
                check(backend, sample)

    del test.__wrapped__
    return test


def of_all_devices(check: Check) -> Callable[[str], None]:
    """A test that holds for every array of the backend, wherever it is."""
    at_home, away = of_its_own(check), of_other_devices(check)

    @wraps(check)
    def test(backend: str) -> None:
        at_home(backend)
        away(backend)

    del test.__wrapped__
    return test


def of_the_host(check: Check) -> Callable[[str], None]:
    """A test that holds for every host array of a dtype that the backend has."""
    return _over(check, lambda _: HOST)


def _over(check: Check, origin: Callable[[str], str]) -> Callable[[str], None]:
    @wraps(check)
    def test(backend: str) -> None:
        name = origin(backend)
        for sample in sweep(name, swept(backend)):
            with _Told(sample):
                check(backend, sample)
        drawn = samples(name, dtypes=st.sampled_from(held(backend)), devices="cpu")
        try_on(drawn, lambda sample: check(backend, sample), check.__name__, share=4)

    del test.__wrapped__  # pytest would ask for the arguments of the check
    return test


def try_on(
    drawn: st.SearchStrategy[Example], check: Callable[[Example], None], name: str, *, share: int = 1
) -> None:
    """Run a check on examples, as many as the settings say at the moment, or a share of them."""

    def trial(example: Example) -> None:
        check(example)

    trial.__name__ = name  # by which Hypothesis remembers what has failed
    count = -(-settings().max_examples // share)
    patient = settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    patient(given(drawn)(trial))()


class _Told:
    """Says in a failure which array it was."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            values = self.sample.values
            error.add_note(
                f"the array lies this way: {self.sample.way}; it holds {values.dtype} of shape "
                f"{values.shape}:\n{values!r}"
            )
