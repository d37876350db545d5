"""Advice leads to a result: what a message ends in is typed into the call that failed, and run."""

from __future__ import annotations

import array
import contextlib
import re
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import advice
import hypothesis
import numpy as np
import pytest
from advice_commands import COMMANDS, follow, pieces_of, write_files
from advice_commands import hint_of as hint_of_command
from exporters import Exporter

import xbridge
from xbridge import testing, tree
from xbridge.testing import strategies

if TYPE_CHECKING:
    from collections.abc import Iterator

A = np.arange(3.0)


class Metres(np.ndarray[Any, np.dtype[Any]]):
    """What a library of units would make of an array."""


def ungraded(x: Any, **options: Any) -> object:
    """A conversion within torch while gradients are off."""
    import torch

    with torch.no_grad():
        return xbridge.to_backend(x, "torch", **options)


def transformed(x: Any, **options: Any) -> object:
    """A conversion of each row, inside torch's `vmap`."""
    import torch

    return torch.func.vmap(lambda row: xbridge.asarray(row, **options))(x)


NAMES: dict[str, Any] = {
    "ungraded": ungraded,
    "transformed": transformed,
    "inferred": lambda torch: torch.inference_mode()(torch.ones)(2),
    "Metres": Metres,
    **{name: getattr(xbridge, name) for name in xbridge.__all__},
    **{name: getattr(strategies, name) for name in strategies.__all__},
    **{name: getattr(testing, name) for name in testing.__all__},
    "st": hypothesis.strategies,
    "xbridge": xbridge,
    "tree": tree,
    "np": np,
    "numpy": np,
    "A": A,
    "masked": np.ma.masked_array(A, mask=[True, False, True]),
    "Fraction": Fraction,
    "objects": np.array([A, A, 0], object)[:2],
    "lists": np.array([[1, 2], [3, 4], None], object)[:2],
    "Future": Future,
    "array": array,
    "Exporter": Exporter,
    "dtype": "u1",
    "shape": (2,),
    "value": 0.0,
    "fn": np.sum,
    "function": lambda x: x.sum(),
    "batch": [A],
    "y": A,
    "backend": "numpy",
    "restored": lambda *xs, to: xbridge.align_back(*xs)[1](A, to=to),
    "waited": lambda x, timeout: xbridge.transfer(x, "numpy").result(timeout),
}

