"""Convert Python numbers: to the default dtypes of the target, and without a loss that nobody asked for."""

from __future__ import annotations

from collections.abc import Sequence

from xbridge._core.devices import CPU, Device
from xbridge._core.dtypes import UNNAMED, category, holds_every, holds_integers, is_inexact
from xbridge._core.protocol import Array, Backend, HostArray
from xbridge._engine.convert import convert
from xbridge._engine.source import Source
from xbridge._host import sequences
from xbridge._host.advice import aim
from xbridge._host.sequences import Nest
from xbridge._plan.rules import chosen, destination
from xbridge._plan.steps import Options
from xbridge._registry.registry import get
from xbridge.backends import HOST
from xbridge.errors import OptionError, UnsupportedArrayError, ValueLossError, with_article


def explicit_dtype(options: Options) -> str | None:
    """Return the dtype that the caller named; None for "nearest", "default" or none."""
    return None if options.dtype in UNNAMED else options.dtype


def from_numbers(nest: Nest, target: Backend, options: Options) -> Array:
    """Convert numbers, to the target's default dtypes unless the caller named one."""
    named = explicit_dtype(options)
    device = destination(target, options.device, CPU)
    floating = None if named else target.default_dtype("float", device)
    try:
        host = read_numbers(nest, floating, target, options)
    except (OptionError, UnsupportedArrayError) as error:
        raise aim(error, target) from error.__cause__
    dtype = named or chosen("default", host.dtype.name, target, device)
    refuse_overflow([host], dtype, target, device, noun=nest.noun)
    return convert(Source(host, get(HOST)), target, options_of_numbers(options))


def options_of_numbers(options: Options) -> Options:
    """Return the options with which the host array of a list of numbers is converted."""
    return options._replace(dtype=explicit_dtype(options) or "default")


def read_numbers(nest: Nest, floating: str | None, target: Backend, options: Options) -> HostArray:
    """Return numbers as a host array. Integers become floats only if the caller named such a dtype."""
    named = explicit_dtype(options)

    def nearest_of_target(dtype: str) -> str:
        return chosen("nearest", dtype, target, destination(target, options.device, CPU))

    rounding = named is not None and is_inexact(named)
    return sequences.read_numbers(nest, floating, nearest_of_target, rounding=rounding)


def refuse_overflow(
    numbers: Sequence[HostArray], dtype: str, target: Backend, device: Device, *, noun: str = "list"
) -> None:
    """Raise if an integer of a list does not fit the dtype, also if the caller named that dtype."""
    integers = [array for array in numbers if array.size and array.dtype.kind in "iu"]
    if not integers or category(dtype) != "int":
        return
    bounds = min(int(array.min()) for array in integers), max(int(array.max()) for array in integers)
    if not holds_integers(dtype, *bounds):
        given = next((word for word in ("int64", "uint64") if holds_integers(word, *bounds)), "float64")
        wide = chosen("nearest" if given == "float64" else "default", given, target, device)
        reason = "an integer does not fit"
        hint, lacks = f"dtype={wide!r}", target.unsupported_dtype(given, device)
        if given == "float64":
            hint = f"{hint} to accept rounding"
        elif lacks and not holds_integers(wide, *bounds):
            reason = f"{reason}, and {lacks.reason}"
            hint = lacks.hint and f"{lacks.hint} first"
        elif not holds_every(dtype, wide):  # such as uint64, beside a negative number
            hint = f"{hint}, which wraps what does not fit"
        raise ValueLossError.build(f"make {with_article(dtype)} array of this {noun}", reason, hint)
