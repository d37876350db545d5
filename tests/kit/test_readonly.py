"""Read-only NumPy: nothing of it can be written, nothing it makes can, and code that tries fails."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import array_api_compat
import array_api_compat.numpy
import numpy as np
import pytest

import xbridge
from xbridge.testing._numpy_readonly import ReadOnlyArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from xbridge.protocol import Array

NAME = "numpy_readonly"
PLAIN = np.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def _registered(own_registry: None) -> None:
    xbridge.register_backend(NAME, "xbridge.testing._numpy_readonly", roots=("xbridge",))


def test_numpy_readonly__is_registered_by_the_test_kit() -> None:
    """The backend is known once the kit is imported, and no library is loaded for it."""
    code = (
        "import sys, xbridge; assert 'numpy_readonly' not in xbridge.known_backends();"
        "import xbridge.testing; assert 'numpy_readonly' in xbridge.known_backends();"
        "assert not {'numpy', 'torch', 'hypothesis', 'pytest'} & {*sys.modules};"
        "from xbridge.testing.strategies import arrays; arrays('numpy_readonly')"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def made() -> ReadOnlyArray:
    """A read-only array of memory of its own."""
    return ReadOnlyArray(PLAIN.copy())


# -- what cannot be done -------------------------------------------------------------------------


def add_in_place(x: Array) -> None:
    x += 1


def set_by(item: object) -> Callable[[Array], None]:
    def set_item(x: Array) -> None:
        x[item] = 1.0

    return set_item


def set_attribute(path: str, value: object = 1.0) -> Callable[[Array], None]:
    def set_it(x: Array) -> None:
        *way, last = path.split(".")
        for word in way:
            x = getattr(x, word)
        setattr(x, last, value)

    return set_it


WRITES: dict[str, Callable[[Array], object]] = {
    "x[0] = 1": set_by(0),
    "x += 1": add_in_place,
    "x.flat = 1": set_attribute("flat"),
    "x.T[0] = 1": lambda x: x.T.__setitem__(0, 1.0),
    "x.fill(1)": lambda x: x.fill(1),
    "x.resize(3)": lambda x: x.resize(3),
    "x.byteswap(True)": lambda x: x.byteswap(True),
    "np.add(out=x)": lambda x: np.add(x, 1, out=x),
    "np.asarray(x)[0] = 1": lambda x: np.asarray(x).__setitem__(0, 1),
    "x.setflags(write=True)": lambda x: x.setflags(write=True),
    "x.flags.writeable = True": set_attribute("flags.writeable", value=True),
    "x.T.flags.writeable = True": set_attribute("T.flags.writeable", value=True),
    "np.asarray(x).flags.writeable = True": lambda x: np.asarray(x).setflags(write=True),
    "x.view(np.ndarray).flags.writeable = True": lambda x: x.view(np.ndarray).setflags(write=True),
}


@pytest.mark.parametrize("write", WRITES)
def test_readonlyarray__refuses_every_write(write: str) -> None:
    """No method, function or flag of NumPy can write the array, and each of them writes a plain one."""
    if write != "x.resize(3)":  # the one that wants memory of its own
        WRITES[write](PLAIN.copy())
    x = made()
    with pytest.raises(ValueError):
        WRITES[write](x)
    assert x.tolist() == PLAIN.tolist()


def test_readonlyarray__view_leaves_the_original_writable() -> None:
    """A read-only view refuses writes, and its original stays writable."""
    a = PLAIN.copy()
    x = a.view(ReadOnlyArray)
    for write in (set_by(0), set_attribute("flags.writeable", value=True)):
        with pytest.raises(ValueError):
            write(x)
    x.setflags(write=False)
    a[0] = 7.0
    assert x[0].tolist() == [7.0, 7.0, 7.0]


# -- what comes out ------------------------------------------------------------------------------

RESULTS: dict[str, Callable[[Any], Any]] = {
    "x + 1": lambda x: x + 1,
    "x @ x.T": lambda x: x @ x.T,
    "divmod(x, 2)": lambda x: divmod(x, 2),
    "x[0]": lambda x: x[0],
    "x[x > 1]": lambda x: x[x > 1],
    "x.T": lambda x: x.T,
    "x.view(dtype)": lambda x: x.view("int64"),
    "x.sum()": lambda x: x.sum(),
    "next(iter(x))": lambda x: next(iter(x)),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "np.stack of a tuple": lambda x: np.stack(np.unique_all(x)[:2]),
    "np.stack of any sequence": lambda x: np.stack(deque([x, x])),
    "np.empty_like": lambda x: np.empty_like(x) * 0,
    "np.unique_all": np.unique_all,
}


def parts(result: Any) -> list[Any]:
    """The arrays of a result, or of a tuple or list of them."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("make", RESULTS)
