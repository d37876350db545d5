"""One backend, dtype or device, however it is written."""

from __future__ import annotations

import types
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import get_backend
from toylib import Toy, make_backend

import xbridge
from xbridge import tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    Call = Callable[..., Any]

A = np.ones(2, "f4")
HERE = [name for name in xbridge.known_backends() if xbridge.is_available(name)]

VERBS: dict[str, Call] = {
    "to_backend": xbridge.to_backend,
    "tree.to_backend": lambda x, **options: tree.to_backend({"x": x}, **options)["x"],
    "tree.align": lambda x, **options: tree.align({"x": x}, **options)[0]["x"],
    "transfer": lambda x, **options: xbridge.transfer(x, **options).result(),
    "prefetch": lambda x, **options: next(iter(xbridge.prefetch([x], **options))),
    "asarray": xbridge.asarray,
    "align": lambda x, **options: xbridge.align(x, **options)[0],
    "align_back": lambda x, **options: xbridge.align_back(x, **options)[0][0],
    "aligned": lambda x, **options: _seen(x, options),
}
"""Each gives the array that came of `x`, whose backend is named by a keyword."""


def _seen(x: Any, options: dict[str, Any]) -> Any:
    seen: list[Any] = []
    xbridge.aligned(**options)(seen.append)(x)
    return seen[0]


def modules(name: str) -> list[ModuleType]:
    """What stands for a library: its package, and the namespace of its arrays."""
    backend = get_backend(name)
    package = pytest.importorskip(
        backend.array_types[0].__module__.partition(".")[0].replace("jaxlib", "jax")
    )
    return [package, xbridge.array_namespace(xbridge.to_backend(A, name))]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", HERE)
def test_to_backend__backend_is_a_name_or_a_module_in_every_verb(name: str, verb: str) -> None:
    """Every verb takes a backend by its name or its module and by keyword."""
    expected = type(xbridge.to_backend(A, name))
    for spelling in (name, *modules(name)):
        assert type(VERBS[verb](A, backend=spelling)) is expected


def test_to_backend__copy_of_array_api_compat_in_another_package_names_the_same_backend() -> None:
    """A copy of array-api-compat in another package names the same backend."""
    compat = pytest.importorskip("array_api_compat.numpy")
    copied = types.ModuleType("mylib.vendored.array_api_compat.numpy")
    vars(copied).update(vars(compat))
    assert xbridge.to_backend(A, copied) is A


@pytest.mark.parametrize(
    "name", ["json", "tensorflow.experimental.numpy", "mylib.numpy", "array_api_compat", ""]
)
def test_to_backend__module_of_no_known_library_is_refused_whatever_it_is_called(name: str) -> None:
    """A module of no known library is refused whatever it is called."""
    module = types.ModuleType(name)
    with pytest.raises(
        xbridge.UnknownBackendError, match=f"by the module {name}: .* known names are [a-z_, ]*$"
    ):
        xbridge.to_backend(A, module)
    assert not xbridge.is_available(module)


@pytest.mark.usefixtures("own_registry")
def test_to_backend__plugin_is_named_by_the_module_of_a_root_that_it_declares() -> None:
    """A plugin is named by the module of a root that it declares."""
    xbridge.register_backend("toylib", make_backend(), roots=("toyroot",))
    for name in ("toyroot", "toyroot.core.api"):
        assert isinstance(xbridge.to_backend(A, types.ModuleType(name)), Toy)
    with pytest.raises(xbridge.UnknownBackendError):
        xbridge.to_backend(A, types.ModuleType("other.toyroot"))


NO_BACKEND = "[a-z]"
MISTAKEN = {
    **dict.fromkeys(("tensorflow", "tensorflow.experimental.numpy", "mlx", "scipy", "pandas"), NO_BACKEND),
    **dict.fromkeys(("torchvision", "array_api_compat.torch", "", "\0", "\ud800", "x" * 5000), NO_BACKEND),
    **dict.fromkeys(("nunpy", "np"), "try 'numpy'"),
    **dict.fromkeys(("Torch", "pytorch", "Torch.nn"), "try 'torch'"),
    **dict.fromkeys(("JAX", "jax.numpy", "jnp", "jnp.linalg"), "try 'jax'"),
    **dict.fromkeys(("dask.array", "da"), "try 'dask'"),
    "cp": "try 'cupy'",
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_to_backend__name_that_is_near_to_one_gets_that_one(name: str) -> None:
    """A name that is near to one gets that one; any other gets the list, and no guess."""
    with pytest.raises(
        xbridge.UnknownBackendError, match=f"known names are numpy, torch, .*{MISTAKEN[name]}$"
    ):
        xbridge.to_backend(A, name)


# -- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        *"?bBhHiIlLqQefdFD",
        "b1",
        "i8",
        "<i8",
        "=f4",
        "|u1",
        "f2",
        "c16",
        bool,
        int,
        float,
        complex,
        np.float32,
    ],
)
def test_to_numpy__code_of_numpys_means_what_it_means_to_numpy(code: Any) -> None:
    """A code of NumPy's, or a class of Python's numbers, means what it means to NumPy."""
    assert xbridge.to_numpy(A, dtype=code).dtype == np.dtype(code)


