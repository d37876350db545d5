"""INDEX: the list of the built-in backends. It holds strings only, so to read it imports nothing.

An entry names the module of a backend, the package roots of its array types, and the command that installs
the library. Everything else about a library is in its own module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


class Entry:
    """The module of a backend, and the installed package that announces it, if one does.

    `imports_dlpack` is the position of a backend with that flag in the order in which such backends are
    tried. It is known without the library, so that an error can name what to install.
    """

    __slots__ = ("imports_dlpack", "install", "module", "package", "roots")

    def __init__(
        self,
        module: str | ModuleType,
        roots: tuple[str, ...],
        install: str,
        package: str = "",
        imports_dlpack: int = 0,
    ) -> None:
        self.module: str | ModuleType = module
        self.roots: tuple[str, ...] = roots
        self.install: str = install
        self.package: str = package
        self.imports_dlpack: int = imports_dlpack

    def __str__(self) -> str:
        """Return the module, and the package that announces it."""
        path = self.module if isinstance(self.module, str) else self.module.__name__
        return f"{path} of the package {self.package}" if self.package else path


INDEX = {
    "numpy": Entry("xbridge.backends.numpy", ("numpy", "ml_dtypes"), "pip install numpy"),
    "torch": Entry(
        "xbridge.backends.torch", ("torch",), "pip install 'xbridge-array[torch]'", imports_dlpack=2
    ),
    "jax": Entry("xbridge.backends.jax", ("jax", "jaxlib"), "pip install 'xbridge-array[jax]'"),
    "cupy": Entry("xbridge.backends.cupy", ("cupy",), "pip install 'xbridge-array[cupy]'", imports_dlpack=1),
    "dask": Entry("xbridge.backends.dask", ("dask",), "pip install 'xbridge-array[dask]'"),
    "array_api_strict": Entry(
        "xbridge.backends.array_api_strict",
        ("array_api_strict",),
        "pip install 'xbridge-array[array-api-strict]'",
    ),
}

HOST = "numpy"
"""The backend whose arrays stand for host memory."""
