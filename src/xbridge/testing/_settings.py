"""Settings of the process that a call may change for all other code: error handling, seeds, variables."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

_SETTINGS = {
    "numpy.geterr()": "numpy.seterr(**value)",
    "numpy.get_printoptions()": "numpy.set_printoptions(**value)",
    "numpy.random.get_state(legacy=False)": "numpy.random.set_state(value)",
    "random.getstate()": "random.setstate(value)",
    "os.getcwd()": "os.chdir(value)",
    "dict(os.environ)": """
for name in os.environ.keys() - value.keys():
    del os.environ[name]
os.environ.update(value)
""",
    "warnings.filters[:]": """
warnings.filters[:] = value
with warnings.catch_warnings():
    pass  # which makes all modules forget what they have ignored
""",
    "torch.get_default_dtype()": "torch.set_default_dtype(value)",
    "torch.get_default_device()": "torch.set_default_device(value)",
    "torch.is_grad_enabled()": "torch.set_grad_enabled(value)",
    "torch.get_rng_state().numpy().tobytes()": "torch.set_rng_state(torch.ByteTensor([*value]))",
    "torch.get_num_threads()": "torch.set_num_threads(value)",
    "jax.config.jax_enable_x64": "jax.config.update('jax_enable_x64', value)",
}
"""Expressions of settings, and the statement that writes a value back."""

_CODES = {text: compile(text, "<setting>", "eval") for text in _SETTINGS}
"""The expressions, compiled once: the settings are read several times for each contract."""

_SET_BY_IMPORTS = ("dict(os.environ)", "warnings.filters[:]")
"""Settings that modules may change when they are imported, which is not the fault of a call."""


class Settings:
    """The present settings of the libraries that are imported."""

    def __init__(self) -> None:
        self._modules = {name: sys.modules[name] for name in _MODULES if name in sys.modules}
        self._values = self._read()
        self._imported = len(sys.modules)

    def _read(self) -> dict[str, Any]:
        found, names = {}, {**self._modules}
        for text in _SETTINGS:
            if module_of(text) in self._modules:
                with suppress(OSError):  # the working directory may be gone
                    value = eval(_CODES[text], names)  # noqa: S307 -- our own expressions
                    found[text] = _comparable(value)
        return found

    def restore(self) -> None:
        """Put all settings back."""
        now = self._read()
        for text, value in self._values.items():
            if now.get(text) != value:
                with suppress(OSError):  # as above
                    exec(_SETTINGS[text], {**self._modules, "value": value})  # noqa: S102 -- our own statements

    def changed(self) -> dict[str, tuple[str, str]]:
        """Return both values of each setting that is not as it was, by its expression."""
        now = self._read()
        left_out = _SET_BY_IMPORTS if len(sys.modules) > self._imported else ()
        return {
            text: _format_difference(value, now.get(text))
            for text, value in self._values.items()
            if text not in left_out and now.get(text) != value
        }


def module_of(text: str) -> str:
    """Return the module that an expression needs."""
    return text.removeprefix("dict(").partition(".")[0]


_MODULES = {*map(module_of, _SETTINGS)}


def _comparable(value: Any) -> Any:
    """Return a value that `==` compares: the state of a generator has arrays."""
    if isinstance(value, dict):
        return {name: _comparable(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _format_difference(before: Any, after: Any) -> tuple[str, str]:
    """Return two values as text. Of dicts, such as the environment, this is only the items that differ."""
    if isinstance(before, dict):
        names = [name for name in before | after if before.get(name) != after.get(name)]
        before, after = ({name: x[name] for name in names if name in x} for x in (before, after))
    return repr(before), repr(after)


def changed_by(call: Callable[[], object]) -> tuple[str, str, str] | None:
    """Return a setting that a call changes, and its values before and after; None if there is none.

    What a second call changes once more is no setting, but a generator of random numbers that was used.
    """
    before = Settings()
    call()
    if not before.changed():
        return None
    after = Settings()
    call()
    moved = after.changed()
    found = [(text, *values) for text, values in before.changed().items() if text not in moved]
    return found[0] if found else None