WANTED: dict[str, Any] = {
    "to_numpy([1, 2])": [1, 2],
    "to_numpy(1.5)": 1.5,
    "to_numpy([A, A])": [[0.0, 1.0, 2.0]] * 2,
    "to_numpy(np.ma.masked_array(A))": [0.0, 1.0, 2.0],
    "to_list(np.rec.array([(1, 2.0)], names='a,b'))": [1],
    "to_list(np.array([(1, 2.0)], [('a', 'i4'), ('b', 'f4')]))": [1],
    "asarray(['1', '2'])": [1.0, 2.0],
    "asarray([Fraction(1, 2), Fraction(1, 4)])": [0.5, 0.25],
    "asarray([Fraction(2**53 + 1)])": [2**53 + 1],
    "asarray([2**53 + 1, '3'])": [2**53 + 1, 3],
    "to_list(np.array([str(2**53 + 1)]))": [2**53 + 1],
    "to_torch(np.array([2**53 + 1, '3'], object))": [2**53 + 1, 3],
    "to_torch(np.array([2**53 + 1, None], object))": [2**53 + 1, None],
    "to_torch(np.array([0] * 2000 + [str(2**53 + 1)], object))": [0] * 2000 + [2**53 + 1],
    "to_numpy(pd.Series([Fraction(2**53 + 1)]))": [2**53 + 1],
    "to_torch(pd.DataFrame({'a': [2**53 + 1], 's': ['x']}))": [[2**53 + 1]],
    "asarray([-1, 2**64 - 1, np.int32(1)])": [-1.0, 2.0**64, 1.0],
    "asarray([-1, 2**64 - 1, np.int32(1)], dtype='uint64')": [-1.0, 2.0**64, 1.0],
    "asarray([np.uint8(1), -1, 2**64 - 1], backend='jax')": [1.0, -1.0, 2.0**64],
    "asarray([None, 1])": None,
    "to_torch(lists)": [[1, 2], [3, 4]],
    "to_torch(objects)": [[0.0, 1.0, 2.0]] * 2,
    "to_torch(pd.Series([A, A]))": [[0.0, 1.0, 2.0]] * 2,
    "to_numpy(pd.Series([A, A[:2]]))": [[0.0, 1.0, 2.0], [0.0, 1.0]],
    "to_torch(A, dtype=pa.float32())": [0.0, 1.0, 2.0],
    "asarray([A, A[:2]])": [[0.0, 1.0, 2.0], [0.0, 1.0]],
    "asarray(A, requires_grad=True)": [0.0, 1.0, 2.0],
    "asarray(inferred(torch), requires_grad=True)": [1.0, 1.0],
    "to_numpy(A, dtype='numpy')": [0.0, 1.0, 2.0],
    "asarray(A, device='numpy')": [0.0, 1.0, 2.0],
    "to_backend(np.array([2**40]), 'jax', dtype='nearest')": [2**40],
    "asarray([2**31, -1], backend='jax')": [2**31, -1],
    "asarray([np.float32(1), np.int64(2**60 + 1)], backend='jax', dtype='nearest')": [1.0, 2.0**60],
    "asarray([np.float32(1), 1e300], backend='torch')": [1.0, 1e300],
    "asarray([1j, 2**24 + 1], backend='torch')": [1j, 2**24 + 1],
    "asarray([0.5, 2**24 + 1], backend='torch')": [0.5, 2**24 + 1],
    "to_numpy(pd.Series(['b', 'a', 'b'], dtype='category'))": [1, 0, 1],
    "to_numpy(pd.Index(['b', 'a', 'b'], dtype='category'))": [1, 0, 1],
    "to_numpy(pd.Series(pd.to_datetime(['1970-01-02']).as_unit('s')))": [86_400],
    "to_numpy(pd.Series(pd.to_datetime(['1970-01-02']).as_unit('s').tz_localize('UTC')))": [86_400],
    "to_numpy(pd.Series([True, None], dtype='boolean').fillna(False).astype(object))": [1.0, 0.0],
    "to_list(pd.DataFrame({'x': [0.5, 1.5], 'n': [1, 2]}))": [[0.5, 1.0], [1.5, 2.0]],
    "to_torch(A.astype('f4'), backend='jax')": [0.0, 1.0, 2.0],
    "to_numpy(pd.DataFrame({'a': [1, 2], 'b': [True, False], 'c': ['x', 'y']}))": [[1.0, 1.0], [2.0, 0.0]],
}
"""Calls that fail, and the values that the user wanted, which the first advice that can be followed gives."""

