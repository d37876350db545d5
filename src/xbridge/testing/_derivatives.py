"""Compare the derivatives of a function in each library with finite differences of its values."""

from __future__ import annotations

import itertools
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xbridge import is_available, to_backend, to_numpy
from xbridge.errors import FOREIGN_ERRORS, GradientError, OptionError
from xbridge.extend import backend_for, is_inexact
from xbridge.testing._outcome import parts
from xbridge.testing._precision import every_digit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from xbridge.protocol import HostArray

    Flat = Callable[..., Sequence[Any]]
    """A function of arrays that returns a sequence of arrays."""

_MOST_COLUMNS = 64
"""The most numbers of an argument that is checked along each axis. Larger ones take random directions."""

_DIRECTIONS = 3

_POWERS = (*range(-1, -11, -1), *range(1, 7))
"""The steps to try, as powers of eight relative to the first."""

_REACH = 2.0**-6
"""The largest step to try, because a larger one may jump over a discontinuity."""


def faults(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], rtol: float | None
) -> Iterator[str]:
    """Yield a line for each derivative that differs from what the values of the function show."""
    flat, xs = _flatten(f, args, kwargs)
    case = Case(flat, xs)
    library = getattr(getattr(f, "__xbridge__", None), "backend", None)
    close = case.eps ** (1 / 3) if rtol is None else rtol
    others = [name for name in GRADIENTS if is_available(name) and name != library]
    checked = 0
    for tangents, seeds in case.directions():
        right = case.slope(tangents, seeds, close)
        allowed = close * right.size + right.noise
        for name in others:
            for mode, slope in _slopes(name, case.flat, case.xs, right.tangents, seeds).items():
                checked += 1
                if not abs(slope - right.value) <= allowed:
                    given = f"the values of the function give {right.value:.6g}, within {allowed:.2g}"
                    yield f"{mode} in {name} is {slope:.6g}, and {given} (rtol={close:.2g})"
            yield from _batch_faults(name, case, right, seeds, allowed)
    if not checked:
        raise OptionError.build(
            "check the derivative of a function",
            "no other library with derivatives is installed",
            "pip install torch",
        )


class _Slope(NamedTuple):
    """The derivative along tangents, from differences of values."""

    tangents: list[HostArray]
    """The tangents along which the arguments really moved, after they were rounded to their dtypes."""
    value: float
    size: float
    """The sum of the absolute values of the terms of `value`."""
    noise: float
    """The part of `value` that may come from rounding in the function."""


