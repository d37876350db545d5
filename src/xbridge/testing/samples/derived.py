"""Samples that are derived from a backend alone: every layout of host memory that it accepts.

The memory is new and has no other owner. So a library may read it later than the call, or rely on it not to
change. The kit reads such an array at the address that its backend reports.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from xbridge.errors import type_of
from xbridge.extend import CPU, DTYPES, HOST, get_backend, native_dtype
from xbridge.protocol import ArrayInfo
from xbridge.testing import _raw_memory
from xbridge.testing.samples import LayoutCase
from xbridge.testing.samples import numpy as host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from xbridge.protocol import Array, Backend, HostArray

    Shape: TypeAlias = tuple[int, ...]


class DerivedSamples:
    """The samples of a library without a module of its own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.refused: Mapping[str, Callable[[], Array]] = {}
        self._is_writable = backend.memory_layout(backend.from_numpy(np.zeros(1, bool))).writable
        known = {name: self._case(case) for name, case in host.cases.items()}
        self.cases: Mapping[str, LayoutCase] = {
            name: case
            for name, case in known.items()
            if case and any(case.takes(dtype, shape) for shape in ((2, 3), (), (2,)) for dtype in DTYPES)
        }

    def _case(self, case: LayoutCase) -> LayoutCase | None:
        """Return the same case if the backend accepts it. Only read-only memory may overlap itself."""
        backend = self._backend
        fixed = case.fold is not None or not case.writable
        if fixed and not backend.readonly:
            return None

        def make(values: HostArray) -> Array:
            memory = case.make(values)
            return backend.from_numpy((host.as_readonly(memory) if fixed else memory).view(np.ndarray))

        @cache
        def takes(dtype: str, shape: Shape) -> bool:
            libraries = (backend, get_backend(HOST))  # values of the dtype are made in host memory first
            if any(each.unsupported_dtype(dtype, CPU) for each in libraries) or not case.takes(dtype, shape):
                return False
            memory = case.make(np.zeros(shape, native_dtype(dtype)))
            info = ArrayInfo(dtype, CPU, shape, native_byteorder=memory.dtype.isnative)
            return backend.accepts_layout(info, get_backend(HOST).memory_layout(memory))

        writable = not fixed and not backend.assumes_immutable and self._is_writable
        return LayoutCase(
            make,
            fold=case.fold,
            takes=takes,
            writable=writable,
            as_readonly=self._as_readonly if writable and backend.readonly else None,
            require_grad=backend.require_grad if backend.autograd else None,
        )

    def _as_readonly(self, x: Array) -> Array:
        return self._backend.from_numpy(_raw_memory.read_only(self._backend.to_numpy(x)))

    def read(self, x: Array, /) -> HostArray:
        """Materialize the array, and read the bytes at the address that the backend reports."""
        backend = self._backend
        info = backend.array_info(x)
        plain = backend.detach(x) if info.requires_grad else x
        plain = plain if backend.memory_layout(plain).materialized else backend.materialize(plain)
        plain = plain if info.device == CPU else backend.to_device(plain, CPU)
        raw, dtype = _raw_memory.in_place(backend.memory_layout(plain)).copy(), native_dtype(info.dtype)
        memory = raw.view(f"V{dtype.itemsize}").reshape(info.shape)
        return memory.view(dtype) if info.native_byteorder else host.read(memory.view(dtype.newbyteorder()))

    def write(self, x: Array, /) -> None:
        """Invert every bit at the address that the backend reports; on a device, by an assignment."""
        info, layout = self._backend.array_info(x), self._backend.memory_layout(x)
        if info.requires_grad or self._backend.assumes_immutable or not layout.writable:
            message = f"{type_of(x)} on {info.device} is read-only"
            raise ValueError(message)
        if info.device != CPU:
            values = self.read(x)
            host.write(values)
            x[...] = self._backend.to_device(self._backend.from_numpy(values), info.device)
            return
        raw = _raw_memory.in_place(layout)
        raw[...] = raw.copy() ^ np.uint8(1 if info.dtype == "bool" else 0xFF)