CALLS = [
    "to_backend(A, 'nunpy')",
    "to_backend(A, backend='JAX', dtype='f4')",
    "to_backend(A, backend='float32')",
    "is_available(register_backend(3, 'module'))",
    "to_backend(A, 'numpy', copy='no')",
    "to_backend(A, 'numpy', grad='drop')",
    "aligned(function, backend='numpy', signature='ij,jk->ik')",
    "to_backend(A, 'numpy', dtype='flaot32')",
    "to_backend(A, 'numpy', device='cuda:x')",
    "to_backend(A, 'numpy', device=-1)",
    "to_backend(A, 'numpy', device=object())",
    "to_backend(A, 'torch', device='cuda:77')",
    "align(torch.ones(2), device=77)",
    "to_backend(jnp.ones(2), 'jax', device='tpu:7')",
    "to_backend(A, 'numpy', dtype='float32', copy=False)",
    "to_backend(A[::-1], 'torch', copy=False)",
    "asarray([A], copy=False)",
    "to_numpy(np.float64(1), copy=False)",
    "to_numpy(A * 1j, dtype='float64')",
    "asarray(np.arange(2), backend='torch', requires_grad=True)",
    "to_numpy(masked)",
    "to_list(A.view(Metres))",
    "to_list(np.array(['1.5']))",
    "to_list(np.array(['2020'], 'M8[D]'))",
    "to_list(np.ones(2, np.longdouble))",
    "to_list(torch.ones(2, dtype=torch.complex32))",
    "to_backend(np.ones(2, np.longdouble), 'torch')",
    "to_torch(np.ones(2, np.clongdouble), dtype='float32')",
    "to_torch(torch.ones(2, dtype=torch.complex32), dtype='float32')",
    "to_torch(np.ones(2, np.longdouble), copy=False)",
    "tree.to_torch([np.ones(2, np.longdouble)], copy=False)",
    "align(torch.ones(2), np.ones(2, np.longdouble), copy=False)",
    "to_numpy(torch.ones(2, dtype=torch.complex32))",
    "to_numpy({'x': A})",
    "to_numpy(Fraction(1, 2))",
    "to_numpy(b'abc')",
    "backend_of(3)",
    "array_namespace(torch.ones(2), A)",
    "asarray(A, like=3)",
    "asarray(A, like=torch)",
    "align(A, like='numpy')",
    "asarray([0.5, 2**53 + 1])",
    "asarray([0.5, 2**24 + 1], backend='jax')",
    "asarray([-1, 2**63])",
    "asarray(10**400)",
    "asarray([np.int8(1), 2**63])",
    "to_backend(A, 'torch', dtype=np.datetime64)",
    "asarray([np.array([2**53 + 1]), np.array([0.5])])",
    "asarray([np.uint8(1), 300])",
    "to_backend(A, 'jax', copy=False)",
    "asarray([torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float8_e5m2)])",
    "asarray([to_backend(A, 'array_api_strict'), to_backend(A, 'array_api_strict', device='device1')])",
    "asarray([torch.ones(2, requires_grad=True), A[:2]], grad='keep', backend='numpy')",
    "to_backend(A * 1e300, 'torch', dtype='default')",
    "transformed(torch.ones(2, dtype=torch.float64), dtype='default')",
    "to_backend(A, 'jax')",
    "to_numpy(torch.ones(2, requires_grad=True), grad='keep')",
    "to_backend(torch.ones(2, requires_grad=True), 'torch', dtype='int8', grad='keep')",
    "ungraded(torch.ones(2, requires_grad=True), dtype='float64', grad='keep')",
    "asarray(torch.ones(2, requires_grad=True) * 2, requires_grad=True)",
    "to_backend(A, 'array_api_strict', device='no_float64')",
    "to_list(np.ones(2, np.dtype(jnp.int1)))",
    "to_backend(A, 'torch', device='meta')",
    "to_numpy(torch.ones(2).to_sparse())",
    "to_numpy(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))",
    "to_numpy(jax.random.key(0))",
    "to_backend(A, 'numpy', grad=True)",
    "prefetch({'x': A}, 'numpy')",
    "to_torch(np.zeros((), [('float0', np.void, 0)]))",
    "transfer({'x': array.array('d', [1.0])}, 'numpy')",
    "to_torch(np.array(['2020', 'NaT'], 'M8[D]'))",
    "to_numpy(jax.new_ref(jnp.arange(3.0)))",
    "to_numpy(pd.Series(['b', None], dtype='category'))",
    "asarray([[1, 2], [3]])",
    "array_namespace([A, A])",
    "asarray(A, like=torch.float32)",
    "asarray(A, like=torch.device('cpu'))",
    "to_numpy(A, zero_copy_only=True)",
    "backend_of([A, A])",
    "to_numpy([{'a': 1}])",
    "array_namespace(3)",
    "to_numpy(A, dtype=A)",
    "explain([1.0, 2.0], 'numpy')",
    *WANTED,
    "prefetch(3, 'numpy')",
    "explain(A, 'torch', writable=True)",
    "explain(A, 'numpy', 'jax')",
    "aligned(function, backend='numpy', arrays='y')",
    "tree.to_numpy(3)",
    "tree.to_numpy(array.array('d', [1.0]))",
    "asarray(np.array([np.complex64(1j)], object), dtype='float32')",
    "prefetch([A], 'numpy', depth=0)",
    "waited(A, timeout='1')",
    "policy(copies='never')",
    "record(foreign='yes')",
    "restored(A, to=5)",
    "unsafe_share(A[::-1], 'torch')",
    "unsafe_share(np.ones(2, np.longdouble), 'torch')",
    "arrays('numpy', elements='x')",
    "arrays('numpy', requires_grad=True)",
    "arrays('numpy', dtypes=np.longdouble)",
    "arrays('numpy', layouts='transpose')",
    "arrays('array_api_strict', devices='cuda')",
    "dtypes('numpy', kinds='flaot')",
    "align_back(1, 2)",
    "align_back([A])",
    "align([A, A])",
    "align({'a': A}, A)",
    "to_torch(torch.ones(2), A)",
    "asarray(A, like=[A])",
    "to_backend(A, A)",
    "to_backend(A, 'numpy', order='c')",
    "backend_of(torch.nn.Linear(1, 1))",
    "dtype_of(pd.Series([1.0]))",
    "to_numpy(torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]))",
    "to_numpy(lazy)",
    "register_backend('torch', 'other')",
    "tree.to_numpy([A], scalars='numpy')",
    "tree.to_numpy([A], unsupported='skip')",
    "tree.to_torch([A], movables='yes', device='cpu')",
    "tree.to_numpy([A], only=A)",
    "tree.map([A], np.sin)",
    "aligned(function, backend='numpy', result=3)",
    "tree.to_torch([A], movables=True)",
    "to_list([A, A])",
    "arrays('numpy', shapes=2.5)",
    "arrays('numpy', writable='no')",
    "arrays('numpy', dtypes=[])",
    "dtypes('numpy', kinds=[])",
    "arrays_together('numpy', shapes='x')",
    "arrays_together('numpy', shapes=(2, 3))",
    "arrays_together('numpy', dtypes=['float32'])",
    "arrays_together('numpy', n=0)",
    "arrays_together('numpy', n=3, shapes=[(2,), (3,)])",
    "assert_contract(np.sin, A, dtype='x')",
    "assert_contract(np.sin, A, nan='kept')",
    "assert_contract(np.sin, A, raises=3)",
    "assert_contract(np.sin, A, raises=(TypeError, BaseException))",
    "assert_matches_numpy(np.sin, A, dtype='x')",
]
"""Calls that fail, each with a message that ends in code."""