class Case:
    """A function of floating and complex arrays to a list of them, and a place to differentiate it at."""

    def __init__(self, flat: Flat, xs: list[HostArray]) -> None:
        self.flat, self.xs = flat, xs
        self._random = np.random.default_rng(0)
        self.ys: list[HostArray] = [np.asarray(y) for y in flat(*xs)]
        self.eps = max(float(np.finfo(x.dtype).eps) for x in (*self.xs, *self.ys))

    def _like(self, x: HostArray) -> HostArray:
        made = self._random.standard_normal(x.shape)
        return np.asarray(
            made + 1j * self._random.standard_normal(x.shape) if x.dtype.kind == "c" else made, x.dtype
        )

    def directions(self) -> Iterator[tuple[list[HostArray], list[HostArray]]]:
        """Yield tangents of the arguments, in proportion to them, and cotangents of the results."""
        sizes = [*map(_sizes, self.xs)]
        for _ in range(_DIRECTIONS):
            moves = [(self._like(x) * size).astype(x.dtype) for x, size in zip(self.xs, sizes, strict=True)]
            yield moves, [*map(self._like, self.ys)]
        if sum(x.size for x in self.xs) <= _MOST_COLUMNS:
            for k, x in enumerate(self.xs):
                for at in np.ndindex(x.shape):
                    units = [np.zeros_like(each) for each in self.xs]
                    units[k][at] = sizes[k][at]
                    yield units, [*map(self._like, self.ys)]

    def slope(self, tangents: list[HostArray], seeds: list[HostArray], close: float) -> _Slope:
        """Return the product of the seeds and the derivative along the tangents, from values.

        Nothing is known of the scale of the function, so steps are tried until two of them agree: one that
        fits a function whose scale is that of its arguments, then smaller ones, then larger ones.
        """
        first = best = last = self._difference(tangents, seeds, 0)
        least = 0.25  # steps that agree no better show nothing, such as those over a jump
        reach = max(float(np.abs(t).max(initial=0)) for t in tangents)
        for power in _POWERS:
            if power == 1:
                last = first
            if power > 0 and self._step(power) * reach > _REACH:
                break
            made = self._difference(tangents, seeds, power)
            # Of two that agree, the smaller step has the smaller error, and the larger one the smaller noise.
            less = min(made, last, key=lambda slope: slope.noise)
            error = abs(made.value - last.value) + less.noise
            if error < least * less.size:
                best, least = less, error / less.size
            if least <= close / 4:
                break
            last = made
        return best

    def _step(self, power: int) -> float:
        """Return the step of a finite difference: the cube root of eps, times a power of eight."""
        return float(2.0 ** (round(np.log2(self.eps) / 3) + 3 * power))

    def _difference(self, tangents: list[HostArray], seeds: list[HostArray], power: int) -> _Slope:
        step = self._step(power)
        with np.errstate(all="ignore"):  # a large step may leave the domain of the function
            above, below = (
                [(x + h * t).astype(x.dtype) for x, t in zip(self.xs, tangents, strict=True)]
                for h in (step, -step)
            )
            moved = [((a - b) / (2 * step)).astype(a.dtype) for a, b in zip(above, below, strict=True)]
            pairs = [map(np.asarray, pair) for pair in zip(self.flat(*above), self.flat(*below), strict=True)]
            ys = [(g, *pair) for g, pair in zip(seeds, pairs, strict=True)]
            terms = [np.real(np.conj(g) * (a - b)).astype("f8") / (2 * step) for g, a, b in ys]
            noise = sum(float((abs(g) * (abs(a) + abs(b))).sum()) for g, a, b in ys)
        value, size = (sum(float(of(term).sum()) for term in terms) for of in (np.asarray, np.abs))
        return _Slope(moved, value, size, noise * self.eps / step)


def _flatten(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Flat, list[HostArray]]:
    """Return a function of the floating and complex arguments alone, and these."""
    given = [x if backend_for(type(x)) is None else to_numpy(x, grad="detach") for x in args]
    moving = [i for i, x in enumerate(given) if isinstance(x, np.ndarray) and x.dtype.kind in "fc"]
    if not moving:
        raise OptionError.build(
            "check the derivative of a function",
            "no argument is a floating or complex array",
            "numpy.ones(3)",
        )

    def flat(*xs: Any) -> tuple[Any, ...]:
        news = dict(zip(moving, xs, strict=True))
        return tuple(_leaves(f(*[news.get(i, x) for i, x in enumerate(given)], **kwargs)))

    return flat, [given[i] for i in moving]


def _sizes(x: HostArray) -> HostArray:
    """Return the sizes of numbers, and for a zero that of the largest number beside it, or 1."""
    sizes = np.abs(x)
    return np.where(sizes > 0, sizes, sizes.max(initial=0) or 1)


def _leaves(tree: Any) -> Iterator[Any]:
    """Yield the floating and complex arrays of a result."""
    for _, part in parts(tree):
        owner = backend_for(type(part))
        if owner is not None and is_inexact(owner.array_info(part).dtype):
            yield part


def product(g: Any, t: Any) -> float:
    """Return the real inner product."""
    return float(np.vdot(np.asarray(g), np.asarray(t)).real)


def torch_gradients(flat: Flat, leaves: Sequence[Any], seeds: Sequence[Any]) -> Sequence[Any] | None:
    """Return the gradients of torch; None if no result depends on the arguments for autograd."""
    import torch  # noqa: PLC0415 -- only if it is installed

    leaves = [x.requires_grad_() for x in leaves]
    found = [(y, torch.as_tensor(g).to(y)) for y, g in zip(flat(*leaves), seeds, strict=True)]
    kept = [(y, g) for y, g in found if y.requires_grad]
    if not kept:
        return None if any(y.numel() for y, _ in found) else ()
    ys, gs = zip(*kept, strict=True)
    return torch.autograd.grad(ys, leaves, gs, allow_unused=True, materialize_grads=True)


