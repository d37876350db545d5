"""JAX where it has several devices, or several processes, each time in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent
from typing import TYPE_CHECKING

import fresh
import numpy as np
import pytest

import xbridge
from xbridge import Device
from xbridge.protocol import ArrayInfo
from xbridge.testing.conformance._cases import DTYPES_SETTING

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402 -- once JAX is there

from xbridge.backends import jax as module  # noqa: E402
from xbridge.backends.jax import _devices  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

FOUR = """
import gc
import numpy as np, jax, jax.numpy as jnp, xbridge
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from xbridge.backends import jax as backend

def refusal(call, error=xbridge.DeviceError):
    try:
        call()
    except error as refused:
        return str(refused)

devices = jax.devices()
mesh = Mesh(np.array(devices), ("i",))
a = np.arange(8, dtype="f4")
split = jax.device_put(a.copy(), NamedSharding(mesh, P("i")))
everywhere = jax.device_put(a.copy(), NamedSharding(mesh, P()))
on_one = jax.device_put(a.copy(), NamedSharding(Mesh(np.array(devices[:1]), ("i",)), P("i")))
"""


def run(code: str) -> None:
    """The code, after four devices were made of the one; its assertions hold."""
    status, lines = fresh.forked(FOUR + dedent(code), "jax.numpy")  # which starts nothing of JAX
    assert (status, lines[-1:]) == (0, ["done"])


def test_devices__have_distinct_names() -> None:
    """Each of four devices is reached by its own name, and a wrong name lists them."""
    run("""
    assert backend.devices() == ("cpu", "cpu:1", "cpu:2", "cpu:3")
    for name, device in zip(backend.devices(), devices):
        x = xbridge.to_backend(a, "jax", device=name)
        assert xbridge.device_of(x) == name
        assert x.devices() == {device}
        assert x.committed is (name != "cpu")
        assert backend.device_name(device) == backend.device_name(x.sharding) == name
        assert xbridge.device_of(xbridge.asarray(a, backend="jax", device=device)) == name
        assert xbridge.asarray(x, device=name) is x
        assert xbridge.device_of(xbridge.asarray([1.0], like=x)) == name
        np.testing.assert_array_equal(np.asarray(x), a)
    assert backend.device_name(mesh) is None
    for name in ("cpu:4", "gpu", "cuda", "tpu:0", "sharded"):
        refused = refusal(lambda: xbridge.asarray(a, backend="jax", device=name))
        assert "here, only cpu, cpu:1, cpu:2, cpu:3" in refused
    print("done")
    """)


def test_to_numpy__array_on_another_device_is_copied() -> None:
    """An array leaves another device by copy, and `copy=False` says from where."""
    run("""
    x = xbridge.to_backend(a, "jax", device="cpu:2")
    host = xbridge.to_numpy(x)
    host[:] = 0
    np.testing.assert_array_equal(np.asarray(x), a)
    assert refusal(lambda: xbridge.to_numpy(x, copy=False), xbridge.CopyError).endswith(
        "it moves from cpu:2 to cpu; try copy=None"
    )
    y = xbridge.asarray(x, device="cpu")
    assert (xbridge.device_of(x), xbridge.device_of(y)) == ("cpu:2", "cpu")
    assert not xbridge.shares_memory(x, y)
    assert "its devices" not in str(xbridge.asarray(x, dtype="default"))
    print("done")
    """)


def test_to_backend__move_is_complete_on_return() -> None:
    """The source of a move may be written as soon as the call returns."""
    run("""
    large = np.ones((1 << 22) + 16, "f4")
    start = -large.ctypes.data // 4 % 16
    for source in (large, large[start : start - 16], large[1:]):
        for options in ({}, {"dtype": "float16"}, {"dtype": "bfloat16"}, {"copy": True}):
            source[...] = 1
            x = xbridge.to_backend(source, "jax", device="cpu:1", **options)
            source[...] = 5
            assert (np.asarray(x) == 1).all(), options
    print("done")
    """)


def test_to_backend__repeated_move_is_not_planned() -> None:
    """A repeated move of an ordinary array gives what its plan gives, without one."""
    run("""
    from xbridge._engine import convert
    for device in ("cpu:1", "cpu:1", devices[1], devices[1]):  # the first call loads the backend
        xbridge.to_numpy(xbridge.to_backend(a, "jax", device=device))
    plan, planned = convert.plan, []
    def counted(source, *args, **options):
        planned.append(source)
        return plan(source, *args, **options)
    convert.plan = counted
    for device in ("cpu:1", devices[1]):
        for word in ("float32", "bool", "int8", "bfloat16"):
            for shape in ((), (0,), (5,), (2, 3)):
                given = np.ones(shape, jnp.dtype(word))
                x = xbridge.to_backend(given, "jax", device=device)
                given[...] = 0
                assert x.devices() == {devices[1]} and x.committed and not x.weak_type
                back = xbridge.to_numpy(x)
                assert back.flags.writeable and type(back) is np.ndarray
                back[...] = 2
                assert (x.dtype, x.shape, x.min(initial=1)) == (back.dtype, back.shape, 1)
    assert not planned
    with jax.transfer_guard("disallow"):
        x = xbridge.to_backend(a, "jax", device="cpu:1")
    np.testing.assert_array_equal(np.asarray(x), a)
    assert jax.jit(lambda z: z + xbridge.to_backend(a, "jax", device="cpu:1")[1])(1.0) == 2
    many = len(planned)
    odd = np.arange(8, dtype="f4")[::-1], a.astype(">f4"), np.frombuffer(a.tobytes(), "f4")
    for given in odd:
        x = xbridge.to_backend(given, "jax", device="cpu:1")
        np.testing.assert_array_equal(xbridge.to_numpy(x), given)
    assert len(planned) == many + len(odd)
    assert "x64" in refusal(lambda: xbridge.to_backend(np.ones(2), "jax", device="cpu:1"), xbridge.DTypeError)
    with jax.enable_x64(True):
        x = xbridge.to_backend(np.ones(2), "jax", device="cpu:1")
    assert xbridge.to_numpy(x).dtype == np.float64
    assert "several devices" in refusal(lambda: xbridge.to_numpy(split))
    np.testing.assert_array_equal(xbridge.to_numpy(everywhere), a)
    gone = xbridge.to_backend(a, "jax", device="cpu:1")
    gone.delete()
    assert "deleted" in refusal(lambda: xbridge.to_numpy(gone), xbridge.UnsupportedArrayError)
    print("done")
    """)


def test_to_backend__sharded_array_needs_a_named_device() -> None:
    """An array on several devices is gathered only on a device that is named."""
    run("""
    for x in (split, everywhere):
        assert (xbridge.device_of(x), xbridge.dtype_of(x)) == ("sharded", "float32")
        assert backend.fast_to_numpy(x) is None
        assert xbridge.asarray(x) is x
        why = "gathered only if a device is named; try to_backend(x, 'numpy', device='cpu')"
        for call in (xbridge.to_numpy, xbridge.to_list, lambda x: xbridge.to_backend(x, "numpy", copy=True)):
            if x is split:
                assert refusal(lambda: call(x)).endswith(why)
            else:  # each device has all of it
                assert list(call(x)) == a.tolist()
        assert x._npy_value is None
        assert "one of them is on several devices" in refusal(
            lambda: xbridge.shares_memory(x, x), xbridge.UnsupportedArrayError
        )
        host = xbridge.to_backend(x, "numpy", device="cpu", copy=True)
        assert x._npy_value is None  # or JAX would have gathered there what it returns
        assert host.tolist() == a.tolist()
        host[:] = 9
        assert np.asarray(x).tolist() == a.tolist()
        for name in backend.devices():
            one = xbridge.asarray(x, device=name)
            assert (xbridge.device_of(one), one.tolist()) == (name, a.tolist())
            parts = [part.data.unsafe_buffer_pointer() for part in x.addressable_shards]
            assert one.unsafe_buffer_pointer() not in parts
        if x is split:
            shared = lambda: xbridge.to_backend(x, "numpy", device="cpu", copy=False)
            assert refusal(shared, xbridge.CopyError)
        double = xbridge.asarray(x, dtype="bfloat16")
        assert double.sharding == xbridge.asarray(x, copy=True).sharding == x.sharding
        assert xbridge.asarray([x, x]).shape == (2, 8)
    print("done")
    """)


def test_device__may_be_a_sharding_of_jax() -> None:
    """An array gets exactly the sharding that is named, and those beside a sharded array are replicated."""
    run("""
    import xbridge.tree
    other = NamedSharding(Mesh(np.array(devices[:2]), ("j",)), P(None, "j"))
    rows = a.reshape(4, 2)
    for sharding in (split.sharding, other, NamedSharding(mesh, P())):
        for _ in range(2):  # planned, and then repeated
            made = [
                xbridge.to_backend(rows, "jax", device=sharding),
                xbridge.asarray(jnp.asarray(rows), device=sharding),
                xbridge.asarray(rows.tolist(), backend="jax", device=sharding),
                xbridge.tree.to_backend([rows], "jax", device=sharding)[0],
                xbridge.transfer(rows, "jax", device=sharding).result(),
                next(iter(xbridge.prefetch([rows], "jax", device=sharding))),
                *xbridge.align(rows, backend="jax", device=sharding),
            ]
            for x in made:
                assert x.sharding == sharding
                np.testing.assert_array_equal(np.asarray(x), rows)
                assert xbridge.asarray(x, device=sharding, copy=False) is x
                assert xbridge.align(x, device=sharding)[0] is xbridge.asarray(x, like=x, copy=False) is x
                assert xbridge.asarray(x, device=sharding, dtype="bfloat16").sharding == sharding
                assert xbridge.asarray(x, device=sharding, copy=True) is not x
    there = NamedSharding(mesh, P())
    assert xbridge.asarray(xbridge.to_jax(rows, device=split.sharding), device=there).sharding == there
    for model in (split, everywhere, jax.jit(lambda x: x * 2)(split)):
        for _ in range(2):
            made = [
                xbridge.align(model, a[:3])[1], xbridge.align(a[:3], like=model)[0],
                xbridge.asarray(a[:3], like=model), xbridge.asarray([1.0, 2.0], like=model),
                xbridge.tree.align(model, [a[:3]])[1][0], xbridge.asarray(on_one, like=model),
            ]
            assert all(x.sharding.is_equivalent_to(there, 1) for x in made)
            assert all((model.sum() + x.sum()).committed for x in made)
            assert xbridge.align(model, split)[1] is split
    assert xbridge.device_of(split) == xbridge.device_of(everywhere) == "sharded"
    assert xbridge.device_of(jax.device_put(rows, other)).kind == "sharded"
    assert xbridge.asarray(rows, backend="jax", device=xbridge.device_of(split)).sharding == there
    uneven = lambda: xbridge.to_backend(a[:3], "jax", device=split.sharding)
    assert "partitioned 4 times" in refusal(uneven)
    assert "torch has no device sharded" in refusal(lambda: xbridge.to_backend(a, "torch", device="sharded"))
    print("done")
    """)


def test_to_numpy__reads_one_copy_of_a_replicated_array() -> None:
    """An array that each device has as a whole leaves JAX as if it were on one, without a copy."""
    run("""
    loss = jax.jit(lambda x: x.sum())(split)
    assert (float(xbridge.to_numpy(loss)), xbridge.to_list(loss)) == (28.0, 28.0)
    host = xbridge.to_numpy(everywhere, copy=False)
    assert host.ctypes.data == everywhere.addressable_data(0).unsafe_buffer_pointer()
    assert not host.flags.writeable
    assert xbridge.asarray([everywhere, loss + split], backend="numpy", device="cpu").shape == (2, 8)
    assert xbridge.tree.to_numpy([loss])[0] == 28
    gone = everywhere + 1
    gone.delete()
    assert "deleted" in refusal(lambda: xbridge.to_numpy(gone), xbridge.UnsupportedArrayError)
    print("done")
    """)


def test_aligned__cannot_restore_to_several_devices() -> None:
    """A result that would go back to several devices is refused before the function runs."""
    run("""
    calls = []
    double = xbridge.aligned(backend="numpy", device="cpu")(lambda x: calls.append(x) or 2 * x)
    said = refusal(lambda: double(split))
    assert said.startswith("cannot call") and said.endswith("only in compiled code; try jax.jit(f)(x)")
    assert calls == []  # it is not said when the work is done
    with xbridge.record() as log:
        refusal(lambda: double(split))
    assert not log.rows  # no array was converted in vain
    (x, y), restore = xbridge.align_back(split, a, backend="numpy", device="cpu")
    assert restore(x + y, to=1).tolist() == (2 * a).tolist()
    print("done")
    """)


def test_to_device__column_major_array_keeps_its_values() -> None:
    """An array that JAX lays out by columns keeps its values on every move."""
    run("""
    from jax.experimental.layout import Format, Layout
    from jax.sharding import SingleDeviceSharding
    rows = np.arange(6, dtype="f4").reshape(2, 3)
    here = jax.device_put(rows, Format(Layout((1, 0)), SingleDeviceSharding(devices[0])))
    there = jax.device_put(here, devices[1])  # which JAX reads as rows, and computes with as columns
    for x in (here, there, jax.device_put(here, devices[0], may_alias=False)):
        rows = np.array(x)  # what an older JAX has moved, it has moved to other places
        for name in backend.devices():
            y = backend.to_device(x, xbridge.Device(name))
            assert xbridge.device_of(y) == name
            assert y.unsafe_buffer_pointer() != x.unsafe_buffer_pointer()
            np.testing.assert_array_equal(np.asarray(y + 0), rows)
        y = backend.materialize(x)
        assert y.sharding == x.sharding
        np.testing.assert_array_equal(np.asarray(y + 0), rows)
        np.testing.assert_array_equal(xbridge.to_numpy(x, dtype="float64"), rows)
    wide = jax.device_put(here, NamedSharding(mesh, P()))
    rows = np.array(wide.addressable_data(0))
    np.testing.assert_array_equal(xbridge.to_backend(wide, "numpy", device="cpu"), rows)
    print("done")
    """)


def test_from_numpy__ignores_the_default_device() -> None:
    """A default device of JAX moves no array and no result to it."""
    run("""
    for chosen in (devices[2], "cpu", devices[0]):
        with jax.default_device(chosen):
            assert xbridge.device_of(xbridge.to_backend(a, "jax")) == "cpu"
            assert xbridge.device_of(xbridge.to_backend(a, "jax", copy=True)) == "cpu"
            assert xbridge.device_of(backend.from_numpy(a)) == "cpu"
            x = xbridge.to_backend(a, "jax")
            made = [xbridge.asarray(x, copy=True), xbridge.asarray(x, dtype="float16")]
            made += [xbridge.asarray([x, x])]
            made += [backend.materialize(x), *xbridge.align(x, a)]
            assert [xbridge.device_of(y) for y in made] == ["cpu"] * 6
            assert not any(y.committed for y in made[:3])
    backend._device_put = None  # and by JAX's own way
    with jax.default_device(devices[2]):
        assert xbridge.device_of(backend.from_numpy(a)) == "cpu"
    with jax.default_device(devices[2]):
        jax.jit(lambda x: xbridge.asarray(x, device=xbridge.device_of(x)))(a)
        assert jax.jit(lambda x: x * len(xbridge.device_of(x)))(jnp.ones(1)).tolist() == [5.0]
    print("done")
    """)


@pytest.mark.slow
def test_conformance__handles_several_cpus() -> None:
    """The conformance suite passes where JAX has several CPU devices."""
    modules = ("xbridge.testing.conformance.test_devices", "xbridge.testing.conformance.test_memory")
    suite = ("--pyargs", *modules, "--xbridge=jax")
    options = (
        "-k",
        "resolves_to_itself or gpu or new_memory_is_exact",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *suite, *options],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "2",
            DTYPES_SETTING: "float32",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


# -- what can be seen with one device ------------------------------------------------------------


class Card:
    """A device as JAX describes those of others."""

    platform, id = "gpu", 7

    def __init__(self, number: int | None, version: str) -> None:
        self.local_hardware_id, self.client = number, self
        self.platform_version = version


def test_device_name__matches_other_libraries() -> None:
    """A device gets the kind and the index by which other libraries know it."""
    assert _devices.name_device(Card(1, "PJRT C API\ncuda 12090")) == "cuda:1"
    assert _devices.name_device(Card(None, "rocm 60300")) == "rocm:7"
    here = jax.local_devices()[0]
    assert module.device_name(here) == module.device_name(jnp.ones(2).sharding) == "cpu"
    assert module.device_name("cpu") is None
    with jax.default_device("cpu"):
        assert _devices.find_default_device() == "cpu"
    with jax.default_device(here):
        assert _devices.find_default_device() == "cpu"


@pytest.mark.parametrize(
    ("asked", "near", "found"),
    [
        ("gpu", "cpu", "cuda:0"),
        ("gpu", "cuda:1", "cuda:1"),
        ("cuda", "cuda:1", "cuda:1"),
        ("cuda", "cpu", "cuda:0"),
        ("cuda:1", "cuda:0", "cuda:1"),
        ("cpu", "cuda:1", "cpu"),
        ("cpu:1", "cpu", "cpu:1"),
        ("cuda:2", "cpu", None),
        ("tpu", "cpu", None),
        ("sharded", "cpu", None),
        ("sharded", "sharded", "sharded"),
    ],
)
def test_resolve_device__finds_a_device_by_kind(
    monkeypatch: pytest.MonkeyPatch, asked: str, near: str, found: str | None
) -> None:
    """A kind without an index means the nearest device of that kind, or the default one."""
    here = dict.fromkeys(map(Device, ("cpu", "cpu:1", "cuda:0", "cuda:1")))
    monkeypatch.setattr(module, "devices_by_name", lambda: here)
    if found is None:
        with pytest.raises(xbridge.DeviceError, match="here, only cpu, cpu:1, cuda:0, cuda:1; try dev"):
            module.resolve_device(Device(asked), Device(near))
    else:
        assert module.resolve_device(Device(asked), Device(near)) == found
    monkeypatch.setattr(module, "find_default_device", lambda: Device("cuda:1"))
    assert module.resolve_device(Device("gpu"), Device("cpu")) == "cuda:1"


def test_materialize__makes_column_major_arrays_row_major(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are rearranged into rows before the array is moved."""
    from jax.experimental.layout import Format, Layout

    columns = Format(Layout((1, 0)), jax.sharding.SingleDeviceSharding(jax.local_devices()[0]))
    x = jax.device_put(jnp.arange(6.0).reshape(2, 3), columns)
    monkeypatch.setattr(module, "array_info", lambda x: ArrayInfo("float32", Device("cuda:0"), x.shape))
    assert module.materialize(x).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_to_backend__jax_without_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its CPU platform, JAX cannot take host memory, and the error says so."""

    def none(backend: str) -> None:
        message = f"Unknown backend: {backend!r} requested"
        raise RuntimeError(message)

    x, a = jnp.ones(2), np.ones(2, "f4")
    monkeypatch.setattr(jax, "local_devices", none)
    calls: tuple[Callable[[], object], ...] = (
        lambda: xbridge.to_backend(a, "jax"),
        lambda: module.to_device(x, Device("cpu")),
    )
    for call in calls:
        with pytest.raises(xbridge.DeviceError, match="it was started without its CPU"):
            call()


# -- others --------------------------------------------------------------------------------------


def test_is_available__does_not_initialize_jax() -> None:
    """JAX's platforms are initialized by the first call that needs a device."""
    status, lines = fresh.forked(
        """
        import numpy as np, xbridge, jax
        jax.config.update("jax_platforms", "cpu")
        from jax._src import xla_bridge
        from xbridge.backends import jax as backend
        assert xbridge.is_available("jax")
        assert xbridge.to_numpy(np.ones(2)).sum() == 2
        assert backend.unsupported_dtype("float64", "cpu")
        assert backend.default_dtype("float", "cpu") == "float32"
        assert not xla_bridge.backends_are_initialized()
        jax.config.update("jax_num_cpu_devices", 2)
        assert len(backend.devices()) == 2
        assert xla_bridge.backends_are_initialized()
        print("done")
        """,
        "jax.numpy",
    )
    assert (status, lines) == (0, ["done"])


