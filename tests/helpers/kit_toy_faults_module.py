"""Faults in what a backend says of itself and of arrays, by the test that must notice them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_toy_backend as good
import kit_toy_samples
import numpy as np
from kit_toy import LIBRARY_DTYPES, Stone, Tile
from kit_toy_planting import array_info, raise_

from xbridge._core.protocol import Gap, Unsupported
from xbridge.errors import DeviceError, DTypeError, UnsupportedArrayError

if TYPE_CHECKING:
    from kit_toy_planting import Faults

_BARE: tuple[Any] = (ValueError,)

_NO = Unsupported(UnsupportedArrayError, "it may not stay", "leaving")

FAULTS: Faults = {
    "test_a_verb_takes_what_the_protocol_says": {
        "a verb takes less": {"accepts_layout": lambda info: True},
        "a verb takes more": {"copy": lambda x, order: good.copy(x)},
        "an option is taken by position": {
            "unsupported": lambda x, leaving, /: good.unsupported(x, leaving=leaving)
        },
    },
    "test_types_and_casts_are_named": {
        "no type is named": {"array_types": ()},
        "no type takes the fast path": {"fast_types": ()},
        "casts are named wrongly": {"host_casts": frozenset({("double", "float32")})},
    },
    "test_what_is_no_array_of_it_is_not_its_own": {
        "everything is owned": {"owns": lambda cls: True},
        "dtypes are owned": {"owns": lambda cls: issubclass(cls, (Tile, Stone))},
        "host arrays are owned": {"owns": lambda cls: issubclass(cls, (Tile, np.ndarray))},
    },
    "test_an_array_that_must_not_leave_is_owned_all_the_same": {
        "what inherits is not owned": {"owns": lambda cls: cls is Tile},
    },
    "test_its_types_are_its_own": {
        "arrays are scalars": {"scalar_types": (Tile,)},
        "arrays of the host are scalars": {"scalar_types": (np.ndarray,)},
    },
    "test_what_must_not_leave_is_left_to_the_plan": {
        "a subclass takes the hot path": {"fast_types": (Tile, kit_toy_samples.Floor)},
    },
    "test_nothing_is_traced_at_rest_and_what_runs_outside_of_nothing_is_itself": {
        "it is always traced": {"is_tracing": lambda: True},
        "what runs outside runs twice": {"untraced": lambda fn: lambda *args: (fn(*args), fn(*args))[1]},
    },
    "test_the_namespace_makes_arrays_of_the_library": {
        "the namespace is NumPy's": {"namespace": lambda x: np},
        "an undeclared gap: no namespace": {
            "namespace": lambda x: raise_(DTypeError.build("find a namespace", "there is none", "another"))
        },
    },
    "test_an_array_is_described_as_it_is": {
        "the dtype has another name": array_info(
            dtype=lambda x: {"float64": "double"}.get(x.dtype.name, x.dtype.name)
        ),
        "the shape is a list": array_info(shape=lambda x: [*x.shape]),
        "the shape has one axis more": array_info(shape=lambda x: (*x.shape, 1)),
        "the device is a bare string": array_info(device=lambda x: "cpu"),
    },
    "test_a_dtype_object_of_the_library_has_the_name_of_its_dtype": {
        "a dtype object has another name": {
            "dtype_name": lambda dtype: f"tile.{dtype.name}" if isinstance(dtype, Stone) else None
        },
        "a name is a dtype object": {
            "dtype_name": lambda dtype: dtype if isinstance(dtype, str) else good.dtype_name(dtype)
        },
    },
    "test_a_dtype_object_of_numpy_has_its_name_or_none": {
        "a dtype object of NumPy is an error": {
            "dtype_name": lambda dtype: (
                raise_(TypeError("no stone")) if isinstance(dtype, np.dtype) else good.dtype_name(dtype)
            )
        },
    },
    "test_its_bytes_lie_where_its_layout_says": {
        "everything is in foreign byte order": array_info(native_byteorder=lambda x: False),
    },
    "test_the_library_has_no_dtype_that_it_is_said_to_lack": {
        "a dtype is lacked that is there": {
            "unsupported_dtype": lambda dtype, device: good.unsupported_dtype(
                "uint64" if dtype == "int8" else dtype, device
            )
        },
    },
    "test_the_library_gets_every_value_of_the_host": {
        "a dtype is there that is lacked": {
            "unsupported_dtype": lambda dtype, device: good.unsupported_dtype(
                "uint8" if dtype == "uint16" else dtype, device
            ),
            "from_numpy": lambda host: Tile(host.astype("u1") if host.dtype == "u2" else host),
        },
    },
    "test_a_dtype_is_lacked_with_a_reason_or_had": {
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
    "test_what_must_not_leave_is_refused_with_a_way_out": {
        "what must not leave is let go": {
            "unsupported": lambda x, *, leaving: (
                None if type(x) is not Tile else good.unsupported(x, leaving=leaving)
            )
        },
    },
    "test_it_is_refused_nowhere": {
        "what must not leave is refused at home": {
            "unsupported": lambda x, *, leaving: (
                good.unsupported(x, leaving=True) or (None if leaving else _NO)
            )
        },
    },
    "test_an_array_that_must_not_leave_is_described_and_says_why": {
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
    "test_memory_that_may_not_be_written_is_looked_at_read_only": {
        "an undeclared gap: nothing is read-only": {
            "from_numpy": lambda host: Tile(host if host.flags.writeable else host.copy())
        },
    },
    "test_arrays_live_elsewhere_too": {
        "a stale gap": {"gaps": {"devices": Gap("notyet", "tiles do not move")}},
    },
}
