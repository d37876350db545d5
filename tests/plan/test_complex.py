"""Casts of complex numbers: the result has both parts, or tells if the number is zero, or there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import DTYPES
from toylib import Toy, make_backend

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = [0j, 1j, 1 + 0j, 2 - 3j]
NARROW = ("complex32", "bcomplex32")
"""Complex dtypes that NumPy has from ml_dtypes."""


def of_numpy(word: str) -> Any:
    """An array of a complex dtype of NumPy or of ml_dtypes."""
    if word not in NARROW:
        return np.array(NUMBERS, word)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, word):
        pytest.skip("this ml_dtypes has no narrow complex dtypes")
    return np.array(NUMBERS).astype(getattr(ml_dtypes, word))


def of_torch(word: str) -> Any:
    torch = pytest.importorskip("torch")
    return torch.tensor(NUMBERS, dtype=getattr(torch, word))


def of_dask(word: str) -> Any:
    return pytest.importorskip("dask.array").from_array(of_numpy(word), chunks=3)


def of_strict(word: str) -> Any:
    return pytest.importorskip("array_api_strict").asarray(of_numpy(word))


def of_jax(word: str) -> Any:
    return pytest.importorskip("jax.numpy").asarray(of_numpy(word))


NAMES = {name: getattr(xbridge, name) for name in ("array_namespace", "asarray", "to_numpy")}
"""What a hint may call."""

MAKERS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "numpy": (of_numpy, ("complex64", "complex128", "clongdouble", *NARROW)),
    "torch": (of_torch, ("complex32", "complex64", "complex128")),
    "dask": (of_dask, ("complex64", "complex128", *NARROW)),
    "array_api_strict": (of_strict, ("complex64", "complex128")),
    "jax": (of_jax, ("complex64",)),
}
SOURCES = [(library, word) for library, (_, words) in MAKERS.items() for word in words]


def targets() -> list[Any]:
    """Dtypes that are named by a word, and NumPy's objects of all that have no canonical name."""
    numpy_only = ["longdouble", "M8[s]", "M8[ns]", "m8[D]", "m8", "U64", "S4", "V8", "V16"]
    found = [*DTYPES, *map(np.dtype, numpy_only)]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    scalars = (thing for thing in vars(ml_dtypes).values() if isinstance(thing, type))
    return [*found, *(np.dtype(scalar) for scalar in scalars if issubclass(scalar, np.generic))]


CALLS: dict[str, Callable[[Any, str, Any], Any]] = {
    "to_backend": lambda x, name, dtype: xbridge.to_backend(x, name, dtype=dtype),
    "asarray": lambda x, name, dtype: xbridge.asarray(x, backend=name, dtype=dtype),
    "a list": lambda x, name, dtype: xbridge.asarray([x], backend=name, dtype=dtype),
    "align": lambda x, name, dtype: xbridge.align(x, backend=name, dtype=dtype)[0],
    "tree": lambda x, name, dtype: tree.to_backend({"x": x}, name, dtype=dtype)["x"],
    "restore": lambda x, name, dtype: xbridge.align_back(x)[1](x, dtype=dtype),
    "aligned": lambda x, name, dtype: xbridge.aligned(backend=name, dtype=dtype)(lambda y: y)(x),
    "transfer": lambda x, name, dtype: xbridge.transfer(x, name, dtype=dtype).result(),
}


@pytest.mark.filterwarnings("ignore:.*(ComplexHalf|BComplex32):UserWarning")
@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize(("library", "word"), SOURCES, ids=map("-".join, SOURCES))
def test_cast__complex_is_never_a_real_number(library: str, word: str, verb: str) -> None:
    """A cast of complex numbers to a dtype without an imaginary part raises, from and to any dtype."""
    make, _ = MAKERS[library]
    for name in {library, "numpy"}:
        for dtype in targets()[:: 1 if verb == "to_backend" else 5]:
            try:
                y = CALLS[verb](make(word), name, dtype)
            except xbridge.DTypeError:
                continue
            if xbridge.dtype_of(y) == "bool":
                assert np.asarray(y).ravel().tolist() == [False, True, True, True], dtype
            else:
                assert "complex" in xbridge.dtype_of(y), dtype


