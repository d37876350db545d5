"""Lines of other projects' converters, each beside the xbridge call that can replace it.

A row has the line that a project's source runs for the input: what its converter does, without the function
around it and its branches. So these rows ask for more than those of `rows_adopters.py`, and they need none of
the projects. The names in a line are ours, and its arguments are those that a call on the CPU gives it.
"""

from rows_adopters import FLOATS, GRAD, JAX, READY, TENSOR, AdopterRow

__all__ = ["ROWS", "SOURCES"]

SOURCES = {
    "gymnasium": "gymnasium/wrappers/array_conversion.py",
    "autoray": "autoray/autoray.py",
    "pot": "ot/backend.py",
    "skorch": "skorch/utils.py",
    "thinc": "thinc/util.py",
    "tensorly": "tensorly/backend/pytorch_backend.py, jax_backend.py",
    "stable-baselines3": "stable_baselines3/common: buffers.py, on_policy_algorithm.py, utils.py",
    "tianshou": "tianshou/data/utils/converter.py",
    "monai": "monai/utils/type_conversion.py",
    "skrl": "skrl/utils/spaces: torch/spaces.py, jax/spaces.py",
    "scikit-learn": "sklearn/utils/_array_api.py",
    "keras": "keras/src/backend: torch/core.py, jax/core.py",
    "kornia": "kornia/image/utils.py",
    "geomstats": "geomstats/_backend/pytorch/_common.py",
    "pyhf": "src/pyhf/tensor: pytorch_backend.py, jax_backend.py",
    "transformers": "src/transformers: utils/generic.py, tokenization_utils_base.py",
}
"""Where each project has its lines."""

DOUBLES = "x = np.arange(8.0)"
WHOLE = "x = np.arange(8)"
IMAGE = "x = np.zeros((8, 8, 3), 'f4')"
LIKE = "like = torch.ones(2)"
ON_CPU = "device = torch.device('cpu')"

NUMPY = "xbridge.to_numpy(x)"
TORCH = "xbridge.to_backend(x, 'torch')"
TORCH_FLOAT = "xbridge.to_backend(x, 'torch', dtype=torch.float32)"
MAKE = "xbridge.asarray(x, backend='torch')"
MAKE_FLOAT = "xbridge.asarray(x, backend='torch', dtype=torch.float32)"
MAKE_LIKE = "xbridge.asarray(x, like=like, dtype=like.dtype)"
LIST = "xbridge.to_list(x)"
TO_JAX = f"xbridge.to_backend(x, 'jax'){READY}"
TREE_NUMPY = "xbridge.tree.to_numpy(x)"
TREE_TORCH = "xbridge.tree.to_backend(x, 'torch', device='cpu')"

_STORAGE = (
    "Ours reads the dtype of each tensor and the size of its storage first, which takes about a microsecond: "
    "torch reads beyond a storage that was freed or shrunk."
)
_ITEMS = (
    "Ours looks at the types of the items first: NumPy rounds a large integer beside a float, and makes an "
    "array of objects of others, without an error."
)
_C_CALL = (
    "Theirs is one call of C, which takes less time than to call a Python function that has options, and to "
    "look up what it does with a type."
)
_VALUES = (
    "Ours makes a view for NumPy, which has exact values for every dtype, and checks that the storage holds "
    "all of it; torch reads beyond one that was shrunk."
)
_PLACE = (
    "If JAX has several devices, ours asks first on which the array is, because NumPy would fetch it from a "
    "GPU in silence. It also checks what NumPy has made of it."
)
_VIEW = (
    "Ours checks the modes of torch and that the storage holds all of the view, which cannot be written if a "
    "graph needs its values."
)
_SHARED = "Ours checks the modes of torch, and whether the memory can be written and shared."
_JAX_CASTS = (
    "Other rows switch on JAX's dtypes of 64 bits. JAX then casts, for the values that `astype` of its own "
    "arrays gives; theirs is NumPy's cast, which keeps subnormal numbers."
)
_DEFAULT = "Ours looks up what it does with a type of number, and reads torch's default dtype."
_TREE = (
    "Ours also looks for arrays that are in the tree more than once, and for containers in containers, and "
    "checks that the storage of each tensor holds all of it."
)
_LOOKED_UP = "Ours checks the tensor, and looks up what it does with one of its dtype and flags."
_STACKED = "Ours looks at the type and the dtype of each array, and at the modes of torch."

