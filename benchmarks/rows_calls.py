"""What is measured of functions of other libraries: beside functions written by hand, callbacks and peers.

The function is `x sin(x)`, in NumPy, torch and JAX. `layers` are four of 512 neurons, which compute so much
that a value and its gradient are measured in forward passes. jax2torch's function is written here as its page
has it, with today's calls of DLPack: 0.0.7, the newest, calls `jax.dlpack.to_dlpack`, which JAX has no more.
wrap_torch2jax compiles C++ for torch and JAX when it is imported for the first time.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from harness import NS, TIME
from rows import NO_CALL, RecordRow, Section

__all__ = ["ROWS", "names", "sections"]

NONE = (NO_CALL,) * 3
TENSOR = "t = torch.linspace(0.5, 3, n, dtype=torch.float64)"
FOLLOWED = f"{TENSOR}.requires_grad_()"
SINGLE = "t = torch.linspace(0.5, 3, n).requires_grad_()"
ARRAY = "x = jnp.linspace(0.5, 3, n)"
BATCH = "x = jnp.linspace(0.5, 3, 4 * n).reshape(4, n)"
EXAMPLES = "x = jnp.linspace(0.5, 3, 8 * n).reshape(2, 4, n)"
READY = ".block_until_ready()"
BACKWARD = "torch.autograd.grad({}(t).sum(), t)"

FORWARD = (RecordRow(TENSOR, "numpy_ours(t)", ("empty(t)",), 15_000, NONE),)
SMALL = (
    RecordRow(TENSOR, "numpy_ours(t)", ("numpy_by_hand(t)",), None, NONE),
    RecordRow(FOLLOWED, BACKWARD.format("numpy_ours"), (BACKWARD.format("numpy_by_hand"),), 4, NONE),
    RecordRow(SINGLE, "jax_ours(t)", ("jax2torch(t)",), None, NONE),
    RecordRow(SINGLE, BACKWARD.format("jax_ours"), (BACKWARD.format("jax2torch"),), 0.4, NONE),
    RecordRow(ARRAY, f"torch_ours(x){READY}", (f"callback(x){READY}",), 1.2, NONE),
    RecordRow(ARRAY, "ready(value_and_slope(x))", ("ready(value_and_slope_by_hand(x))",), 1.2, NONE),
    RecordRow(BATCH, f"slopes(x){READY}", (f"slopes_by_torch(x){READY}",), None, NONE),
    RecordRow(ARRAY, f"curvature(x){READY}", (f"curvature_by_torch(x){READY}",), None, NONE),
    RecordRow(BATCH, f"network(x){READY}", (f"network_by_hand(x){READY}",), 1.5, NONE),
    RecordRow(BATCH, f"network_curvature(x){READY}", (f"network_curvature_by_torch(x){READY}",), None, NONE),
    RecordRow(EXAMPLES, f"encoder(x){READY}", (f"encoder_by_hand(x){READY}",), 1.5, NONE),
    RecordRow(ARRAY, f"numpy_in_jax(x){READY}", (f"numpy_callback(x){READY}",), 1.2, NONE),
)
PEER = (
    RecordRow(ARRAY, f"torch_ours(x){READY}", (f"torch2jax(x){READY}",), None, NONE),
    RecordRow(ARRAY, f"slope_ours(x){READY}", (f"slope_torch2jax(x){READY}",), 1, NONE),
)
LARGE = (
    RecordRow(TENSOR, "numpy_ours(t)", ("torch.from_numpy(by_numpy(t.numpy()))",), 1.15, NONE),
    RecordRow(
        "t = torch.linspace(0.5, 3, n)",
        "jax_ours(t)",
        ("torch.from_numpy(np.array(by_jax(jnp.array(t.numpy()))))",),
        1.15,
        NONE,
    ),
    RecordRow(ARRAY, f"torch_ours(x){READY}", (f"callback(x){READY}",), 1.15, NONE),
    RecordRow(FOLLOWED, BACKWARD.format("numpy_ours"), (BACKWARD.format("numpy_by_hand"),), 1.15, NONE),
    RecordRow(SINGLE, BACKWARD.format("jax_ours"), (BACKWARD.format("jax2torch"),), None, NONE),
    RecordRow(ARRAY, "ready(layers_and_slope(x))", ("ready(layers(x))",), 2.3, NONE),
)
HAS_PEER = find_spec("wrap_torch2jax") is not None
ROWS = (*FORWARD, *SMALL, *(PEER if HAS_PEER else ()), *LARGE)


def names() -> dict[str, Any]:
    """Return what the statements see besides the others' libraries."""
    np, torch, jax = (import_module(name) for name in ("numpy", "torch", "jax"))
    jnp, aligned = jax.numpy, import_module("xbridge").aligned
    found = {"jnp": jnp, **_by_hand(np, torch, jax)}

    def by_numpy(x: Any) -> Any:
        return np.sin(x) * x

    def vjp(g: Any, _: Any, x: Any) -> Any:
        return g * (np.sin(x) + x * np.cos(x))

    def by_torch(x: Any) -> Any:
        return torch.sin(x) * x

    by_jax = jax.jit(lambda x: jnp.sin(x) * x)
    torch_ours = aligned(backend="torch")(by_torch)
    numpy_ours = aligned(backend="numpy", signature="()->()", vjp=vjp)(by_numpy)
    found |= {"by_numpy": by_numpy, "by_jax": by_jax, "numpy_ours": numpy_ours}
    found["jax_ours"] = aligned(backend="jax")(by_jax)
    found["torch_ours"] = jax.jit(torch_ours)
    found["slope_ours"] = jax.jit(jax.grad(lambda x: torch_ours(x).sum()))
    found["numpy_in_jax"] = jax.jit(numpy_ours)
    weight = torch.linspace(-0.1, 0.1, 2**18).reshape(512, 512)

    def by_layers(x: Any) -> Any:
        y = x.reshape(-1, 512)
        for _ in range(4):
            y = torch.tanh(y @ weight)
        return y.sum()

    layers = aligned(backend="torch")(by_layers)
    found |= {"layers": jax.jit(layers), "layers_and_slope": jax.jit(jax.value_and_grad(layers))}
    found["ready"] = jax.block_until_ready

    def torch_on_host(x: Any) -> Any:
        return by_torch(torch.from_numpy(np.array(x))).numpy()

    def callback(fn: Any) -> Any:
        return jax.jit(lambda x: jax.pure_callback(fn, jax.ShapeDtypeStruct(x.shape, x.dtype), x))

    found["callback"] = callback(torch_on_host)
    found["numpy_callback"] = callback(lambda x: by_numpy(np.asarray(x)))
    found |= _networks(torch, jax, by_torch)
    if HAS_PEER:
        peer = import_module("wrap_torch2jax").torch2jax(
            by_torch, jax.ShapeDtypeStruct((8,), "float32"), depth=2
        )
        found["torch2jax"] = jax.jit(peer)
        found["slope_torch2jax"] = jax.jit(jax.grad(lambda x: peer(x).sum()))
    return found


