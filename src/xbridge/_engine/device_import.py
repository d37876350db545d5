"""Import device arrays from unregistered libraries via DLPack.

The target imports them, or else a backend with the flag `imports_dlpack`. Importers do not check an export,
so each capsule is checked before the importer reads it: during its own call of `__dlpack__`, because the
stream that has to wait is an argument of that call. Read-only memory is copied on import, because importers
may lack read-only arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from xbridge._core.protocol import Array, ArrayInfo, Backend, MemoryLayout
from xbridge._host.dlpack import (
    IS_COPIED,
    READ_ONLY,
    NotOnHostError,
    describe_tensor,
    read_capsule,
    request_capsule,
)
from xbridge._host.importers import chain_export_errors, check_export, no_sharing_error, unreadable_error
from xbridge._registry.registry import get, is_available, known_backends
from xbridge.backends import INDEX
from xbridge.errors import DeviceError, XBridgeError

INDEXED = sorted(
    (name for name, entry in INDEX.items() if entry.imports_dlpack),
    key=lambda name: INDEX[name].imports_dlpack,
)
"""The backends of the index that import device memory of unregistered libraries, in order."""

_TOP = 1 << 64


def import_device_array(
    x: Any, refused: NotOnHostError, target: Backend | None, *, must_share: bool
) -> tuple[Array, Backend]:
    """Import the memory of `x`, or a copy if it is read-only. Return the array and its backend."""
    importer = next(_find_importers(refused, target), None)
    if importer is None:
        missing = [INDEX[name].install for name in INDEXED if not is_available(name)]
        hint = refused.hint or next(iter(missing), "")
        raise DeviceError.build(refused.action, refused.reason, hint) from refused.__cause__
    array, shown = _import_checked(x, refused, importer)
    layout = shown.layout
    guarded = not layout.is_unallocated() and (layout.may_overlap_itself() or not layout.writable)
    if must_share and not layout.is_unallocated():
        # An exporter that shares its memory exports the same address each time.
        copied = shown.copied or _import_checked(x, refused, importer)[1].layout != layout
        if copied or guarded:
            reason = f"it may not be written, and {importer.name} has no read-only arrays"
            reason = "it hands out a copy" if copied else reason
            raise no_sharing_error(x, reason)
    return (importer.copy(array) if guarded and not shown.copied else array), importer


def _import_checked(x: Any, refused: NotOnHostError, importer: Backend) -> tuple[Array, _Capsule]:
    """Import the memory, and check that the array agrees with the export and with the attributes of `x`."""
    shown = _Capsule(x, refused, importer)
    assert importer.from_dlpack is not None  # noqa: S101 -- importers have it
    with chain_export_errors(x):
        array = importer.from_dlpack(shown)
        found = importer.array_info(array)
        check_export(x, found.dtype, found.shape)
    if (found.dtype, found.shape) != (shown.dtype, shown.layout.shape) or found.device != refused.device:
        shows = f"it shows {shown.dtype} of shape {shown.layout.shape} on {refused.device}"
        sees = f"{importer.name} sees {found.dtype} of shape {found.shape} on {found.device}"
        raise unreadable_error(x, f"{shows}, and {sees}")
    return array, shown


def _find_importers(refused: NotOnHostError, target: Backend | None) -> Iterator[Backend]:
    """Yield the backends that can import memory of the device: the target, then those with `imports_dlpack`.

    A target that assumes immutable memory is left out, because it may read the memory after the call.
    """
    if refused.device is None:
        return
    own = [] if target is None or target.assumes_immutable else [target]
    names = (*INDEXED, *(name for name in known_backends() if name not in INDEX))
    others = (get(name) for name in names if is_available(name))
    for backend in chain(own, (other for other in others if other.imports_dlpack)):
        if backend.from_dlpack and refused.device in backend.devices():
            yield backend


class _Capsule:
    """A proxy of an exporter, which reads and checks the capsule before it hands it to the importer."""

    dtype: str
    layout: MemoryLayout
    copied = False
    """True if the memory is a new copy."""
    _error: XBridgeError | None = None

    def __init__(self, x: Any, refused: NotOnHostError, importer: Backend) -> None:
        self._x, self._refused, self._importer = x, refused, importer

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device that the exporter gave at first."""
        return self._refused.code

    def __dlpack__(self, *, stream: int | None = None, max_version: object = None, **_: object) -> object:
        """Return the capsule after it was checked. Reading does not use it up."""
        if self._error is not None:
            raise self._error
        try:
            with chain_export_errors(self._x):
                capsule = request_capsule(self._x, {"stream": stream}, {"max_version": max_version or (1, 0)})
            tensor, flags = read_capsule(self._x, capsule)
            if (tensor.device_type, tensor.device_id) != self._refused.code:
                raise unreadable_error(
                    self._x, f"its capsule is on another device than {self._refused.device}"
                )
            self._check(*describe_tensor(self._x, tensor, readonly=bool(flags & READ_ONLY)))
            self.copied = bool(flags & IS_COPIED)
        except XBridgeError as error:  # libraries retry with other arguments, and would hide this error
            self._error = error
            raise
        return capsule

    def _check(self, dtype: str, layout: MemoryLayout) -> None:
        """Store the dtype and the layout, or raise if the importer cannot use such an array."""
        device = self._refused.device
        assert device is not None  # noqa: S101 -- otherwise no importer was found
        lacks = self._importer.unsupported_dtype(dtype, device)
        if lacks:
            raise unreadable_error(self._x, lacks.reason, error=lacks.error)
        low, high = layout.span()
        info = ArrayInfo(dtype, device, layout.shape)
        if not layout.is_unallocated():
            if not 0 < layout.address + low < layout.address + high <= _TOP:
                raise unreadable_error(self._x, "its memory would be outside of any device's")
            if not self._importer.accepts_layout(info, layout):
                raise unreadable_error(
                    self._x, f"{self._importer.name} does not support its strides or its alignment"
                )
        self.dtype, self.layout = dtype, layout