@pytest.mark.parametrize("name", HERE)
def test_array_namespace__dtype_of_a_known_library_may_be_written_as_str_writes_it(name: str) -> None:
    """A dtype of a known library may be written as `str` writes it."""
    xp = xbridge.array_namespace(xbridge.to_backend(A, name))
    for word in ("int8", "float32", "bool"):
        native = getattr(xp, word)
        for given in (native, str(native), str(getattr(xp.ones(1, dtype=native), "dtype", word))):
            assert xbridge.to_numpy(A, dtype=given).dtype == word


class Words(str, Enum):  # noqa: UP042 -- `StrEnum` is written as its value
    """Options in an enumeration, which `str` writes with the name of its class."""

    LIBRARY = "numpy"
    DTYPE = "float32"
    NEAREST = "nearest"
    DEVICE = "cpu"


def test_to_backend__option_may_be_a_member_of_an_enumeration_of_strings() -> None:
    """An option may be a member of an enumeration of strings."""
    assert xbridge.to_backend(A, Words.LIBRARY, dtype=Words.DTYPE, device=Words.DEVICE).dtype == "float32"
    assert xbridge.to_backend(A, Words.LIBRARY, dtype=Words.NEAREST) is A
    with pytest.raises(xbridge.DeviceError, match=r"it is a dtype; try dtype='float32'$"):
        xbridge.to_backend(A, "numpy", device=Words.DTYPE)


def test_to_numpy__what_str_makes_of_a_dtype_without_a_canonical_name_means_that_dtype() -> None:
    """What `str` makes of a dtype without a canonical name means that dtype."""
    torch = pytest.importorskip("torch")
    wide = np.ones(2, np.longdouble)
    assert xbridge.to_numpy(wide, dtype=str(np.longdouble)) is wide
    with pytest.raises(xbridge.DTypeError, match="torch has no complex32"):
        xbridge.to_backend(A, "torch", dtype=str(torch.complex32))