def _by_hand(np: Any, torch: Any, jax: Any) -> dict[str, Any]:
    """Return functions of torch as one would write them for one function."""

    class Numpy(torch.autograd.Function):  # type: ignore[misc] # a base class of any type
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            host = x.detach().numpy()
            return torch.from_numpy(np.sin(host) * host)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x = ctx.saved_tensors[0].detach().numpy()
            return torch.from_numpy(g.numpy() * (np.sin(x) + x * np.cos(x)))

    by_jax = jax.jit(lambda x: jax.numpy.sin(x) * x)

    class Jax(torch.autograd.Function):  # type: ignore[misc] # likewise
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y, ctx.vjp = jax.vjp(by_jax, jax.dlpack.from_dlpack(x.detach().contiguous()))
            return torch.from_dlpack(y)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return torch.from_dlpack(ctx.vjp(jax.dlpack.from_dlpack(g.contiguous()))[0])

    return {"numpy_by_hand": Numpy.apply, "jax2torch": Jax.apply}


def _networks(torch: Any, jax: Any, by_torch: Any) -> dict[str, Any]:
    """Return functions of torch in compiled JAX code, by `aligned` and by callbacks.

    `curvature` is the product of the Hessian and the argument.
    """
    np, aligned = import_module("numpy"), import_module("xbridge").aligned
    pairs = [(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(10)]
    network = torch.nn.Sequential(*[layer for pair in pairs for layer in pair]).requires_grad_(
        requires_grad=False
    )
    encoder = (
        torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        .requires_grad_(requires_grad=False)
        .eval()
    )

    def on_host(fn: Any) -> Any:
        like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)  # noqa: E731 -- of the argument
        run = lambda x: fn(torch.from_numpy(np.array(x))).numpy()  # noqa: E731 -- in the callback
        return lambda x: jax.pure_callback(run, like(x), x)

    def slope_of(fn: Any) -> Any:
        return torch.func.grad(lambda x: fn(x).sum())

    def curvature_of(fn: Any) -> Any:
        return lambda x: torch.func.vjp(slope_of(fn), x)[1](x)[0]

    def by_hand(fn: Any) -> Any:
        """Return a function whose backward pass runs it again."""
        call = jax.custom_vjp(on_host(fn))
        back = on_host(slope_of(fn))
        call.defvjp(lambda x: (call(x), x), lambda x, g: (g * back(x),))
        return call

    def slope(f: Any) -> Any:
        return jax.grad(lambda x: f(x).sum())

    def curvature(f: Any) -> Any:
        return jax.jit(lambda x: jax.jvp(slope(f), (x,), (x,))[1])

    ours, ours_of_network = aligned(backend="torch")(by_torch), aligned(backend="torch")(network)
    return {
        "value_and_slope": jax.jit(jax.value_and_grad(lambda x: ours(x).sum())),
        "value_and_slope_by_hand": jax.jit(jax.value_and_grad(lambda x: by_hand(by_torch)(x).sum())),
        "slopes": jax.jit(jax.vmap(slope(ours))),
        "slopes_by_torch": jax.jit(on_host(torch.func.vmap(slope_of(by_torch)))),
        "curvature": curvature(ours),
        "curvature_by_torch": jax.jit(on_host(curvature_of(by_torch))),
        "network": jax.jit(ours_of_network),
        "network_by_hand": jax.jit(on_host(network)),
        "network_curvature": curvature(ours_of_network),
        "network_curvature_by_torch": jax.jit(on_host(curvature_of(network))),
        "encoder": jax.jit(aligned(backend="torch")(encoder)),
        "encoder_by_hand": jax.jit(on_host(encoder)),
    }


def sections(*, quick: bool) -> tuple[Section, ...]:
    """Return what is timed of calls; if quick, just enough to see that it works."""
    many, few = ((1, 20), (1, 5)) if quick else ((5, 60), (3, 15))
    large = 2**12 if quick else 2**20
    beyond = "Time beyond an empty call's; 8 numbers."
    time = "Time, as a multiple of the reference's; 8 numbers, forward, or forward and backward."
    bulk = f"Time, as a multiple of that of the function and its copies; {large} numbers."
    return (
        Section("Functions, nothing followed", beyond, NS, FORWARD, 8, *many, 5e-4),
        Section(
            "Functions of other libraries", time, TIME, (*SMALL, *(PEER if HAS_PEER else ())), 8, *many, 5e-4
        ),
        Section("Functions of large arrays", bulk, TIME, LARGE, large, *few, 0),
    )
