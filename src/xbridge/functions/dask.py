"""Call functions with a signature lazily, chunk by chunk.

The signature tells which axes belong to one example. The other axes may be divided into chunks. The function
is a node of the graph, so that each worker gets it once, and not with each task.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np

from xbridge.errors import OptionError
from xbridge.extend import native_dtype
from xbridge.functions.inputs import protect_host
from xbridge.functions.libraries import rule_of
from xbridge.functions.rules import Spec, latest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge.functions.rules import Call, DerivableFunction
    from xbridge.functions.treedef import TreeDef
    from xbridge.protocol import HostArray


def run(rule: DerivableFunction, xs: Sequence[da.Array]) -> list[da.Array]:
    """Return the results of a rule as lazy arrays."""
    call, signature = rule.call, rule.call.given.signature
    assert signature is not None  # noqa: S101 -- the core checks it
    # A length that is not known yet is NaN.
    _, sizes = signature.loops(call.name, [tuple([1 if isnan(n) else n for n in x.shape]) for x in xs])
    for i, (x, core) in enumerate(zip(xs, signature.inputs, strict=True)):
        axes = [axis - len(core) for axis in range(len(core)) if x.numblocks[axis - len(core)] > 1]
        if axes:
            raise OptionError.build(
                f"call {call.name} chunk by chunk",
                f"signature={signature.text!r} keeps an axis of array {i} together that has several chunks",
                f"x.rechunk({dict.fromkeys(axes, -1)})",
            )
    cores = [tuple(x.shape[x.ndim - len(core) :]) for x, core in zip(xs, signature.inputs, strict=True)]
    specs, treedef = rule.outputs(tuple(map(Spec, cores, [x.dtype.name for x in xs])))
    signature.check(call.name, (), sizes, [spec.shape for spec in specs])  # adds the new axes to `sizes`
    news = {axis: n for axis, n in sizes.items() if not any(axis in core for core in signature.inputs)}
    dtypes = [native_dtype(spec.dtype) for spec in specs]
    try:
        made = da.apply_gufunc(
            _run_chunk,
            signature.text,
            *xs,
            call_and_treedef=dask.delayed((call, treedef), pure=False, traverse=False),
            specs=specs,
            output_dtypes=dtypes if len(dtypes) > 1 else dtypes[0],
            output_sizes=news or None,
        )
    except ValueError as error:
        hint = "x.rechunk(y.chunks), or x.compute_chunk_sizes() before it"
        raise OptionError.build(f"call {call.name} chunk by chunk", str(error), hint) from error
    latest.treedef = treedef
    return list(made) if len(dtypes) > 1 else [made]


def _run_chunk(*chunks: HostArray, call_and_treedef: tuple[Call, TreeDef], specs: tuple[Spec, ...]) -> Any:
    """Run the function on chunks, which are read-only because tasks share them."""
    call, treedef = call_and_treedef
    views = [protect_host(chunk, chunk) for chunk in map(np.asarray, chunks)]
    rule = rule_of(call)
    ys = rule.evaluate(views, "numpy")
    rule.check_treedef(treedef)
    assert call.given.signature is not None  # noqa: S101 -- only functions with a signature get here
    loop, _ = call.given.signature.loops(call.name, [view.shape for view in views])
    found = tuple(Spec(y.shape, y.dtype.name) for y in ys)
    rule.check(found, tuple(spec._replace(shape=(*loop, *spec.shape)) for spec in specs))
    return tuple(ys) if len(ys) > 1 else ys[0]
