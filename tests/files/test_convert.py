"""`convert`: what is in a file arrives in the other, bit for bit; what would be lost is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shell import Cli, bits, every_dtype, listing

import xbridge

pytest.importorskip("ml_dtypes")
safetensors = pytest.importorskip("safetensors.numpy")
save_safetensors = safetensors.save_file

if TYPE_CHECKING:
    from xbridge.protocol import HostArray

NUMPYS = ("bfloat16", *(f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")))
"""The dtypes that NumPy has through ml_dtypes only, so that .npy has no word for them."""

CAN_HOLD = {"x.npz": every_dtype(*NUMPYS), "x.safetensors": every_dtype("complex128"), "x.pt": every_dtype()}


def write(path: Path, arrays: dict[str, HostArray]) -> None:
    """By the library of the format, and not by ours."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type] # any name
    elif path.suffix == ".safetensors":
        save_safetensors(arrays, path)
    else:
        import torch

        torch.save({name: xbridge.to_backend(array, "torch") for name, array in arrays.items()}, path)


def read(path: Path) -> dict[str, HostArray]:
    """Likewise."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return dict(arrays)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return {name: xbridge.to_numpy(tensor) for name, tensor in load_file(path).items()}
    import torch

    tensors = torch.load(path, weights_only=True)
    return {name: xbridge.to_numpy(tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize("target", CAN_HOLD)
@pytest.mark.parametrize("source", CAN_HOLD)
def test_convert__every_array_arrives_bit_for_bit_under_its_name(
    tmp_path: Path, cli: Cli, source: str, target: str
) -> None:
    """Every array arrives bit for bit under its name."""
    pytest.importorskip("torch")
    arrays = {name: x for name, x in CAN_HOLD[source].items() if name in CAN_HOLD[target]}
    write(tmp_path / source, arrays)
    there = tmp_path / f"there.{target.partition('.')[2]}"
    cli.run("convert", tmp_path / source, there)
    found = read(there)
    assert {name: bits(x) for name, x in found.items()} == {name: bits(x) for name, x in arrays.items()}
    assert listing(tmp_path) == {source, there.name}


@pytest.mark.parametrize("name", NUMPYS)
def test_convert__what_numpy_would_write_as_raw_bytes_is_refused_by_name(
    tmp_path: Path, cli: Cli, name: str
) -> None:
    """What NumPy would write as raw bytes is refused by name, and the cast that is named changes no value."""
    x, source, target = every_dtype()[name], tmp_path / "a.safetensors", tmp_path / "a.npy"
    save_safetensors({"w": x, "x": np.ones(2)}, source)
    said = cli.refused("convert", source, target, "--array", "w")
    assert f"'w' is {name}, and NumPy has no such dtype of its own" in said
    assert f"--cast {name}=float32, which changes no value" in said
    assert listing(tmp_path) == {"a.safetensors"}
    cli.run("convert", source, target, "--array", "w", "--cast", f"{name}=float32")
    found = np.load(target)
    np.testing.assert_array_equal(found, x.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(x))


@pytest.mark.parametrize(
    ("values", "cast", "lost"),
    [
        (np.array([0.5, 1.5]), "float64=int8", "the value 0.5 would become 0"),
        (np.array([1.0, -0.0]), "float64=int64", "the value -0.0 would become 0"),
        (
            np.array([2**53, 2**53 + 1]),
            "int64=float64",
            "the value 9007199254740993 would become 9007199254740992.0",
        ),
        (np.array([1.0, np.nan]), "float64=int64", "the value nan would become "),
        (np.array([1.0, 1e300]), "float64=float32", "the value 1e+300 would become inf"),
        (np.array([complex(np.nan, 1e300)]), "complex128=complex64", "the value (nan+1e+300j) would become "),
    ],
)
def test_convert__cast_in_which_a_value_changes_is_refused_and_nothing_is_written(
    tmp_path: Path, cli: Cli, values: HostArray, cast: str, lost: str
) -> None:
    """A cast in which a value changes is refused and nothing is written."""
    np.savez(tmp_path / "a.npz", x=values)
    said = cli.refused("convert", tmp_path / "a.npz", tmp_path / "b.npz", "--cast", cast)
    assert f"cannot cast 'x' from {values.dtype} to" in said
    assert lost in said
    assert listing(tmp_path) == {"a.npz"}


@pytest.mark.parametrize(
    ("cast", "reason"),
    [
        ("float32", "it has no '='; try --cast float64=float32"),
        ("=float32", "'' is not the name of a dtype"),
        ("float32=f16", "'f16' is not the name of a dtype"),
    ],
)
def test_convert__cast_is_two_dtypes(tmp_path: Path, cli: Cli, cast: str, reason: str) -> None:
    """A cast is two dtypes."""
    np.save(tmp_path / "a.npy", np.ones(2))
    said = cli.refused("convert", tmp_path / "a.npy", tmp_path / "b.npy", "--cast", cast)
    assert said.endswith(f"cannot cast {cast!r}: {reason}\n")


@pytest.mark.parametrize(
    ("values", "cast", "rounds_to"),
    [
        (np.array([0.1, np.nan, -0.0, np.inf]), "float64=float32", [np.float32(0.1), np.nan, -0.0, np.inf]),
        (np.array([0.1 + np.nan * 1j]), "complex128=complex64", [np.complex64(0.1 + np.nan * 1j)]),
        (np.array([0.1 + 0.2j]), "complex128=complex64", [np.complex64(0.1 + 0.2j)]),
    ],
)
def test_convert__cast_rounds_if_that_is_allowed(
    tmp_path: Path, cli: Cli, values: HostArray, cast: str, rounds_to: list[float]
) -> None:
    """A cast rounds if that is allowed."""
    np.save(tmp_path / "a.npy", values)
    cli.run("convert", tmp_path / "a.npy", tmp_path / "b.npy", "--cast", cast, "--round")
    found = np.load(tmp_path / "b.npy")
    assert str(found.dtype) == cast.partition("=")[2]
    assert str(found.tolist()) == str(np.array(rounds_to, found.dtype).tolist())


def test_convert__rounds_float64_to_bfloat16_once(tmp_path: Path, cli: Cli) -> None:
    """A float64 just above the middle of two bfloat16 is rounded up, not to float32 and then to even."""
    np.savez(tmp_path / "a.npz", a=np.array([0.1, 1 + 2**-8 + 2**-40]))
    target = tmp_path / "b.safetensors"
    cli.run("convert", tmp_path / "a.npz", target, "--cast", "float64=bfloat16", "--round")
    found = safetensors.load_file(target)["a"]
    assert (found.dtype.name, found.astype("f8").tolist()) == ("bfloat16", [0.10009765625, 1 + 2**-7])


@pytest.mark.parametrize("cast", ["float64=int8", "int64=float64", "float64=float8_e8m0fnu"])
def test_convert__rounds_floats_and_nothing_else(tmp_path: Path, cli: Cli, cast: str) -> None:
    """An integer is never rounded, nor is a float to an integer or to a power of two."""
    np.savez(tmp_path / "a.npz", a=np.array([2**53 + 1]), b=np.array([0.1]))
    words = ("--cast", cast, "--round", "--array", "a" if cast.startswith("int") else "b")
    said = cli.refused("convert", tmp_path / "a.npz", tmp_path / "b.safetensors", *words)
    assert "would become" in said
    assert "--round" not in said


def test_convert__cast_that_drops_an_imaginary_part_is_refused(tmp_path: Path, cli: Cli) -> None:
    """A cast that drops an imaginary part is refused."""
    np.savez(tmp_path / "a.npz", z=np.ones(2, "complex64"))
    said = cli.refused("convert", tmp_path / "a.npz", tmp_path / "b.npz", "--cast", "complex64=float32")
    assert "cannot cast 'z': float32 has no imaginary part" in said
    cli.run("convert", tmp_path / "a.npz", tmp_path / "b.npz", "--cast", "complex64=complex128")


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6.0).astype(">f8").reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
    ],
)
def test_convert__layout_that_the_target_has_not_becomes_its_own(
    tmp_path: Path, cli: Cli, array: HostArray
) -> None:
    """A layout that the target lacks becomes the one that it has, and the values stay."""
    np.savez_compressed(tmp_path / "a.npz", x=array)
    there = tmp_path / "a.safetensors"
    cli.run("convert", tmp_path / "a.npz", there)
    found = read(there)["x"]
    assert bits(found) == bits(array.astype(array.dtype.newbyteorder("=")))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<M8[s]", "<U2", "V5", "i4,f8"])
def test_convert__what_npy_can_spell_goes_between_npy_and_npz_as_it_is(
    tmp_path: Path, cli: Cli, dtype: str, order: Any
) -> None:
    """What npy can spell goes between npy and npz as it is."""
    raw = np.random.default_rng(1).integers(0, 100, (2, 3, np.dtype(dtype).itemsize), np.uint8)
    array = np.asarray(raw.view(dtype)[..., 0] if dtype != "<U2" else np.full((2, 3), "ab"), order=order)
    np.save(tmp_path / "a.npy", array)
    cli.run("convert", tmp_path / "a.npy", tmp_path / "b.npz")
    cli.run("convert", tmp_path / "b.npz", tmp_path / "c.npy")
    assert (tmp_path / "c.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


@pytest.mark.parametrize("dtype", ["<M8[s]", "i4,f8", "V2", "S3", "complex128"])
def test_convert__safetensors_refuses_a_dtype_that_it_has_not(tmp_path: Path, cli: Cli, dtype: str) -> None:
    """safetensors and torch refuse a dtype that they lack."""
    np.savez(tmp_path / "a.npz", x=np.zeros(2, dtype), y=np.ones(2))
    said = cli.refused("convert", tmp_path / "a.npz", tmp_path / "a.safetensors")
    assert f"'x' is {np.dtype(dtype)}, and the format has no such dtype" in said
    if dtype != "complex128":
        pytest.importorskip("torch")
        said = cli.refused("convert", tmp_path / "a.npz", tmp_path / "a.pt")
        assert f"'x' is {np.dtype(dtype)}, and torch has no such dtype" in said


@pytest.mark.parametrize(("name", "raw"), [("bfloat16", "V2"), ("float8_e4m3fn", "V1")])
def test_convert__cast_names_the_dtype_of_raw_items(tmp_path: Path, cli: Cli, name: str, raw: str) -> None:
    """A dtype of ml_dtypes, of which NumPy's files keep the width alone, is named, and no bit changes."""
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    x = np.arange(256 ** min(dtype.itemsize, 1), dtype=f"u{dtype.itemsize}").view(dtype)
    np.savez(tmp_path / "a.npz", x=x)
    words = ("convert", tmp_path / "a.npz", tmp_path / "a.safetensors")
    hint = f"; try --cast {raw}={name}" if raw == "V2" else "no such dtype"
    assert hint in cli.refused(*words)
    assert f"do not keep float32 as {raw}" in cli.refused(*words, "--cast", f"{raw}=float32")
    cli.run(*words, "--cast", f"{raw}={name}")
    assert (tmp_path / "a.safetensors").read_bytes().endswith(x.tobytes())


