"""The calls of a function in the examples of its docstring, with the arguments that the examples give it.

The statements of the examples run one by one. Those that plot, write or need what is not there are passed
over.
"""

from __future__ import annotations

import ast
import inspect
import re
import time
from contextlib import redirect_stdout
from doctest import DocTestParser
from functools import partial
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from xbridge._api import to_numpy
from xbridge._registry.registry import backend_for
from xbridge.testing._outcome import outcome
from xbridge.testing.check.targets import WRITES

if TYPE_CHECKING:
    from collections.abc import Callable

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_PASSED_OVER = re.compile(r"matplotlib|\bplt\.|\bax\d?\.|\bfig\.|\bdatasets?\b|fetch_|urllib|requests")
"""Statements that draw figures or load data."""

_MOST_CALLS = 6
_MOST_ELEMENTS = 4096
_SECONDS = 0.5
"""The most processor time that the examples of a function may take."""

_PLAIN = (bool, int, float, complex, str, type(None))


def calls_in_examples(f: Callable[..., Any], module: str, name: str) -> list[Arguments]:
    """Run the examples of a function, and return the arguments of its calls, with NumPy's arrays.

    Calls with arguments that a program cannot show, such as functions, are left out.
    """
    sources = [one.source for one in _parse(f)]
    if not any(name in source for source in sources):
        return []
    place = import_module(module)
    calls: list[Arguments] = []

    def record(*args: Any, **kwargs: Any) -> Any:
        taken = outcome(lambda: (tuple(map(_as_plain, args)), {k: _as_plain(v) for k, v in kwargs.items()}))
        if taken.error is None and len(calls) < _MOST_CALLS:
            calls.append(taken.result)
        return f(*args, **kwargs)

    around = getattr(inspect.unwrap(f), "__globals__", {})
    names: dict[str, Any] = {**around, **vars(place), "np": np, "__name__": "__examples__", name: record}
    original, generator, state = getattr(place, name), np.random.default_rng, np.random.get_state()  # noqa: NPY002 -- examples use it
    end = time.process_time() + _SECONDS
    try:
        setattr(place, name, record)
        np.random.default_rng = lambda seed=0: generator(seed)
        np.random.seed(0)  # noqa: NPY002 -- examples use it
        for source in sources:
            if time.process_time() > end or len(calls) == _MOST_CALLS:
                break
            if not _PASSED_OVER.search(source) and not WRITES.search(source):
                with redirect_stdout(StringIO()), np.errstate(all="ignore"):
                    outcome(partial(exec, source, names))
                names[name] = record
    finally:
        setattr(place, name, original)
        np.random.default_rng = generator
        np.random.set_state(state)  # noqa: NPY002 -- examples use it
    return calls


def _parse(f: Callable[..., Any]) -> list[Any]:
    """Return the examples of a docstring that are Python."""
    read = outcome(lambda: DocTestParser().get_examples(inspect.getdoc(f) or ""))
    return [one for one in read.result or () if outcome(partial(ast.parse, one.source)).error is None]


class _HiddenError(Exception):
    """An argument cannot be shown in a program."""


def _as_plain(x: Any) -> Any:
    """Return an argument made of numbers, text and NumPy arrays alone; raise if it has anything else."""
    if isinstance(x, np.ndarray) or backend_for(type(x)) is not None:
        values = np.array(x if isinstance(x, np.ndarray) else to_numpy(x, grad="detach"))
        if values.dtype.kind not in "biufc" or values.size > _MOST_ELEMENTS:
            raise _HiddenError
        return values if values.ndim or isinstance(x, np.ndarray) else values.item()
    if type(x) in _PLAIN:
        return x
    if type(x) in (list, tuple, range):
        return (list if type(x) is range else type(x))(map(_as_plain, x))
    if type(x) is dict and all(isinstance(key, str) for key in x):
        return {key: _as_plain(value) for key, value in x.items()}
    raise _HiddenError
