"""What is measured with JAX: beside its own ways between the host, torch and itself.

JAX returns before it has copied, so a bulk statement is done when its array is ready. The rows are to be read
as those of `rows.py`; 64 bits are off, so the arrays are of float32.
"""

from importlib import import_module
from typing import Any

from harness import SPEED, TIME
from rows import NO_CALL, NO_COPY, NO_DTYPE, PAGES, No, RecordRow, Section

__all__ = ["ROWS", "names", "sections"]

FLOATS = "a = np.arange(n, dtype='f4')"
OWN = "x = jnp.arange(n, dtype='f4').block_until_ready()"
TENSOR = "t = torch.arange(n).float()"
READY = ".block_until_ready()"
OURS = "xbridge.to_backend(a, 'jax')"
OURS_OF_TENSOR = "xbridge.to_backend(t, 'jax')"
OURS_TO_TORCH = "xbridge.to_backend(x, 'torch')"

TO_JAX = ("autoray.do('asarray', a, like='jax')", "numpy_to_jax(a)", "move_to(a, xp=jnp, device=cpu)")
READY_IN_JAX = (TO_JAX[0] + READY, TO_JAX[1] + READY, TO_JAX[2] + READY)
FROM_JAX = ("autoray.to_numpy(x)", "jax_to_numpy(x)", "move_to(x, xp=xnp, device='cpu')")
SHARED = No("hands JAX's memory to torch, which writes it")
TO_TORCH = (NO_CALL, SHARED, SHARED)
NONE = (NO_CALL,) * 3

CALLS = (
    RecordRow(FLOATS, OURS, ("jnp.asarray(a)", "jax.device_put(a)"), 1.0, TO_JAX),
    RecordRow(OWN, "xbridge.to_numpy(x)", ("np.asarray(x)",), 2.5, FROM_JAX),
    RecordRow(OWN, "xbridge.to_backend(x, 'jax')", ("jnp.asarray(x)",), 1.0, NONE),
    RecordRow(OWN, "xbridge.to_backend(x, 'jax', dtype='float16')", ("x.astype('float16')",), 4, NONE),
    RecordRow(OWN, "xbridge.to_backend(x, 'jax', copy=True)", ("jnp.array(x, copy=True)",), 4, NONE),
    RecordRow(OWN, "xbridge.to_numpy(x, copy=True)", ("np.array(x)",), 4, (NO_COPY,) * 3),
    RecordRow(TENSOR, OURS_OF_TENSOR, ("jnp.asarray(t.numpy())", "jnp.from_dlpack(t.clone())"), 1.0, NONE),
    RecordRow(
        OWN, OURS_TO_TORCH, ("torch.from_dlpack(x).clone()", "torch.from_numpy(np.array(x))"), 3.5, TO_TORCH
    ),
)

BULK = (
    RecordRow(FLOATS, OURS + READY, (f"jnp.asarray(a){READY}",), 5.0, READY_IN_JAX, PAGES),
    RecordRow(f"{FLOATS}[::-1]", OURS + READY, (f"jnp.asarray(a){READY}",), 1.0, READY_IN_JAX),
    RecordRow(
        "a = np.arange(float(n))",
        f"{OURS[:-1]}, dtype='float32'){READY}",
        (f"jnp.asarray(a, dtype='float32'){READY}",),
        1.0,
        (NO_DTYPE,) * 3,
    ),
    RecordRow(TENSOR, OURS_OF_TENSOR + READY, (f"jnp.asarray(t.numpy()){READY}",), 2.0, NONE),
    RecordRow(OWN, "xbridge.to_numpy(x, copy=True)", ("np.array(x)",), 0.9, (NO_COPY,) * 3),
    RecordRow(
        OWN, OURS_TO_TORCH, ("torch.from_dlpack(x).clone()", "torch.from_numpy(np.array(x))"), 0.9, TO_TORCH
    ),
)

ROWS = (*CALLS, *BULK)


def names() -> dict[str, Any]:
    """Return what the statements see besides the others' libraries."""
    jax, gymnasium = import_module("jax"), import_module("gymnasium.wrappers.jax_to_numpy")
    return {
        "jax": jax,
        "jnp": import_module("jax.numpy"),
        "cpu": jax.devices("cpu")[0],
        "numpy_to_jax": gymnasium.numpy_to_jax,
        "jax_to_numpy": gymnasium.jax_to_numpy,
    }


def sections(*, quick: bool) -> tuple[Section, ...]:
    """Return what is timed with JAX; if quick, just enough to see that it works."""
    many, few = ((1, 40), (1, 5)) if quick else ((10, 60), (3, 7))
    large = 2**19 if quick else 2**26
    time = "Time, as a multiple of the reference's; 100 items of float32."
    speed = f"Speed, as a multiple of the reference's; {large >> 18} MB."
    return (
        Section("Small arrays of JAX", time, TIME, CALLS, 100, *many, 5e-4),
        Section("Large arrays of JAX", speed, SPEED, BULK, large, *few, 0),
    )
