"""What JAX does not document, and functions make primitives of. No other module names it.

A call needs a jvp, a transpose and a batch rule. `jax.custom_vjp` has no jvp (jax-ml/jax#17840), and the
tangent of a `jax.custom_jvp` that calls back has no transpose (jax-ml/jax#30401). So calls are primitives, as
JAX's page "Custom derivatives and primitives" makes them, and can be those functions once both are closed.
All names are there from JAX 0.8 to 0.12.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from jax.core import ShapedArray
from jax.interpreters.ad import Zero, primitive_jvps, primitive_transposes
from jax.interpreters.batching import primitive_batchers
from jax.interpreters.mlir import emit_python_callback, register_lowering
from jax.interpreters.partial_eval import dce_rules  # so that no run is recorded in vain
from jax.interpreters.partial_eval import partial_eval_jaxpr_custom_rules as checkpoint_rules

__all__ = [
    "Zero",
    "checkpoint_rules",
    "dce_rules",
    "emit_python_callback",
    "primitive_batchers",
    "primitive_jvps",
    "primitive_transposes",
    "register_lowering",
    "varying_axes",
]

varying_axes: Any = attrgetter("vma" if hasattr(ShapedArray, "vma") else "manual_axis_type.varying")
"""The axes of a mesh over which an array varies in `shard_map`; the second name is that of JAX 0.11."""
