"""Watch a torch function for what makes it impure: what it draws, writes, and reads beside its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from xbridge import tree
from xbridge.errors import GradientError
from xbridge.testing._diff import differences, look, same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.functions.torch.purity import Watch


class _Run(NamedTuple):
    """A watched run: what it did, the states in which it left torch's generators, and its result."""

    watch: Watch
    states: list[bytes]
    result: list[Any]


def assert_pure(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Assert that a torch function is pure, as `aligned` asks: its result depends on its arguments alone.

    The function runs twice, and each of its operations is watched. It must not draw random numbers, unless it
    sets a seed, nor write to tensors that it did not make. Both runs must read the same tensors and return
    the same numbers.

    Parameters
    ----------
    f : callable
        A function or a module of torch, or an aligned function whose backend is torch.
    *args, **kwargs
        Its arguments. The arrays in them, of any library, become copies in torch.

    Raises
    ------
    AssertionError
        If the function is not pure. The message says what it did.

    See Also
    --------
    assert_derivative : Assert that the derivatives of an aligned function match its values.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    >>> assert_pure(layer.eval(), torch.ones(3, 2))
    >>> assert_pure(layer.train(), torch.ones(3, 2))
    Traceback (most recent call last):
    AssertionError: Sequential is not pure: it draws random numbers
    """
    function = getattr(f, "__xbridge__", None)
    fn = f if function is None else function.fn
    try:
        reason = _compare_runs(_watch(fn, args, kwargs), _watch(fn, args, kwargs))
    except GradientError:
        reason = "it writes to a tensor that is not its own"
    if reason:
        name = getattr(fn, "__qualname__", type(fn).__name__)
        raise AssertionError(f"{name} is not pure: {reason}")


def _watch(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Run:
    from xbridge.functions.torch.purity import Watch  # noqa: PLC0415 -- imports torch

    args, kwargs = tree.to_torch((args, kwargs), copy=True)
    with Watch("f", _leaves((args, kwargs))) as watch:
        result = fn(*args, **kwargs)
    return _Run(watch, watch.states(), _leaves(result))


def _leaves(result: Any) -> list[Any]:
    found: list[Any] = []
    tree.map(found.append, result)
    return found


def _compare_runs(first: _Run, second: _Run) -> str:
    """Return what makes a function impure, if anything does."""
    if first.watch.may_draw and first.states != second.states:
        return "it draws random numbers"
    if second.watch.reads().keys() - first.watch.reads().keys() - first.watch.made.keys():
        return "it reads other tensors when it runs again"
    pairs = zip(map(look, first.result), map(look, second.result), strict=False)
    facts = ("backend", "dtype", "device", "shape")
    if len(first.result) != len(second.result) or any(differences(*pair, facts, same_bits) for pair in pairs):
        return "it returns other numbers when it runs again"
    return ""