@pytest.fixture(autouse=True)
def as_before(own_registry: None) -> Iterator[None]:
    """What advice says to do holds for one test."""
    yield
    with contextlib.suppress(ImportError):
        import jax

        jax.config.update("jax_enable_x64", False)  # type: ignore[no-untyped-call] # theirs


def names_for(call: str) -> dict[str, Any]:
    """The names in a call, or no test where a library is missing."""
    names = dict(NAMES)
    paths = {"torch": "torch", "jax": "jax", "jnp": "jax.numpy", "da": "dask.array"}
    paths |= {"pd": "pandas", "pa": "pyarrow"}
    for word, path in paths.items():
        if re.search(rf"\b(to_)?{word}\b", call):
            names[word] = pytest.importorskip(path)
            names.setdefault("jax", pytest.importorskip("jax") if word == "jnp" else None)
    for word in ("torch", "jax", "dask", "array_api_strict"):
        if f"'{word}'" in call and not xbridge.is_available(word):
            pytest.skip(f"{word} is not here")
    if "lazy" in call:
        names["lazy"] = pytest.importorskip("torch").nn.UninitializedParameter()
    return {**names, "jax": names.get("jax") or _jax()}


def _jax() -> Any:
    return __import__("jax") if xbridge.is_available("jax") else None


def hint_of(call: str) -> str:
    """What the message of a call that fails advises."""
    names = names_for(call)
    with pytest.raises(xbridge.XBridgeError) as caught:
        _used(eval(call, names))
    error: xbridge.XBridgeError = caught.value
    return error.hint or str(error).partition("; try ")[2]


by_torch = pytest.mark.filterwarnings(
    "ignore:(torch.quantize|.*nested tensors|.*ComplexHalf|ComplexHalf|Casting complex):UserWarning"
)
"""Torch warns of what some of the calls convert, once in a process."""


def _used(made: object) -> None:
    """What fails when it is used, and not when it is made."""
    if hasattr(made, "result"):
        made.result()
    if hasattr(made, "error") and made.error is not None:
        raise made.error


@by_torch
@pytest.mark.parametrize("call", CALLS)
def test_hint__returns_a_result_when_followed(call: str) -> None:
    """Typing what a hint suggests into the failed call makes it return a result."""
    hint = hint_of(call)
    names = names_for(f"{call} {hint}")
    pieces = advice.alternatives(hint)
    assert pieces, hint
    for piece in pieces:
        _used(advice.follow(call, piece, names))