ONE_OF_TWO = """
import os, sys, numpy as np
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize("127.0.0.1:{port}", 2, {number}, initialization_timeout=60)
import xbridge
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from xbridge.backends import jax as backend
assert len(jax.devices()) == 4
mesh = NamedSharding(Mesh(np.array(jax.devices()), ("i",)), P("i"))
x = jax.make_array_from_callback((8,), mesh, lambda part: np.arange(8, dtype="f4")[part])
assert (xbridge.device_of(x), xbridge.asarray(x) is x) == ("sharded", True)
for call in (xbridge.to_numpy, lambda x: xbridge.to_backend(x, "numpy", device="cpu")):
    try:
        call(x)
    except xbridge.UnsupportedArrayError as refused:
        import jax.experimental.multihost_utils
        assert refused.hint == "jax.experimental.multihost_utils.process_allgather(x, tiled=True)"
        gathered = jax.experimental.multihost_utils.process_allgather(x, tiled=True)
        assert xbridge.to_numpy(gathered).tolist() == list(range(8))
    else:
        raise AssertionError
assert backend.devices() == ("cpu", "cpu:1")
y = xbridge.to_backend(np.arange(3, dtype="f4"), "jax")
assert y.devices() == {{jax.local_devices()[0]}}
assert xbridge.to_numpy(y).ctypes.data == y.unsafe_buffer_pointer()
print("done")
"""


@pytest.mark.slow
def test_to_numpy__refuses_an_array_spread_over_processes() -> None:
    """In two real processes, an array of which each holds a part is refused by both."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    codes = [ONE_OF_TWO.format(port=port, number=number) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(fresh.run, codes))
    assert [(status, lines[-1:]) for status, lines in results] == [(0, ["done"])] * 2