def test_convert__array_without_a_name_gets_numpys_and_loses_it_again(tmp_path: Path, cli: Cli) -> None:
    """An array without a name gets NumPy's and loses it again."""
    np.save(tmp_path / "a.npy", np.arange(3))
    for target in ("a.npz", "a.safetensors"):
        cli.run("convert", tmp_path / "a.npy", tmp_path / target)
        assert list(read(tmp_path / target)) == ["arr_0"]
        cli.run("convert", tmp_path / target, tmp_path / "back.npy", "--force")
        assert (tmp_path / "back.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


@pytest.mark.parametrize("names", [["w"], ["a", "b", "c", "d", "e", "f", "g"], []])
def test_convert__names_are_lost_only_where_one_array_was_picked(
    tmp_path: Path, cli: Cli, names: list[str]
) -> None:
    """Names are lost only where one array was picked."""
    np.savez(tmp_path / "a.npz", **{name: np.full(2, at) for at, name in enumerate(names)})  # type: ignore[arg-type] # any name
    said = cli.refused("convert", tmp_path / "a.npz", tmp_path / "a.npy")
    assert "it holds one array without a name, and there are " in said
    assert ("'e' and 2 more" in said) == (len(names) == 7)
    assert ("there are no arrays" in said) == (not names)
    said = cli.refused("convert", tmp_path / "a.npz", tmp_path / "a.npy", "--array", "q")
    assert "cannot find the array 'q'" in said
    if names:
        cli.run("convert", tmp_path / "a.npz", tmp_path / "a.npy", "--array", names[-1])
        assert np.load(tmp_path / "a.npy").tolist() == [len(names) - 1] * 2


def test_convert__text_beside_the_arrays_is_kept_or_dropped_by_name(tmp_path: Path, cli: Cli) -> None:
    """Text beside the arrays is kept or dropped by name."""
    from safetensors import safe_open

    a, b, c = (tmp_path / name for name in ("a.safetensors", "b.safetensors", "c.npz"))
    save_safetensors({"x": np.ones(2)}, a, metadata={"title": "t", "format": "np"})
    cli.run("convert", a, b)
    with safe_open(b, "numpy") as file:
        assert file.metadata() == {"title": "t", "format": "np"}
    said = cli.refused("convert", a, c)
    assert "its format cannot hold the metadata " in said
    assert "'title'" in said
    assert "; try --drop-metadata" in said
    cli.run("convert", a, c, "--drop-metadata")
    cli.run("convert", a, b, "--drop-metadata", "--force")
    with safe_open(b, "numpy") as file:
        assert file.metadata() is None
    assert list(read(c)) == ["x"]
    save_safetensors({"x": np.ones(2)}, a, metadata={"format": "pt"})  # which framework wrote it, and no more
    cli.run("convert", a, c, "--force")


@pytest.mark.parametrize("name", ["a\0b", "x" * 70_000, "lone \ud800"])
def test_convert__name_that_would_not_come_back_is_refused_before_the_file_has_its_name(
    tmp_path: Path, cli: Cli, name: str
) -> None:
    """A name that would not come back is refused before the file has its name."""
    torch = pytest.importorskip("torch")
    torch.save({name: torch.ones(2)}, tmp_path / "a.pt")
    said = cli.refused("convert", tmp_path / "a.pt", tmp_path / "b.npz")
    assert f"cannot write {tmp_path / 'b.npz'}: " in said
    assert listing(tmp_path) == {"a.pt"}


ODD_NAMES = (
    *("", " ", "file", "arr_0", "self", "allow_pickle", "x/y", "/x", "../x", "x/", "a\\b", "a\nb", "."),
    *("a", "A", "b.npy", "c.npy.npy", ".npy", "\u00e9", "e\u0301", "\u6587", "__class__", "data.pkl"),
)


@pytest.mark.parametrize("target", ["there.npz", "there.safetensors", "there.pt"])
def test_convert__any_name_is_given_back_by_the_library_of_the_format(
    tmp_path: Path, cli: Cli, target: str
) -> None:
    """Any name is given back by the library of the format."""
    torch = pytest.importorskip("torch")
    names = [name for name in ODD_NAMES if (name, target) != (".npy", "there.npz")]  # which reads as ""
    torch.save({name: torch.tensor([number]) for number, name in enumerate(names)}, tmp_path / "a.pt")
    cli.run("convert", tmp_path / "a.pt", tmp_path / target)
    found = read(tmp_path / target)
    assert {name: found[name].tolist() for name in names} == {name: [i] for i, name in enumerate(names)}


@pytest.mark.parametrize(("first", "second"), [("a", "a.npy"), ("a.npy", "a"), ("", ".npy")])
def test_convert__name_under_which_numpy_would_give_another_array_is_refused(
    tmp_path: Path, cli: Cli, first: str, second: str
) -> None:
    """A name under which NumPy would give another array is refused."""
    torch = pytest.importorskip("torch")
    arrays = {first: torch.tensor([1]), second: torch.tensor([2])}
    torch.save(arrays, tmp_path / "a.pt")
    said = cli.refused("convert", tmp_path / "a.pt", tmp_path / "b.npz")
    shorter, longer = sorted((first, second), key=len)
    assert f"for the name {longer!r} its own library gives the array {shorter!r}" in said
    assert listing(tmp_path) == {"a.pt"}
    cli.run("convert", tmp_path / "a.pt", tmp_path / "b.safetensors")
    assert {name: x.tolist() for name, x in read(tmp_path / "b.safetensors").items()} == {
        name: x.tolist() for name, x in arrays.items()
    }


def test_convert__name_that_a_terminal_would_obey_is_shown_and_not_sent(tmp_path: Path, cli: Cli) -> None:
    """A name that a terminal would obey is shown and not sent."""
    save_safetensors({"\x1b[31mred\n": np.ones(2)}, tmp_path / "a.safetensors")
    assert "\\x1b[31mred\\n" in cli.run("convert", tmp_path / "a.safetensors", tmp_path / "b.npz")
    said = cli.refused("convert", tmp_path / "a.safetensors", tmp_path / "b.npy")
    assert "\x1b" not in said


def odd_arrays(path: Path) -> None:
    """An archive in which one array cannot be read, and one only NumPy can hold."""
    arrays = {"a": np.ones(2), "odd": np.array([None]), "day": np.zeros(2, "M8[D]"), "b": np.zeros(1)}
    np.savez(path, **arrays)  # type: ignore[arg-type] # any name


def test_show__lists_an_array_of_objects_with_the_reason(tmp_path: Path, cli: Cli) -> None:
    """One array that cannot be read hides no other."""
    odd_arrays(tmp_path / "a.npz")
    assert cli.run("show", tmp_path / "a.npz").splitlines()[1:] == [
        "a      float64        (2,)   16 B",
        "day    datetime64[D]  (2,)   16 B",
        "b      float64        (1,)   8 B",
        "",
        "not an array  value",
        "odd           it holds Python objects, as a pickle, which can run code when it is read",
        "",
        "3 arrays, 40 B",
    ]
    explained = cli.run("explain", tmp_path / "a.npz", "--to", "torch", status=1)
    assert "odd\nfrom  numpy object (1,) on cpu" in explained
    assert cli.run("show", tmp_path / "a.npz", "--array", "b").splitlines()[1:] == [
        "b      float64  (1,)   8 B",
        "1 array, 8 B",
    ]


@pytest.mark.parametrize("target", ["b.npz", "b.pt", "b.safetensors"])
def test_convert__writes_no_file_of_which_all_was_skipped(tmp_path: Path, cli: Cli, target: str) -> None:
    """A file without any array is no conversion of one with arrays, and no hint leads to it."""
    np.save(tmp_path / "a.npy", np.zeros(2, [("a", "f4")]))
    words = ["convert", tmp_path / "a.npy", tmp_path / target]
    assert "no array is left" in cli.refused(*words, "--skip", "arr_0")
    if target != "b.npz":
        assert cli.refused(*words).endswith("no such dtype; try a .npz file\n")
    assert listing(tmp_path) == {"a.npy"}


def test_convert__skips_arrays_by_name(tmp_path: Path, cli: Cli) -> None:
    """The arrays that another format cannot hold are left out, one by one."""
    odd_arrays(tmp_path / "a.npz")
    words = ["convert", tmp_path / "a.npz", tmp_path / "b.safetensors"]
    assert cli.refused(*words).endswith("; try --skip odd\n")
    words += ["--skip", "odd"]
    assert cli.refused(*words).endswith("; try a .npz file, or --skip day\n")
    assert "the file has 'a', 'day', 'b', 'odd'\n" in cli.refused(*words, "--skip", "dy")
    assert cli.run(*words, "--skip", "day").endswith("2 arrays, 24 B\n")
    assert list(read(tmp_path / "b.safetensors")) == ["a", "b"]
    cli.run(*words[:3], "--array", "b", "--force")
    assert cli.refused(*words[:3], "--array", "odd", "--force").endswith("can run code when it is read\n")
