"""Faults in what a backend says of itself and of arrays, by the test that must notice them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_toy_backend as good
import kit_toy_samples
import numpy as np
from kit_toy import LIBRARY_DTYPES, Stone, Tile
from kit_toy_planting import array_info, raise_

from xbridge.errors import DeviceError, DTypeError, UnsupportedArrayError
from xbridge.protocol import Gap, Unsupported

if TYPE_CHECKING:
    from kit_toy_planting import Faults

_BARE: tuple[Any] = (ValueError,)

_NO = Unsupported(UnsupportedArrayError, "it may not stay", "leaving")

FAULTS: Faults = {
    "test_a_verb_accepts_the_arguments_of_the_protocol": {
        "a verb takes less": {"accepts_layout": lambda info: True},
        "a verb takes more": {"copy": lambda x, order: good.copy(x)},
        "an option is taken by position": {
            "unsupported": lambda x, leaving, /: good.unsupported(x, leaving=leaving)
        },
    },
    "test_array_types_and_host_casts_are_declared": {
        "no type is named": {"array_types": ()},
        "casts are named wrongly": {"host_casts": frozenset({("double", "float32")})},
    },
    "test_other_types_are_not_owned": {
        "everything is owned": {"owns": lambda cls: True},
        "dtypes are owned": {"owns": lambda cls: issubclass(cls, (Tile, Stone))},
        "host arrays are owned": {"owns": lambda cls: issubclass(cls, (Tile, np.ndarray))},
    },
    "test_unsupported_arrays_are_owned": {
        "what inherits is not owned": {"owns": lambda cls: cls is Tile},
    },
    "test_the_declared_types_are_owned": {
        "arrays are scalars": {"scalar_types": (Tile,)},
        "arrays of the host are scalars": {"scalar_types": (np.ndarray,)},
    },
    "test_the_fast_path_declines_unsupported_arrays": {
        "a subclass takes the hot path": {"fast_types": (Tile, kit_toy_samples.Floor)},
    },
    "test_without_a_compiler_nothing_is_traced": {
        "it is always traced": {"is_tracing": lambda: True},
        "what runs outside runs twice": {"untraced": lambda fn: lambda *args: (fn(*args), fn(*args))[1]},
    },
    "test_the_namespace_makes_arrays_of_the_library": {
        "the namespace is NumPy's": {"namespace": lambda x: np},
        "an undeclared gap: no namespace": {
            "namespace": lambda x: raise_(DTypeError.build("find a namespace", "there is none", "another"))
        },
    },
    "test_array_info_matches_the_array": {
        "the dtype has another name": array_info(
            dtype=lambda x: {"float64": "double"}.get(x.dtype.name, x.dtype.name)
        ),
        "the shape is a list": array_info(shape=lambda x: [*x.shape]),
        "the shape has one axis more": array_info(shape=lambda x: (*x.shape, 1)),
        "the device is a bare string": array_info(device=lambda x: "cpu"),
    },
    "test_dtype_name_reads_dtypes_of_the_library": {
        "a dtype object has another name": {
            "dtype_name": lambda dtype: f"tile.{dtype.name}" if isinstance(dtype, Stone) else None
        },
        "a name is a dtype object": {
            "dtype_name": lambda dtype: dtype if isinstance(dtype, str) else good.dtype_name(dtype)
        },
    },
    "test_dtype_name_reads_dtypes_of_numpy_or_returns_none": {
        "a dtype object of NumPy is an error": {
            "dtype_name": lambda dtype: (
                raise_(TypeError("no stone")) if isinstance(dtype, np.dtype) else good.dtype_name(dtype)
            )
        },
    },
    "test_memory_layout_points_at_the_bytes": {
        "everything is in foreign byte order": array_info(native_byteorder=lambda x: False),
    },
    "test_the_library_cannot_make_its_unsupported_dtypes": {
        "a dtype is lacked that is there": {
            "unsupported_dtype": lambda dtype, device: good.unsupported_dtype(
                "uint64" if dtype == "int8" else dtype, device
            )
        },
    },
    "test_from_numpy_keeps_every_bit": {
        "a dtype is there that is lacked": {
            "unsupported_dtype": lambda dtype, device: good.unsupported_dtype(
                "uint8" if dtype == "uint16" else dtype, device
            ),
            "from_numpy": lambda host: Tile(host.astype("u1") if host.dtype == "u2" else host),
        },
    },
    "test_unsupported_dtype_gives_a_reason_and_a_hint": {
        "the wrong error for a dtype that is lacked": {
            "unsupported_dtype": lambda dtype, device: (
                (r := good.unsupported_dtype(dtype, device)) and r._replace(error=DeviceError)
            )
        },
        "every word is a dtype": {
            "unsupported_dtype": lambda dtype, device: (
                None if dtype == "no such dtype" else good.unsupported_dtype(dtype, device)
            )
        },
    },
    "test_unsupported_arrays_raise_with_a_hint": {
        "what must not leave is let go": {
            "unsupported": lambda x, *, leaving: (
                None if type(x) is not Tile else good.unsupported(x, leaving=leaving)
            )
        },
    },
    "test_ordinary_arrays_are_supported": {
        "what must not leave is refused at home": {
            "unsupported": lambda x, *, leaving: (
                good.unsupported(x, leaving=True) or (None if leaving else _NO)
            )
        },
    },
    "test_unsupported_arrays_have_array_info_and_a_reason": {
        "a refusal is raised": {
            "unsupported": lambda x, *, leaving: (
                raise_(TypeError("no")) if good.unsupported(x, leaving=leaving) else None
            )
        },
        "a refusal has no way out": {
            "unsupported": lambda x, *, leaving: (
                (r := good.unsupported(x, leaving=leaving)) and r._replace(hint="")
            )
        },
        "a refusal is a bare ValueError": {
            "unsupported": lambda x, *, leaving: (
                (r := good.unsupported(x, leaving=leaving)) and Unsupported(*_BARE, r.reason, r.hint)
            )
        },
        "what must not leave is not described": {
            "array_info": lambda x: (
                good.array_info(x) if x.dtype.name in LIBRARY_DTYPES else raise_(KeyError(x.dtype.name))
            )
        },
    },
    "test_read_only_host_memory_gives_a_read_only_array": {
        "an undeclared gap: nothing is read-only": {
            "from_numpy": lambda host: Tile(host if host.flags.writeable else host.copy())
        },
    },
    "test_arrays_move_to_other_devices": {
        "a stale gap": {"gaps": {"devices": Gap("notyet", "tiles do not move")}},
    },
}
