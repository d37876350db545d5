"""What is collected where: examples that need a library are left out where it is missing."""

from importlib.util import find_spec

NEEDING = {
    "torch": [
        "src/xbridge/backends/torch",
        "src/xbridge/_cli/_files/_pt.py",
        "src/xbridge/testing/samples/torch.py",
        "src/xbridge/testing/samples/_torch_refused.py",
        "src/xbridge/_convert.py",
        "src/xbridge/_policy.py",
        "src/xbridge/testing/assertions.py",
    ],
    "jax": [
        "src/xbridge/backends/jax",
        "src/xbridge/testing/samples/jax.py",
    ],
    "dask": [
        "src/xbridge/backends/dask.py",
        "src/xbridge/testing/samples/dask.py",
    ],
    "safetensors": ["src/xbridge/_cli/_files/_safetensors.py"],
    "array_api_strict": [
        "src/xbridge/backends/array_api_strict.py",
        "src/xbridge/testing/samples/array_api_strict.py",
    ],
}

WITHOUT_EXAMPLES = ["src/xbridge/backends/cupy.py", "src/xbridge/testing/samples/cupy.py"]
"""What cannot even be imported where there is no GPU."""

missing = [library for library in NEEDING if not find_spec(library)]
collect_ignore = WITHOUT_EXAMPLES + [path for library in missing for path in NEEDING[library]]
