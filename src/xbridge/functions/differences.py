"""Derivatives from values of a function, by the method that its user names: `central` or `complex-step`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbridge.functions.rules import no_derivative_error, replace_chosen, select

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xbridge.functions.rules import DerivableFunction
    from xbridge.protocol import HostArray

METHODS = ("complex-step", "central")

_STEP = 1e-30


def refuse_complex_step(
    name: str, kind: str, method: Any, xs: Sequence[HostArray], ys: Sequence[HostArray]
) -> None:
    """Raise if a complex step is asked for where the imaginary part would not be the derivative alone."""
    if method == "complex-step":
        reasons = ("an argument is complex already", "its result is complex already")
        for reason, arrays in zip(reasons, (xs, ys), strict=True):
            if any(x.dtype.kind == "c" for x in arrays):
                raise no_derivative_error(f"{name} by a complex step", reason, f"{kind}='central'")


class Differences(NamedTuple):
    """The derivatives of a rule at the inputs `xs`, from its values."""

    rule: DerivableFunction
    method: str
    ins: tuple[bool, ...]
    outs: tuple[bool, ...]
    xs: Sequence[HostArray]

    def tangents(self, ts: Sequence[HostArray]) -> list[HostArray]:
        """Return the tangents of the outputs along tangents of the inputs."""
        return self._central(ts) if self.method == "central" else self._complex_step(ts)

    def gradients(self, seeds: Sequence[HostArray]) -> list[HostArray]:
        """Return the gradients, one number after the other, from tangents along each axis."""
        chosen = select(self.ins, self.xs)
        gradients = [np.zeros_like(x) for x in chosen]
        for i, gradient in enumerate(gradients):
            for at in np.ndindex(gradient.shape):
                for unit in (1, 1j) if gradient.dtype.kind == "c" else (1,):
                    ts = [np.zeros_like(x) for x in chosen]
                    ts[i][at] = unit
                    along = self.tangents(ts)
                    gradient[at] += unit * sum(np.vdot(g, t).real for g, t in zip(seeds, along, strict=True))
        return gradients

    def _values(self, step: Any, ts: Sequence[HostArray]) -> list[HostArray]:
        """Return the outputs at the inputs plus a step along tangents."""
        moved = [
            x + (step * t).astype(np.result_type(x, step))
            for x, t in zip(select(self.ins, self.xs), ts, strict=True)
        ]
        return select(self.outs, self.rule(*replace_chosen(self.ins, moved, self.xs)))

    def _central(self, ts: Sequence[HostArray]) -> list[HostArray]:
        total: list[HostArray] = []
        for step, some in _choose_steps(ts, select(self.ins, self.xs)):
            above, below = self._values(step, some), self._values(-step, some)
            parts = [(a - b) / (2 * step) for a, b in zip(above, below, strict=True)]
            total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
        return [np.asarray(t) for t in total]

    def _complex_step(self, ts: Sequence[HostArray]) -> list[HostArray]:
        ys = self._values(_STEP * 1j, ts)
        if not all(y.dtype.kind == "c" for y in ys):
            action, reason = (
                f"{self.rule.name} by a complex step",
                "it returned real numbers for complex ones",
            )
            raise no_derivative_error(action, reason, "vjp='central'")
        return [np.imag(y) / _STEP for y in ys]


def _choose_steps(
    ts: Sequence[HostArray], xs: Sequence[HostArray]
) -> Iterator[tuple[float, list[HostArray]]]:
    """Yield steps, each with the part of the tangents that it is for: that of numbers of about one size.

    The step of a number is in proportion to it, or to 1 if it is smaller. A step that fits a large number
    would pass over all that a function does near a small one.
    """
    lengths = [np.where(np.isfinite(x), np.abs(x), 1).astype("f8") for x in xs]
    sizes = [np.floor(np.log10(np.maximum(length, 1))) for length in lengths]
    present = {
        (i, size)
        for i, (t, each) in enumerate(zip(ts, sizes, strict=True))
        for size in np.unique(each[t != 0]).tolist()
    }
    for i, size in sorted(present) or [(0, 0.0)]:
        chosen = np.where(sizes[i] == size, ts[i], np.zeros_like(ts[i]))
        length = float(np.abs(chosen).max(initial=0)) or 1.0
        step = float(np.finfo(ts[i].dtype).eps) ** (1 / 3) * 10.0**size / length
        yield step, [chosen if j == i else np.zeros_like(t) for j, t in enumerate(ts)]