@pytest.mark.parametrize("code", [">f4", ">f8", ">i2", ">c16", "<f4"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_dtype__of_an_array_in_the_other_byte_order(code: str, backend: str) -> None:
    """The dtype object of an array means the dtype in the order of this machine, for each library."""
    if not xbridge.is_available(backend):
        pytest.skip(f"{backend} is not installed")
    x = np.ones(2, code)
    for made in (
        xbridge.asarray(A, backend=backend, dtype=x.dtype),
        xbridge.asarray([1.0, 2.0], backend=backend, dtype=x.dtype),
        *xbridge.align(A, A, like=xbridge.asarray(A, backend=backend), dtype=x.dtype),
    ):
        assert str(made.dtype).rpartition(".")[2] == x.dtype.name
    k = xbridge.asarray(np.array([0.25, 0.5]), like=x, dtype=np.dtype(">f4"))
    assert k.dtype.isnative
    assert k.tolist() == [0.25, 0.5]


NOT_NAMED = "it is neither a canonical name, such as 'float32', nor a library's native dtype"
FOREIGN = "a result is in the byte order of this machine"
DTYPES_MISTAKEN: dict[str, tuple[str, str]] = {
    # no dtype of another width is suggested
    **dict.fromkeys(("f16", "c32", "g", "i4,i4", "int128", "float128"), (NOT_NAMED, "")),
    **dict.fromkeys(("numpy.", "<class 'numpy.float32", "<class ''>"), (NOT_NAMED, "")),
    **dict.fromkeys((".float32", "numpy.float32'>"), (NOT_NAMED, "dtype='float32'")),
    **dict.fromkeys(("O", "U", "S5", "V8", "M8[s]", "<m8", "object"), (NOT_NAMED, "")),
    **{word: (FOREIGN, f"dtype={np.dtype(word).name!r}") for word in (">f4", ">i8", ">c16")},
    **dict.fromkeys(("float3", "uint", "double", "fp32", "tf32"), (NOT_NAMED, "")),
    "flaot32": (NOT_NAMED, "dtype='float32'"),
    "Float32": (NOT_NAMED, "dtype='float32'"),
    "u64": (NOT_NAMED, "dtype='uint64'"),
    "tf.int32": (NOT_NAMED, "dtype='int32'"),
    "defualt": (NOT_NAMED, "dtype='default'"),
    "Nearest": (NOT_NAMED, "dtype='nearest'"),
}


@pytest.mark.parametrize("word", DTYPES_MISTAKEN)
def test_to_numpy__dtype_that_is_near_to_one_gets_that_one(word: str) -> None:
    """A mistaken dtype gets the one that is near to it, and no guess else."""
    reason, hint = DTYPES_MISTAKEN[word]
    with pytest.raises(xbridge.DTypeError) as caught:
        xbridge.to_numpy(A, dtype=word)
    assert caught.value.reason == reason
    assert caught.value.hint == hint


# -- devices -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_registry")
def test_to_backend__number_is_the_accelerator_of_that_index() -> None:
    """A number is the accelerator of that index."""
    asked: list[str] = []

    def resolve(device: Any, near: Any) -> Any:
        asked.append(device)
        return device

    places = tuple(map(xbridge.Device, ("cpu", "chip:3", "chip:5", "cpu:1")))
    module = make_backend(
        devices=lambda: places,
        resolve_device=resolve,
        move=lambda x, device: x,
        lacks=lambda dtype, device: None,
    )
    xbridge.register_backend("toylib", module)
    for given, place in ((3, "chip:3"), (np.int64(5), "chip:5"), ("gpu:5", "chip:5")):
        asked.clear()
        xbridge.to_backend(A, "toylib", device=given)
        assert asked == [place]
    with pytest.raises(xbridge.DeviceError, match=r"no device gpu:0 here, only cpu, chip:3"):
        xbridge.to_backend(A, "toylib", device=0)


@pytest.mark.parametrize(
    "device", [True, False, np.True_, -1, 1 << 31, 10**5000, -(10**5000), 0.0, object()], ids=range(9)
)
def test_to_backend__object_that_is_not_an_index_is_refused(device: Any) -> None:
    """An object that is not an index is refused."""
    for name in HERE:
        with pytest.raises(xbridge.DeviceError, match=r"^cannot read device .*; try device='cpu'$"):
            xbridge.to_backend(A, name, device=device)


# -- what cannot be written in a message ---------------------------------------------------------


STRANGE = [10**5000, "\0", "\ud800", "x" * 6000, [], set(), deque(), b"f4", A]


@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
@pytest.mark.parametrize("option", ["backend", "device", "dtype", "copy", "grad", "requires_grad"])
def test_asarray__option_that_cannot_be_written_or_hashed_is_refused(option: str, value: Any) -> None:
    """A value that cannot be written or hashed is refused as any other."""
    with pytest.raises(xbridge.XBridgeError, match=r"(?s)^cannot .*: ") as caught:
        xbridge.asarray(A, **{option: value})
    assert str(caught.value).isprintable()


MALFORMED = ("", ":0", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:\u00b2", "cuda:1111111111", "\n")


@pytest.mark.parametrize("name", [*MALFORMED, "cuda:" + "1" * 5000, "cu\0da", "cu\ud800da"])
def test_to_backend__device_of_endless_digits_or_unprintable_letters_is_refused(name: str) -> None:
    """A device of endless digits or unprintable letters is refused."""
    with pytest.raises(xbridge.DeviceError, match=r"^cannot read device .*; try device='cpu'$") as caught:
        xbridge.to_backend(A, "numpy", device=name)
    assert str(caught.value).isprintable()


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("option", ["device", "dtype"])
def test_to_backend__option_of_a_missing_library_names_what_installs_it(
    option: str,
) -> None:
    """An object of a library that is not installed is answered with what installs it."""
    xbridge.register_backend("nolib", "nolib_xbridge")
    thing = type("Thing", (), {"__module__": "nolib"})()
    with pytest.raises(xbridge.MissingLibraryError, match=r"not installed; try pip install nolib$"):
        xbridge.to_backend(A, "numpy", **{option: thing})


@pytest.mark.parametrize("given", [{None: "int8"}, {"float64": None}])
def test_read_options__mapping_gets_an_example_of_one(given: Any) -> None:
    """A mapping that maps no dtype to another is refused with one that does."""
    with pytest.raises(xbridge.DTypeError) as caught:
        xbridge.asarray(np.ones(2), dtype=given)
    assert caught.value.hint == "dtype={'float64': 'float32'}"


@pytest.mark.parametrize("given", [{"flaot64": "float32"}, {"float64": "flaot32"}], ids=str)
def test_read_options__misspelt_dtype_of_a_mapping_gets_no_hint_of_one_for_all(given: Any) -> None:
    """To name one dtype, as for a misspelt one alone, would cast arrays that the mapping leaves alone."""
    with pytest.raises(xbridge.DTypeError, match="flaot") as caught:
        xbridge.asarray(np.ones(2), dtype=given)
    assert not caught.value.hint