@pytest.mark.filterwarnings("ignore:.*(ComplexHalf|BComplex32):UserWarning")
@pytest.mark.parametrize(("library", "word"), SOURCES, ids=map("-".join, SOURCES))
def test_cast__complex_has_advice_that_gives_the_real_part(library: str, word: str) -> None:
    """The hint is an array of the real parts, which the cast accepts."""
    make, _ = MAKERS[library]
    x = make(word)
    with pytest.raises(xbridge.DTypeError, match="drops the imaginary part") as caught:
        xbridge.asarray(x, dtype="float32")
    real = eval(caught.value.hint, {**NAMES, "x": x})
    assert xbridge.to_list(xbridge.asarray(real, dtype="float32")) == [0, 0, 1, 2]


@pytest.mark.usefixtures("own_registry")
def test_cast__complex_of_a_library_without_namespace_has_advice() -> None:
    """The hint fits a library whose arrays have neither `real` nor a namespace."""
    xbridge.register_backend("toylib", make_backend(), replace=True)
    x = Toy(np.array(NUMBERS))
    with pytest.raises(xbridge.DTypeError) as caught:
        xbridge.asarray(x, dtype="float32")
    assert eval(caught.value.hint, {**NAMES, "x": x}).tolist() == [0, 0, 1, 2]


RECORDS = {
    "a field": lambda: np.array([(1 + 2j,)], [("x", "c8")]),
    "a field of two": lambda: np.array([([1 + 2j, 2],)], [("x", "c8", (2,))]),
    "a nested field": lambda: np.array([((1 + 2j,),)], [("x", [("y", "c16")])]),
    "an object": lambda: np.array([1.5, np.complex64(1 + 2j)], object),
}


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", np.dtype("M8[s]")], ids=str)
def test_cast__complex_inside_records_and_objects_is_refused(kind: str, dtype: Any) -> None:
    """NumPy drops the imaginary part of a record's number and of an object without an error."""
    x = RECORDS[kind]()
    lazy = pytest.importorskip("dask.array").from_array(x, chunks=1)
    for y in (x, x.view(type("Plain", (np.ndarray,), {}))):
        with pytest.raises(xbridge.DTypeError, match=r"records; try x|imaginary part would be lost"):
            xbridge.asarray(y, dtype=dtype)
        assert isinstance(xbridge.explain(y, "numpy", dtype=dtype).error, xbridge.DTypeError)
        as_objects = xbridge.asarray(y, dtype=np.dtype(object))
        assert str(as_objects) == str(y.astype(object))  # they hold all of it
    with pytest.raises(xbridge.DTypeError):
        xbridge.asarray(lazy, dtype=dtype).compute()


def test_cast__failure_in_a_chunk_is_an_error_of_ours() -> None:
    """What NumPy says about an object is the reason, though the cast runs when Dask computes."""
    lazy = pytest.importorskip("dask.array").from_array(np.array([1.5], object), chunks=1)
    with pytest.raises(
        xbridge.DTypeError, match=r"a chunk of object to datetime64\[s\]: it failed with Value"
    ):
        xbridge.asarray(lazy, dtype=np.dtype("M8[s]")).compute()


def test_unsafe_share__names_the_address_and_not_the_strides() -> None:
    """Dense memory that JAX cannot share begins at a wrong address."""
    pytest.importorskip("jax")
    raw = np.empty(200, np.uint8)
    start = -raw.ctypes.data % 64 + 16
    dense = raw[start : start + 64].view("f4")
    with pytest.raises(xbridge.CopyError, match="its memory is not aligned as jax needs it"):
        xbridge.unsafe_share(dense, "jax")
    with pytest.raises(xbridge.CopyError, match="jax does not support its strides"):
        xbridge.unsafe_share(np.ones(8, "f4")[::2], "jax")
