"""What is measured with JAX: beside its own ways between the host, torch and itself.

JAX returns before it has copied, so a statement is done when the array is ready. The rows are to be read as
those of `rows.py`; 64 bits are off, so the arrays are of float32.
"""

from harness import SPEED, TIME
from rows import NO_CALL, NO_COPY, No, Row, Section

FLOATS = "a = np.arange(n, dtype='f4')"
OWN = "x = jnp.arange(n, dtype='f4').block_until_ready()"
TENSOR = "t = torch.arange(n).float()"
READY = ".block_until_ready()"

TO_JAX = ("autoray.do('asarray', a, like='jax')", NO_CALL, "move_to(a, xp=jnp, device=cpu)")
FROM_JAX = ("autoray.to_numpy(x)", NO_CALL, "move_to(x, xp=xnp, device='cpu')")
READ_ONLY = No("hands JAX's memory to torch, which writes it")
TO_TORCH = (READ_ONLY, NO_CALL, READ_ONLY)

CALLS = (
    Row(FLOATS, "xbridge.to_backend(a, 'jax')", ("jnp.asarray(a)", "jax.device_put(a)"), 0.6, TO_JAX),
    Row(OWN, "xbridge.to_numpy(x)", ("np.asarray(x)",), 2.2, FROM_JAX),
    Row(OWN, "xbridge.to_backend(x, 'jax')", ("jnp.asarray(x)",), 1.0, (NO_CALL, NO_CALL, NO_CALL)),
    Row(
        OWN,
        "xbridge.to_backend(x, 'torch')",
        ("torch.from_dlpack(x).clone()", "torch.from_numpy(np.array(x))"),
        3.5,
        TO_TORCH,
    ),
    Row(
        TENSOR, "xbridge.to_backend(t, 'jax')", ("jnp.asarray(t.numpy())",), 0.6, (NO_CALL, NO_CALL, NO_CALL)
    ),
)

BULK = (
    Row(
        FLOATS,
        f"xbridge.to_backend(a, 'jax'){READY}",
        (f"jnp.asarray(a){READY}",),
        5.0,
        (f"{TO_JAX[0]}{READY}", NO_CALL, f"{TO_JAX[2]}{READY}"),
    ),
    Row(
        f"{FLOATS}[::-1]",
        f"xbridge.to_backend(a, 'jax'){READY}",
        (f"jnp.asarray(a){READY}",),
        1.0,
        (f"{TO_JAX[0]}{READY}", NO_CALL, NO_CALL),
    ),
    Row(
        "a = np.arange(float(n))",
        f"xbridge.to_backend(a, 'jax', dtype='float32'){READY}",
        (f"jnp.asarray(a, dtype='float32'){READY}",),
        1.0,
        (NO_CALL, NO_CALL, NO_CALL),
    ),
    Row(OWN, "xbridge.to_numpy(x, copy=True)", ("np.array(x)",), 0.9, (NO_COPY, NO_COPY, NO_COPY)),
    Row(OWN, "xbridge.to_backend(x, 'torch')", ("torch.from_dlpack(x).clone()",), 1.0, TO_TORCH),
    Row(
        TENSOR,
        f"xbridge.to_backend(t, 'jax'){READY}",
        (f"jnp.asarray(t.numpy()){READY}",),
        2.0,
        (NO_CALL, NO_CALL, NO_CALL),
    ),
)


def sections(*, quick: bool) -> tuple[Section, ...]:
    """Return what is timed with JAX; `quick` is just enough to see that it works."""
    many, few = ((1, 40), (1, 5)) if quick else ((10, 60), (3, 7))
    large = 2**19 if quick else 2**26
    time = "Time, as a multiple of the reference's; 100 items of float32."
    speed = "Speed, as a multiple of the reference's"
    return (
        Section("Small arrays of JAX", time, TIME, CALLS, 100, *many, 5e-4),
        Section("Large arrays of JAX", f"{speed}; {large >> 18} MB.", SPEED, BULK, large, *few, 0),
    )