def test_readonlyarray__results_are_read_only(make: str) -> None:
    """What NumPy computes from it equals NumPy's own result and is read-only."""
    found, expected = RESULTS[make](made()), RESULTS[make](PLAIN)
    assert type(found) is type(expected) or isinstance(found, ReadOnlyArray)
    for one, other in zip(parts(found), parts(expected), strict=True):
        assert type(one) is ReadOnlyArray
        assert not one.flags.writeable
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_readonlyarray__scalar_result_acts_as_a_scalar() -> None:
    """A 0-d result formats, converts and indexes as a NumPy scalar does."""
    total = made().sum()
    assert (f"{total:.1f}", float(total), "abc"[np.argmax(made()[0] > 0)]) == ("15.0", 15.0, "b")
    assert made().any()
    long = ReadOnlyArray(np.ones(1, "longdouble"))
    assert type(long.item()) is type(long.tolist()[0]) is np.longdouble


def test_readonlyarray__out_argument_is_filled() -> None:
    """An array passed as `out` is filled, returned and still writable."""
    x, out = made(), np.zeros((2, 3))
    total = out
    assert np.add(x, 1, out=out) is out
    total += x
    total += x
    assert total is out
    assert out.tolist() == (3 * PLAIN + 1).tolist()
    row = np.zeros(3)
    assert np.sum(x, axis=0, out=row) is row
    fraction, whole = np.modf(x, out=(None, out))  # type: ignore[arg-type] # it may be None
    assert whole is out
    assert type(fraction) is ReadOnlyArray


def test_readonlyarray__defers_to_other_libraries() -> None:
    """Another library is asked through NumPy's protocols, as it is for a plain array."""

    class Other:
        def __array_function__(self, *args: object) -> str:
            return "asked"

    assert np.stack([made(), Other()]) == "asked"  # type: ignore[arg-type] # theirs
    with pytest.raises(TypeError):
        made() + object()


# -- its namespace -------------------------------------------------------------------------------


def test_array_namespace__mirrors_array_api_compat() -> None:
    """The namespace is a single object with the names of array-api-compat's."""
    xp = xbridge.array_namespace(made())
    assert xp is made().__array_namespace__()
    assert xp.sum is xp.sum
    assert xp.float32 is np.float32
    assert xp.isdtype(made().dtype, "real floating")
    assert dir(xp) == dir(array_api_compat.numpy)
    with pytest.raises(AttributeError):
        _ = xp.no_such_function


def test_array_namespace__array_api_compat_sees_numpy() -> None:
    """array-api-compat takes a read-only array for one of NumPy."""
    xp = array_api_compat.array_namespace(made())
    assert xp is array_api_compat.numpy
    assert type(xp.sum(made(), axis=0)) is ReadOnlyArray
    assert array_api_compat.device(made()) == "cpu"


COPIES: dict[str, Callable[[Array], Array]] = {
    "x.copy()": lambda x: x.copy(),
    "np.array(x)": np.array,
    "copy.deepcopy(x)": copy.deepcopy,
    "asarray(x, copy=True)": lambda x: xbridge.array_namespace(x).asarray(x, copy=True),
}


@pytest.mark.parametrize("how", COPIES)
def test_readonlyarray__copy_is_plain_and_writable(how: str) -> None:
    """A copy is a plain NumPy array that can be written."""
    x = made()
    y = COPIES[how](x)
    assert type(y) is np.ndarray
    y[0, 0] = 9.0
    assert x.tolist() == PLAIN.tolist()
