"""Call functions with a signature lazily, chunk by chunk.

The signature tells which axes belong to one example. The other axes may be divided into chunks. The function
is a node of the graph, so that each worker gets it once, and not with each task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np

from xbridge._host.memory import native_dtype
from xbridge.errors import OptionError
from xbridge.functions.rules import Spec, latest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xbridge._core.protocol import HostArray
    from xbridge.functions.rules import Call, DerivableFunction
    from xbridge.functions.signature import Signature


def run(rule: DerivableFunction, xs: Sequence[da.Array]) -> list[da.Array]:
    """Return the results of a rule as lazy arrays."""
    call, signature = rule.call, rule.call.signature
    assert signature is not None  # noqa: S101 -- the core checks it
    _refuse_other_chunks(call, signature, xs)
    _, sizes = signature.loops(call.name, [x.shape for x in xs])
    for i, (x, core) in enumerate(zip(xs, signature.inputs, strict=True)):
        axes = [axis - len(core) for axis in range(len(core)) if x.numblocks[axis - len(core)] > 1]
        if axes:
            raise OptionError.build(
                f"call {call.name} chunk by chunk",
                f"signature={signature.text!r} keeps an axis of array {i} together that has several chunks",
                f"x.rechunk({dict.fromkeys(axes, -1)})",
            )
    cores = [tuple(x.shape[x.ndim - len(core) :]) for x, core in zip(xs, signature.inputs, strict=True)]
    specs = rule.shapes(tuple(Spec(core, x.dtype.name) for x, core in zip(xs, cores, strict=True)))
    treedef = latest.treedef
    signature.check(call.name, (), sizes, [spec.shape for spec in specs])  # adds the new axes to `sizes`
    news = {
        axis: sizes[axis]
        for core in signature.outputs
        for axis in core
        if not _is_input_axis(axis, signature)
    }
    dtypes = [native_dtype(spec.dtype) for spec in specs]
    made = da.apply_gufunc(
        _run_chunk,
        signature.text,
        *xs,
        call=dask.delayed(call.without_rules(treedef), pure=False, traverse=False),
        specs=specs,
        output_dtypes=dtypes if len(dtypes) > 1 else dtypes[0],
        output_sizes=news or None,
    )
    latest.treedef = treedef
    return list(made) if len(dtypes) > 1 else [made]


def _refuse_other_chunks(call: Call, signature: Signature, xs: Sequence[da.Array]) -> None:
    """Raise if two arrays divide a common axis into different chunks."""
    known: dict[int, tuple[int, tuple[int, ...]]] = {}
    for i, (x, core) in enumerate(zip(xs, signature.inputs, strict=False)):
        outer = x.ndim - len(core)
        for axis, sizes in enumerate(x.chunks[: max(outer, 0)]):
            if sizes == (1,):
                continue
            first, chunks = known.setdefault(axis - outer, (i, sizes))
            if repr(chunks) != repr(sizes):  # by `repr`, because an unknown size is NaN, which equals nothing
                unknown = "nan" in repr((chunks, sizes))
                raise OptionError.build(
                    f"call {call.name} chunk by chunk",
                    f"axis {axis} of array {i} has chunks {sizes}, and array {first} has {chunks} there",
                    "x.compute_chunk_sizes()" if unknown else f"x.rechunk({ {axis: chunks} })",
                )


def _is_input_axis(axis: str, signature: Signature) -> bool:
    return any(axis in core for core in signature.inputs)


def _run_chunk(*chunks: HostArray, call: Call, specs: tuple[Spec, ...]) -> Any:
    """Run the function on chunks, which are read-only because tasks share them."""
    views = []
    for chunk in chunks:
        view = np.asarray(chunk).view()
        view.flags.writeable = False
        views.append(view)
    rule = call.rule()
    ys = rule.call.evaluate(rule, views, "numpy")
    rule.check_treedef(call.declared)
    assert call.signature is not None  # noqa: S101 -- only functions with a signature get here
    loop, _ = call.signature.loops(call.name, [view.shape for view in views])
    found = tuple(Spec(y.shape, y.dtype.name) for y in ys)
    rule.check(found, tuple(spec._replace(shape=(*loop, *spec.shape)) for spec in specs))
    return tuple(ys) if len(ys) > 1 else ys[0]