TABLE = "pd.DataFrame({'x': [0.5, 1.5], 'n': [1, 2]})"


@pytest.mark.parametrize(
    ("call", "library", "dtype"),
    [
        (f"to_numpy({TABLE})", "numpy", "float64"),
        (f"to_torch({TABLE})", "torch", "float64"),
        (f"to_jax({TABLE})", "jax", "float32"),
        (f"to_torch({TABLE}, dtype='default')", "torch", "float32"),
        ("to_torch(A, backend='jax', dtype='float32')", "jax", "float32"),
        ("tree.to_torch(Fraction(1, 2))", "torch", "float32"),
        ("tree.to_jax(Fraction(1, 2))", "jax", "float32"),
    ],
)
def test_hint__has_what_the_call_asked_for(call: str, library: str, dtype: str) -> None:
    """The hint of a call that names a library or a dtype leads there, in a dtype that the library has."""
    (piece,) = advice.alternatives(hint_of(call))
    made = advice.follow(call, piece, names_for(f"{call} '{library}'"))
    assert (xbridge.backend_of(made), xbridge.dtype_of(made)) == (library, dtype)


def test_hint__for_a_number_or_list_says_which_it_is() -> None:
    """An integer that does not fit is that of a number, or of a list, as the user gave it."""
    for x, noun in ((300, "number"), ([300], "list"), ([np.uint8(1), 300], "list")):
        with pytest.raises(xbridge.ValueLossError, match=f"^cannot make a uint8 array of this {noun}:"):
            xbridge.asarray(x, dtype="uint8")


def test_hint__of_groups_is_none() -> None:
    """The groups of a table have no `keys`, though their class has the name, so no dict is made of them."""
    groups = pytest.importorskip("pandas").DataFrame({"f": [1], "x": [1]}).groupby("f")
    for call in (xbridge.to_numpy, tree.to_numpy):
        with pytest.raises(xbridge.UnsupportedArrayError) as told:
            call(groups)
        assert not told.value.hint


ROOT = Path(xbridge.__file__).parent
TESTS = Path(__file__).parents[1]
CALLED = re.compile(r"@?[\w.]+[(=]|--[\w-]+")
"""Matches what a piece of a hint calls, or the option that it names."""
WORDS = (
    "a function with @xbridge.aligned",
    "jax.pure_callback",
    "{} in this process",
    "a smaller ",
    "dtypes= of",
    "xbridge.asarray(x, like=y) with",
    "--each",
)
"""How pieces begin that name what to use outside of the call, or the seconds to wait."""
INSTALLS = re.compile(r"(\{\}, with |pip install |python -c )")
"""Matches what is done to the environment, and not to a call."""

ELSEWHERE = {
    "api/test_calls.py": ["aligned(vjp=f)"],
    "api/test_verbs_torch.py": ["forward_ad.unpack_dual(x).primal"],
    "backends/cupy/test_cupy.py": ["x.view(type=cupy.ndarray)"],
    "backends/jax/test_devices.py": [
        "to_backend(x, {}, device='cpu')",
        "jax.experimental.multihost_utils.process_allgather(x, tiled=True)",
    ],
    "backends/jax/test_jax.py": ["x.astype('int8')"],
    "backends/test_defaults.py": ["to_numpy(x)"],
    "emulated/test_transfers_casts.py": ["{}=64"],
    "files/test_checkpoints.py": [
        "--at KEY, which takes a part of it",
        "torch.save(model.state_dict(), path) where it was saved",
    ],
    "functions/test_batches.py": [
        "result=f, where f(*args) returns empty arrays of the shapes and dtypes of the result",
        "result=f with the shapes of the result",
    ],
    "functions/test_dask.py": ["x.rechunk({})", "x.rechunk(y.chunks)", "x.compute_chunk_sizes() before it"],
    "functions/test_meshes.py": ["jax.sharding.auto_axes(f, out_sharding=P())(x)"],
    "functions/test_never_silent.py": [
        "aligned(..., dtype='nearest')",
        "jax.config.update('jax_cpu_enable_async_dispatch', False) before JAX computes",
    ],
    "functions/test_numbers.py": ["dtype='float64', restore=True"],
    "functions/test_programs.py": [
        "torch.compile(f, dynamic=False)",
        "torch.export.export(model, args) in this process",
    ],
    "functions/test_reports.py": ["explain(f, x)"],
    "functions/test_state.py": ["module.eval() of the torch module itself"],
    "host/test_hints.py": ["numpy.asarray(x)"],
    "kit/test_assertions.py": ["ulp=4"],
    "kit/test_contract.py": ["@contract(arrays)"],
    "kit/test_matches.py": ["numpy.ones(3)"],
    "kit/test_plugin.py": ["--xbridge=all"],
    "kit/test_plugin_marks.py": [
        "xfail=",
        "xfail={'numpy': 'it rounds'}",
        "only=, skip=, needs=, without=",
        "without={}",
    ],
    "observe/test_policy.py": ["transfers=raise", "policy({}='allow') around it"],
    "plan/test_complex.py": ["to_numpy(x).real"],
    "transfer/test_transfer.py": ["xbridge.prefetch(...) for each loop, over a new iterator"],
    "tree/test_classes.py": ["{{}}"],
}
"""Hints that a call here cannot be given, by the tests in an environment of their own that follow them."""


