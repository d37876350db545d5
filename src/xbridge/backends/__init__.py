"""The built-in backends, and the index of them, which consists of strings and imports no library.

An entry has the module of a backend, the top-level packages that its array types come from, and the command
that installs the library. Everything else about a library is in its own module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


class Entry:
    """Where to find a backend: its module, or the installed package that announces it as an entry point."""

    __slots__ = ("install", "module", "package", "roots")

    def __init__(
        self, module: str | ModuleType, roots: tuple[str, ...], install: str, package: str = ""
    ) -> None:
        self.module: str | ModuleType = module
        self.roots: tuple[str, ...] = roots
        self.install: str = install
        self.package: str = package

    def __str__(self) -> str:
        """Return the module, and the package that announces it."""
        path = self.module if isinstance(self.module, str) else self.module.__name__
        return f"{path} of the package {self.package}" if self.package else path


INDEX = {
    "numpy": Entry("xbridge.backends.numpy", ("numpy", "ml_dtypes"), "pip install numpy"),
    "torch": Entry("xbridge.backends.torch", ("torch",), "pip install 'xbridge-array[torch]'"),
    "jax": Entry("xbridge.backends.jax", ("jax", "jaxlib"), "pip install 'xbridge-array[jax]'"),
    "cupy": Entry("xbridge.backends.cupy", ("cupy",), "pip install 'xbridge-array[cupy]'"),
    "dask": Entry("xbridge.backends.dask", ("dask",), "pip install 'xbridge-array[dask]'"),
    "array_api_strict": Entry(
        "xbridge.backends.array_api_strict",
        ("array_api_strict",),
        "pip install 'xbridge-array[array-api-strict]'",
    ),
}

HOST = "numpy"
"""The name of the backend whose arrays represent host memory."""