_SITES = {
    "gymnasium": [
        (JAX, "np.from_dlpack(x)", NUMPY),
        (TENSOR, f"jnp.from_dlpack(x){READY}", TO_JAX),
        ("x = (np.zeros(8, 'f4'), np.ones(3))", "tuple([torch.from_dlpack(y) for y in x])", TREE_TORCH),
    ],
    "autoray": [
        (TENSOR, "x.detach().cpu().numpy()", NUMPY),
        (DOUBLES, "torch.as_tensor(x, dtype=torch.float32, device=None)", TORCH_FLOAT),
        ("x = [1.0, 2.0, 3.0]", "torch.as_tensor(x, dtype=None, device=None)", MAKE),
    ],
    "pot": [
        (GRAD, "x.cpu().detach().resolve_conj().numpy()", NUMPY),
        (f"{DOUBLES}; {LIKE}", "torch.as_tensor(x, dtype=like.dtype, device=like.device)", MAKE_LIKE),
        (f"x = 2; {LIKE}", "torch.as_tensor(np.array(x), dtype=like.dtype, device=like.device)", MAKE_LIKE),
        (
            "x = [torch.arange(8.0), torch.ones(3)]",
            "[a.cpu().detach().resolve_conj().numpy() for a in x]",
            TREE_NUMPY,
        ),
        (JAX, "np.array(x)", "xbridge.to_numpy(x, writable=True)", _PLACE),
    ],
    "skorch": [
        (GRAD, "x.detach().numpy()", NUMPY, _VIEW),
        ("x = (torch.arange(8.0), torch.ones(3))", "type(x)([y.numpy() for y in x])", TREE_NUMPY, _TREE),
        ("x = [np.arange(8.0), np.ones(3)]", "[torch.as_tensor(y, device='cpu') for y in x]", TREE_TORCH),
        ("x = 2", "torch.as_tensor(x, device='cpu')", "xbridge.asarray(x, backend='torch', device='cpu')"),
    ],
    "thinc": [
        (
            WHOLE,
            "torch.utils.dlpack.from_dlpack(x).to('cpu')",
            "xbridge.to_backend(x, 'torch', device='cpu')",
        ),
        (
            FLOATS,
            "torch.utils.dlpack.from_dlpack(x).to('cpu').requires_grad_()",
            "xbridge.asarray(x, backend='torch', device='cpu', requires_grad=True)",
        ),
    ],
    "tensorly": [
        ("x = [[1.0, 2.0], [3.0, 4.0]]", "torch.tensor(x)", MAKE),
        (WHOLE, "torch.tensor(x)", "xbridge.asarray(x, backend='torch', copy=True)"),
        ("x = 1.5", "torch.tensor(x)", MAKE),
        (TENSOR, "x.clone().detach()", "xbridge.asarray(x, backend='torch', copy=True)", _STORAGE),
        (DOUBLES, "torch.tensor(x).type(torch.float32)", f"{MAKE_FLOAT[:-1]}, copy=True)"),
        ("x = [1.0, 2.0, 3.0]", f"jnp.array(x){READY}", f"xbridge.asarray(x, backend='jax'){READY}"),
    ],
    "stable-baselines3": [
        (TENSOR, "x.cpu().numpy()", NUMPY, _VIEW),
        (
            "x = torch.zeros(4, 1)",
            "x.clone().cpu().numpy().flatten()",
            "xbridge.to_numpy(x, copy=True).ravel()",
        ),
        (
            f"{FLOATS}; {ON_CPU}",
            "torch.as_tensor(x, device=device)",
            "xbridge.to_backend(x, 'torch', device=device)",
        ),
        (
            f"x = {{'a': np.zeros(8, 'f4'), 'b': np.arange(4)}}; {ON_CPU}",
            "{key: torch.as_tensor(y, device=device) for (key, y) in x.items()}",
            "xbridge.tree.to_backend(x, 'torch', device=device)",
        ),
    ],
    "tianshou": [
        ("x = 1.5", "np.asanyarray(x)", "xbridge.asarray(x, backend='numpy')", _C_CALL),
        ("x = np.float32(1.5)", "np.asanyarray(x)", "xbridge.asarray(x, backend='numpy')", _C_CALL),
        ("x = 2", "torch.from_numpy(np.asanyarray(x)).to('cpu')", MAKE, _DEFAULT),
        (
            f"{DOUBLES}; {LIKE}",
            "torch.from_numpy(x).type(like.dtype).to(like.device)",
            "xbridge.asarray(x, like=like, dtype=like.dtype)",
        ),
    ],
    "monai": [
        ("x = 1.5", "torch.as_tensor(x, dtype=None, device=None)", MAKE),
        (
            "x = torch.arange(8)",
            "np.asarray(x.detach().to(device='cpu').numpy(), dtype='f4')",
            "xbridge.to_numpy(x, dtype='float32')",
        ),
        (
            "x = [np.arange(8.0), np.ones(8)]",
            "[torch.as_tensor(y, dtype=None, device=None) for y in x]",
            "xbridge.tree.to_backend(x, 'torch')",
        ),
        (
            "x = {'a': torch.ones(3), 'b': torch.ones(2, 2)}",
            "{k: y.detach().to(device='cpu').numpy() for k, y in x.items()}",
            TREE_NUMPY,
        ),
        (TENSOR, "x.tolist()", LIST, _VALUES),
    ],
    "skrl": [
        (
            "x = 3",
            "torch.tensor([x], device='cpu', dtype=torch.int32).reshape(-1, 1)",
            "xbridge.asarray([[x]], backend='torch', device='cpu', dtype=torch.int32)",
        ),
        (
            "x = [1, 2]",
            "torch.tensor([x], device='cpu', dtype=torch.int32).reshape(-1, 2)",
            "xbridge.asarray([x], backend='torch', device='cpu', dtype=torch.int32)",
        ),
        (
            WHOLE,
            "torch.tensor(x, device='cpu', dtype=torch.int32).reshape(-1, 1)",
            "xbridge.to_backend(x, 'torch', device='cpu', dtype=torch.int32).reshape(-1, 1)",
        ),
        (
            "x = torch.zeros(1, 8, dtype=torch.bfloat16)",
            "np.array(x.to(dtype=torch.float32).cpu().numpy(), dtype='f4').reshape(8)",
            "xbridge.to_numpy(x, dtype='float32').reshape(8)",
            _LOOKED_UP,
        ),
        (
            "x = torch.tensor([[3]], dtype=torch.int32)",
            "np.array(x.cpu().numpy(), dtype='i8').item()",
            "xbridge.to_numpy(x, dtype='int64').item()",
            _LOOKED_UP,
        ),
        (
            f"{FLOATS}; import jax; device = jax.devices()[0]",
            f"jax.device_put(x.reshape(-1, 8), device=device){READY}",
            f"xbridge.to_backend(x.reshape(-1, 8), 'jax', device=device){READY}",
        ),
        (
            f"{JAX}; import jax",
            "np.asarray(jax.device_get(x), dtype='f4').reshape(8)",
            "xbridge.to_numpy(x, dtype='float32').reshape(8)",
        ),
    ],
    "scikit-learn": [
        (
            f"{FLOATS}; {LIKE}",
            "torch.asarray(x, device=like.device)",
            "xbridge.asarray(x, like=like)",
        ),
        (JAX, "np.asarray(x)", NUMPY, _PLACE),
        (
            f"x = (np.arange(8.0), np.ones(3)); {LIKE}",
            "tuple([torch.from_dlpack(a, device='cpu') for a in x])",
            "xbridge.align(*x, like=like)",
        ),
        (
            "x = torch.arange(8.0).double(), np.ones(3)",
            "(x[0], torch.from_dlpack(x[1], device='cpu'))",
            "xbridge.align(*x)",
        ),
    ],
    "keras": [
        (
            FLOATS,
            "torch.as_tensor(np.array(x), dtype=torch.float32, device='cpu')",
            "xbridge.to_backend(x, 'torch', device='cpu', copy=True)",
        ),
        (
            "x = 1.5",
            "torch.as_tensor(x, dtype=torch.float32, device='cpu')",
            "xbridge.asarray(x, backend='torch', device='cpu', dtype=torch.float32)",
        ),
        (
            "x = 2",
            "torch.as_tensor(x, dtype=torch.int32, device='cpu')",
            "xbridge.asarray(x, backend='torch', device='cpu', dtype=torch.int32)",
        ),
        (
            "x = [1.0, 2.0]",
            "torch.as_tensor(x, dtype=torch.float32, device='cpu')",
            "xbridge.asarray(x, backend='torch', device='cpu', dtype=torch.float32)",
        ),
        ("x = [torch.ones(3), torch.zeros(3)]", "torch.stack([y for y in x])", MAKE, _STORAGE),
        ("x = torch.ones(8, dtype=torch.float16)", "x.to(torch.float32)", TORCH_FLOAT, _STORAGE),
        (TENSOR, "np.array(x)", "xbridge.to_numpy(x, copy=True)"),
        (
            "x = torch.nn.Parameter(torch.arange(8.0))",
            "np.array(x.detach())",
            "xbridge.to_numpy(x, copy=True)",
        ),
        (
            "x = torch.ones(8, dtype=torch.bfloat16); import ml_dtypes",
            "np.array(x.to(torch.float32)).astype(ml_dtypes.bfloat16)",
            "xbridge.to_numpy(x, copy=True)",
        ),
        (
            "x = [torch.ones(3), torch.zeros(3)]",
            "np.array([np.array(y) for y in x])",
            "xbridge.asarray(x, backend='numpy')",
        ),
        (
            DOUBLES,
            f"jnp.asarray(x, dtype='float32'){READY}",
            f"xbridge.asarray(x, backend='jax', dtype='float32'){READY}",
            _JAX_CASTS,
        ),
        (JAX, "np.array(x)", "xbridge.to_numpy(x, copy=True)", _PLACE),
    ],
    "kornia": [
        (IMAGE, "torch.from_numpy(x).permute(2, 0, 1)", f"{TORCH}.permute(2, 0, 1)", _SHARED),
        (
            "x = torch.zeros(3, 8, 8)",
            "x.cpu().detach().permute(1, 2, 0).numpy()",
            f"{NUMPY}.transpose(1, 2, 0)",
        ),
        (
            "x = [np.zeros((8, 8, 3), 'f4'), np.ones((8, 8, 3), 'f4')]",
            "torch.stack([torch.as_tensor(img) for img in x], dim=0).permute(0, 3, 1, 2)",
            f"{MAKE}.permute(0, 3, 1, 2)",
        ),
    ],
    "geomstats": [
        (DOUBLES, "torch.from_numpy(x)", TORCH, _SHARED),
        (TENSOR, "x.clone()", "xbridge.asarray(x, backend='torch', copy=True)", _STORAGE),
        (
            "x = 1.5",
            "torch.tensor(x, dtype=torch.float64)",
            "xbridge.asarray(x, backend='torch', dtype=torch.float64)",
        ),
        (
            "x = [1.0, 2.0, 3.0]",
            "torch.stack([torch.tensor(y, dtype=None) for y in x])",
            MAKE,
        ),
        ("x = [np.ones(3), np.zeros(3)]", "torch.stack([torch.from_numpy(y) for y in x])", MAKE),
    ],
    "pyhf": [
        ("x = [1.0, 2.0, 3.0]", "torch.as_tensor(x, dtype=torch.float32)", MAKE_FLOAT),
        ("x = [1, 2, 3]", "torch.as_tensor(x, dtype=torch.float32)", MAKE_FLOAT),
        (TENSOR, "x.data.numpy().tolist()", LIST, _VALUES),
        (JAX, "np.asarray(x).tolist()", LIST, _PLACE),
        (TENSOR, "np.asarray(x)", NUMPY),
    ],
    "transformers": [
        (GRAD, "x.detach().cpu().numpy()", NUMPY),
        ("x = torch.arange(8)", "x.detach().cpu().tolist()", LIST, _VALUES),
        (WHOLE, "x.tolist()", LIST, _C_CALL),
        ("x = [1, 2, 3]", "np.array(x)", "xbridge.asarray(x, backend='numpy')", _ITEMS),
        ("x = [[101, 7592, 102], [101, 2088, 102]]", "torch.tensor(x)", MAKE),
        ("x = [np.arange(3), np.arange(3)]", "torch.from_numpy(np.array(x))", MAKE, _STACKED),
    ],
}

ROWS = tuple(AdopterRow(project, "", *site) for project, sites in _SITES.items() for site in sites)