def jax_gradients(flat: Flat, xs: Sequence[Any], seeds: Sequence[Any]) -> Sequence[Any]:
    """Return the gradients of JAX, which are the conjugates of the adjoint."""
    import jax  # noqa: PLC0415 -- only if it is installed

    ys, back = jax.vjp(lambda *moved: tuple(flat(*moved)), *xs)
    given = [jax.numpy.conj(jax.numpy.asarray(g, y.dtype)) for y, g in zip(ys, seeds, strict=True)]
    return [jax.numpy.conj(g) for g in back(tuple(given))]


GRADIENTS: dict[str, Callable[..., Sequence[Any] | None]] = {"torch": torch_gradients, "jax": jax_gradients}


def _transforms(name: str) -> Any:
    """Return the module with the transforms of a library."""
    return import_module({"torch": "torch.func"}.get(name, name))


def _slopes(
    name: str, flat: Flat, xs: Sequence[Any], tangents: Sequence[Any], seeds: Sequence[Any]
) -> dict[str, float]:
    """Return the derivative along tangents by each way that a library has to it."""
    with every_digit(name):
        leaves, ins, ts, gs = (
            [to_backend(np.array(x), name) for x in group] for group in (xs, xs, tangents, seeds)
        )
        found = {"the gradient": _along(tangents, GRADIENTS[name](flat, leaves, gs) or ())}
        with suppress(GradientError):
            moved = _transforms(name).jvp(flat, tuple(ins), tuple(ts))[1]
            found["the tangent"] = _along(seeds, moved)
    return found


def _batch_faults(
    name: str, case: Case, right: _Slope, seeds: Sequence[HostArray], allowed: float
) -> Iterator[str]:
    """Yield a line if the gradients of the rows of a batch are not those of the same rows alone.

    Rows differ, and their number is the length of no axis, so that no row or axis is taken for another one.
    """
    derive = _transforms(name)
    lengths = {n for x in (*case.xs, *case.ys) for n in x.shape}
    count = next(n for n in itertools.count(2) if n not in lengths)

    def pull_back(*a: Any) -> Any:
        ins, gs = a[: len(case.xs)], a[len(case.xs) :]
        return jax_gradients(case.flat, ins, gs) if name == "jax" else derive.vjp(case.flat, *ins)[1](gs)

    def rows(reach: float) -> Iterator[list[HostArray]]:
        for i in range(count):
            news = [x + reach * i / count * t for x, t in zip(case.xs, right.tangents, strict=True)]
            news += [(i + 1) * g for g in seeds]
            yield [np.asarray(new, x.dtype) for new, x in zip(news, (*case.xs, *seeds), strict=True)]

    def run_alone(given: Iterable[list[HostArray]]) -> list[float]:
        return [_along(right.tangents, pull_back(*[to_backend(x, name) for x in row])) for row in given]

    with every_digit(name):
        batch = [*rows(_REACH)]
        try:
            alone = run_alone(batch)
        except FOREIGN_ERRORS:  # it refuses arguments beside those given, such as weights whose sum is not 1
            batch = [*rows(0)]
            alone = run_alone(batch)
        try:
            found = derive.vmap(pull_back)(
                *[to_backend(np.stack(xs), name) for xs in zip(*batch, strict=True)]
            )
        except ValueError as error:  # what broadcasting raises, and an `OptionError`
            yield f"the gradient of a batch in {name} raises {type(error).__name__}: {error}"
            return
        for i, expected in enumerate(alone):
            slope = _along(right.tangents, [g[i] for g in found])
            if not np.allclose(slope, expected, rtol=0, atol=(i + 1) * allowed, equal_nan=True):
                yield f"the gradient of a batch in {name} is {slope:.6g} in row {i}, and {expected:.6g} alone"
                return


def _along(tangents: Sequence[HostArray], gradients: Iterable[Any]) -> float:
    return sum(map(product, [to_numpy(g, grad="detach") for g in gradients], tangents))