@pytest.mark.parametrize("command", COMMANDS)
def test_hint__of_a_command_succeeds_when_followed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a message of the command line advises, typed into the line that failed, makes it succeed."""
    monkeypatch.chdir(tmp_path)
    write_files()
    pieces = pieces_of(hint_of_command(command))
    assert pieces
    for piece in pieces:
        assert follow(command, piece) == 0, piece
        for made in tmp_path.glob("o.*"):
            made.unlink()


@by_torch
def test_hint__of_the_source_is_followed_by_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call in a hint of the source is one that a test has run, for an object of the hint's kind."""
    monkeypatch.chdir(tmp_path)
    write_files()
    hints = [*map(hint_of, CALLS), *map(hint_of_command, COMMANDS)]
    elsewhere = {piece for pieces in ELSEWHERE.values() for piece in pieces}
    unused, untried = {*elsewhere}, []
    for path in sorted(ROOT.rglob("*.py")):
        for line, text in advice.templates(path):
            for piece in re.split(r",? or ", text):
                form = re.escape(piece).replace(r"\{\}", ".*")
                unused.discard(piece)
                if not (
                    piece in elsewhere
                    or INSTALLS.match(piece)
                    or is_in_words(piece, path)
                    or any(re.search(f"{form}($|,? or )", hint) for hint in hints)
                ):
                    untried.append(f"{path.relative_to(ROOT)}:{line}: {piece}")
    assert not untried, "\n".join(untried)
    assert unused == set()


def is_in_words(piece: str, path: Path) -> bool:
    """Whether a piece says what to write, and is no call: to authors of functions, of tests, of files."""
    part = path.relative_to(ROOT).parts[0]
    return piece.startswith(WORDS) or (part in ("functions", "testing", "files") and not CALLED.match(piece))


@pytest.mark.parametrize("place", ELSEWHERE)
def test_hint__of_another_environment_is_followed_there(place: str) -> None:
    """The tests that are named for some hints are there, and call what the hints call."""
    text = (TESTS / place).read_text("utf-8")
    for piece in ELSEWHERE[place]:
        found = CALLED.search(piece)
        assert found is None or f".{found[0]}".rpartition(".")[2] in text or "eval(" in text, piece


@pytest.mark.parametrize("call", WANTED)
def test_hint__gives_the_expected_values_when_followed(call: str) -> None:
    """Following a hint gives the values that the caller wanted in the first place."""
    if "requires_grad" in call or "to_torch" in call:
        pytest.importorskip("torch")  # to which the hint leads
    names = names_for(call)
    results = []
    for piece in advice.alternatives(hint_of(call)):
        with contextlib.suppress(xbridge.XBridgeError, ValueError, TypeError):
            results.append(advice.follow(call, piece, names))
    wanted = WANTED[call]
    made = results[0]
    assert type(made) is list or not call.startswith("to_list")
    values = tree.map(xbridge.to_list, made) if isinstance(made, list) else xbridge.to_list(made)
    if wanted is None:
        assert np.isnan(values[0])
        wanted = [values[0], 1.0]
    assert values == wanted
