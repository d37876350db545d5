"""Converters of other projects, each beside the xbridge call that can replace it.

The input is what the project's converter typically gets, and is named `x`. Our call does what theirs is asked
for: if theirs copies or casts, ours is asked to. A project that is not installed has no rows.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

__all__ = ["AdopterRow", "installed_rows"]


class AdopterRow(NamedTuple):
    """One line of the table."""

    project: str
    """The name of its distribution."""
    imports: str
    """Makes what both calls need, without their input."""
    given: str
    """Makes `x`."""
    theirs: str
    ours: str
    why: str = ""
    """Why the row misses its target, if it does."""


FLOATS = "x = np.arange(8, dtype='f4')"
TENSOR = "x = torch.arange(8.0)"
GRAD = "x = torch.arange(8.0, requires_grad=True)"
JAX = "x = jnp.arange(8.0).block_until_ready()"
MEGABYTE = "x = np.arange(2.0**18, dtype='f4')"
OBSERVATIONS = "x = {'image': np.zeros((4, 8), 'f4'), 'state': np.zeros((4, 3), 'f4')}"
READY = ".block_until_ready()"

TO_TORCH = "xbridge.to_backend(x, 'torch')"
ON_CPU = "xbridge.to_backend(x, 'torch', device='cpu')"
TREE_ON_CPU = "xbridge.tree.to_backend(x, 'torch', device='cpu')"
TO_NUMPY = "xbridge.to_numpy(x)"
TO_JAX = f"xbridge.to_backend(x, 'jax'){READY}"

_GYMNASIUM = "from gymnasium.wrappers.array_conversion import array_conversion; import {}"
_TO_TORCH = _GYMNASIUM.format("array_api_compat.torch as xp")
_TO_JAX = _GYMNASIUM.format("jax.numpy as xp")
_TO_NUMPY = _GYMNASIUM.format("array_api_compat.numpy as xp")
_AUTORAY = "import autoray"
_POT = "from ot.backend import get_backend; like = torch.ones(2); nx = get_backend(like)"
_POT_JAX = "from ot.backend import get_backend; like = jnp.ones(2); nx = get_backend(like)"
_SKORCH = "from skorch.utils import to_numpy, to_tensor"
_THINC = "from thinc.util import torch2xp, xp2torch"
_TENSORLY = "import tensorly; tensorly.set_backend({!r})"
_SB3 = "from stable_baselines3.common.utils import obs_as_tensor; device = torch.device('cpu')"
_BUFFER = (
    "from gymnasium import spaces; from stable_baselines3.common.buffers import ReplayBuffer; "
    "buffer = ReplayBuffer(8, spaces.Box(-1, 1, (8,)), spaces.Discrete(2), device='cpu')"
)
_TIANSHOU = "from tianshou.data import Batch, to_numpy, to_torch"
_MONAI = "from monai.utils import convert_to_numpy, convert_to_tensor"
_SKRL = (
    "from gymnasium import spaces; from skrl.utils.spaces.torch import tensorize_space, untensorize_space; "
    "box = spaces.Box(-1, 1, (8,))"
)

_NUMBER = (
    "Ours checks that the dtype holds the number. Theirs makes an array of it, and casts without a check."
)
_VIEW = "JAX keeps the view that NumPy's call returns. Ours checks it each time."

ROWS = (
    AdopterRow("gymnasium", _TO_TORCH, FLOATS, "array_conversion(x, xp)", TO_TORCH),
    AdopterRow("gymnasium", _TO_NUMPY, TENSOR, "array_conversion(x, xp)", TO_NUMPY),
    AdopterRow("gymnasium", _TO_TORCH, JAX, "array_conversion(x, xp)", TO_TORCH),
    AdopterRow("gymnasium", _TO_JAX, FLOATS, f"array_conversion(x, xp){READY}", TO_JAX),
    AdopterRow(
        "gymnasium",
        _TO_TORCH,
        "x = {'state': np.zeros(8, 'f4'), 'reward': 1.5}",
        "array_conversion(x, xp)",
        "xbridge.tree.to_backend(x, 'torch', scalars=True)",
    ),
    AdopterRow("autoray", _AUTORAY, FLOATS, "autoray.to(x, 'torch')", TO_TORCH),
    AdopterRow(
        "autoray",
        _AUTORAY,
        FLOATS,
        "autoray.to(x, 'torch-float64')",
        "xbridge.to_backend(x, 'torch', dtype='float64')",
    ),
    AdopterRow("autoray", _AUTORAY, FLOATS, f"autoray.to(x, 'jax'){READY}", TO_JAX),
    AdopterRow(
        "autoray", _AUTORAY, OBSERVATIONS, "autoray.to(x, 'torch')", "xbridge.tree.to_backend(x, 'torch')"
    ),
    AdopterRow("autoray", _AUTORAY, "x = torch.arange(2.0**18)", f"autoray.to(x, 'jax'){READY}", TO_JAX),
    AdopterRow("pot", _POT, TENSOR, "nx.to_numpy(x)", TO_NUMPY),
    AdopterRow(
        "pot",
        _POT,
        FLOATS,
        "nx.from_numpy(x, type_as=like)",
        "xbridge.asarray(x, like=like, dtype=like.dtype)",
        "Ours reads the device of `like`, as a copy may have to be made there.",
    ),
    AdopterRow(
        "pot",
        _POT,
        "x = 1.5",
        "nx.from_numpy(x, type_as=like)",
        "xbridge.asarray(x, like=like, dtype=like.dtype)",
        _NUMBER,
    ),
    AdopterRow("pot", _POT_JAX, FLOATS, f"nx.from_numpy(x){READY}", TO_JAX),
    AdopterRow("pot", _POT_JAX, MEGABYTE, f"nx.from_numpy(x){READY}", TO_JAX),
    AdopterRow("skorch", _SKORCH, TENSOR, "to_numpy(x)", TO_NUMPY),
    AdopterRow("skorch", _SKORCH, FLOATS, "to_tensor(x, device='cpu')", ON_CPU),
    AdopterRow("skorch", _SKORCH, OBSERVATIONS, "to_tensor(x, device='cpu')", TREE_ON_CPU),
    AdopterRow("thinc", _THINC, FLOATS, "xp2torch(x)", ON_CPU),
    AdopterRow(
        "thinc",
        _THINC,
        FLOATS,
        "xp2torch(x, requires_grad=True)",
        "xbridge.asarray(x, backend='torch', device='cpu', requires_grad=True)",
        "Ours looks up what it does with arrays of one dtype.",
    ),
    AdopterRow("thinc", _THINC, TENSOR, "torch2xp(x)", TO_NUMPY),
    AdopterRow("thinc", _THINC, GRAD, "torch2xp(x)", TO_NUMPY),
    AdopterRow(
        "tensorly",
        _TENSORLY.format("pytorch"),
        FLOATS,
        "tensorly.tensor(x)",
        "xbridge.asarray(x, backend='torch', copy=True)",
    ),
    AdopterRow(
        "tensorly",
        _TENSORLY.format("pytorch"),
        TENSOR,
        "tensorly.to_numpy(x)",
        "xbridge.asarray(x, backend='numpy')",
    ),
    AdopterRow(
        "tensorly",
        _TENSORLY.format("jax"),
        MEGABYTE,
        f"tensorly.tensor(x){READY}",
        f"xbridge.asarray(x, backend='jax'){READY}",
    ),
    AdopterRow(
        "tensorly",
        _TENSORLY.format("jax"),
        JAX,
        "tensorly.to_numpy(x)",
        "xbridge.asarray(x, backend='numpy')",
        _VIEW,
    ),
    AdopterRow("stable-baselines3", _SB3, FLOATS, "obs_as_tensor(x, device)", ON_CPU),
    AdopterRow("stable-baselines3", _SB3, OBSERVATIONS, "obs_as_tensor(x, device)", TREE_ON_CPU),
    AdopterRow(
        "stable-baselines3",
        _BUFFER,
        "x = np.zeros((32, 8), 'f4')",
        "buffer.to_torch(x)",
        "xbridge.to_backend(x, 'torch', device='cpu', copy=True)",
    ),
    AdopterRow("tianshou", _TIANSHOU, FLOATS, "to_torch(x)", ON_CPU),
    AdopterRow(
        "tianshou",
        _TIANSHOU,
        "x = np.arange(8.0)",
        "to_torch(x, torch.float32)",
        "xbridge.to_backend(x, 'torch', device='cpu', dtype=torch.float32)",
    ),
    AdopterRow("tianshou", _TIANSHOU, TENSOR, "to_numpy(x)", TO_NUMPY),
    AdopterRow(
        "tianshou",
        _TIANSHOU,
        "x = Batch(obs=np.zeros((4, 8), 'f4'), act=np.arange(4), info=Batch(step=np.arange(4)))",
        "x.to_torch()",
        f"x.apply_values_transform(lambda x: {ON_CPU[:-1]}, copy=True))",
    ),
    AdopterRow("monai", _MONAI, FLOATS, "convert_to_tensor(x)", TO_TORCH),
    AdopterRow(
        "monai",
        _MONAI,
        "x = np.arange(2.0**17)",
        "convert_to_tensor(x, dtype=torch.float32)",
        "xbridge.to_backend(x, 'torch', dtype=torch.float32)",
    ),
    AdopterRow("monai", _MONAI, OBSERVATIONS, "convert_to_tensor(x)", "xbridge.tree.to_backend(x, 'torch')"),
    AdopterRow("monai", _MONAI, TENSOR, "convert_to_numpy(x)", TO_NUMPY),
    AdopterRow(
        "skrl",
        _SKRL,
        FLOATS,
        "tensorize_space(box, x, device='cpu')",
        "xbridge.to_backend(x, 'torch', device='cpu', dtype='float32', copy=True).reshape(-1, *box.shape)",
    ),
    AdopterRow(
        "skrl",
        _SKRL,
        "x = torch.zeros(1, 8)",
        "untensorize_space(box, x)",
        "xbridge.to_numpy(x, dtype=box.dtype, copy=True).reshape(box.shape)",
        "Theirs is one call of NumPy. Ours checks the tensor and looks up what it learned of the options.",
    ),
)


def installed_rows() -> list[AdopterRow]:
    """Return the rows of the projects that are installed."""
    return [row for row in ROWS if _is_installed(row.project)]


def _is_installed(project: str) -> bool:
    try:
        version(project)
    except PackageNotFoundError:
        return False
    return True
