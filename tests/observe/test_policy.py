"""A policy allows, warns or forbids: what it names, where it stands, and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import warnings
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inside import get_backend, is_observed
from toylib import Toy

import xbridge
from xbridge import PolicyError, policy, unsafe_share
from xbridge._observe import policy as _policy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

REVERSED = np.arange(3.0)[::-1]


def copy_one() -> Any:
    return xbridge.to_numpy(REVERSED, copy=True)


# -- what it names -------------------------------------------------------------------------------


def test_policy__copy_a_cast_and_a_detach_are_three_things() -> None:
    """A copy, a cast and a detach are three things."""
    torch = pytest.importorskip("torch")
    tracked = torch.ones(3, requires_grad=True)
    calls: dict[str, Any] = {
        "copies": copy_one,
        "casts": lambda: xbridge.to_numpy(REVERSED, dtype="float32"),
        "detaches": lambda: xbridge.to_numpy(tracked),
    }
    for word in calls:
        for other, call in calls.items():
            with policy(**{word: "raise"}):  # type: ignore[arg-type] # one of its keywords
                if word == other:
                    with pytest.raises(PolicyError, match=rf"policy\({word}='raise'\) forbids {word}; try"):
                        call()
                else:
                    call()


@pytest.mark.parametrize("dtype", ["float64", "nearest"])
def test_policy__change_of_the_byte_order_alone_is_a_copy(dtype: str) -> None:
    """A dtype that the array has in another byte order is no cast."""
    foreign = np.arange(3.0).astype(">f8")
    with policy(casts="raise"):
        assert xbridge.to_numpy(foreign, dtype=dtype).tolist() == [0.0, 1.0, 2.0]
    with policy(copies="raise"), pytest.raises(PolicyError, match="not in the order of float64, and policy"):
        xbridge.to_numpy(foreign, dtype=dtype)
    with xbridge.record() as seen:
        xbridge.to_numpy(foreign, dtype=dtype)
    assert [(row.copied, row.cast) for row in seen.rows] == [(foreign.nbytes, 0)]


def test_policy__move_between_devices_is_a_transfer_and_no_copy() -> None:
    """A move between devices is a transfer and no copy."""
    strict = pytest.importorskip("array_api_strict")
    far = strict.asarray([1.0, 2.0], device=strict.Device("device1"))
    with policy(copies="raise", casts="raise"):
        assert xbridge.to_numpy(far, dtype=None).tolist() == [1.0, 2.0]
    with policy(transfers="raise"), pytest.raises(PolicyError, match="moves from device1 to cpu"):
        xbridge.to_numpy(far)


def test_policy__what_shares_is_never_forbidden() -> None:
    """What shares is never forbidden."""
    torch = pytest.importorskip("torch")
    host = np.ones(3)
    with policy(copies="raise", transfers="raise", detaches="raise", casts="raise"):
        xbridge.to_numpy(np.ones((0, 3)), copy=True)  # which copies nothing
        assert xbridge.to_numpy(host) is host
        assert xbridge.asarray(host) is host
        assert xbridge.to_backend(host, "torch").data_ptr() == host.ctypes.data
        assert xbridge.to_numpy(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_policy__to_stack_a_list_of_arrays_is_a_copy() -> None:
    """To stack a list of arrays, or of scalars, is a copy."""
    scalars = [np.float32(1), np.float32(2)], [np.float32(1), 2.0]
    for x in ([np.ones(2), np.ones(2)], *scalars):
        with policy(copies="raise"), pytest.raises(PolicyError, match="arrays of a list are in separate"):
            xbridge.asarray(x)


@pytest.mark.parametrize("tracked_first", [True, False])
def test_policy__history_in_a_list_ends_once(tracked_first: bool) -> None:
    """A history in a list ends once."""
    torch = pytest.importorskip("torch")
    parts = [torch.ones(2, requires_grad=True), torch.ones(2)][:: 1 if tracked_first else -1]
    with policy(detaches="warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        xbridge.asarray(parts, backend="numpy")
        assert [str(one.message).partition(" array ")[0] for one in caught] == ["a torch float32"]
        xbridge.asarray(parts)
        assert len(caught) == 1, "within torch it goes on"
        with torch.no_grad():
            xbridge.asarray(parts)
        assert len(caught) == 2


def test_policy__nothing_is_done_before_it_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is done before it is forbidden."""
    da, dask = pytest.importorskip("dask.array"), pytest.importorskip("dask")
    lazy = da.from_delayed(dask.delayed(lambda: pytest.fail("computed"))(), (3,), "float64")
    with policy(casts="raise"), pytest.raises(PolicyError):
        xbridge.to_numpy(lazy, dtype="float32")


# -- where it stands -----------------------------------------------------------------------------


def test_policy__inner_policy_changes_what_it_names_alone() -> None:
    """An inner policy changes what it names alone."""
    assert policy.now() == ("allow",) * 4
    with policy(copies="raise", transfers="warn"):
        with policy(copies="allow", casts="raise"):
            assert policy.now() == ("allow", "warn", "allow", "raise")
            copy_one()
        assert policy.now() == ("raise", "warn", "allow", "allow")
        with pytest.raises(PolicyError):
            copy_one()
    assert policy.now() == ("allow",) * 4
    copy_one()


def test_policy__can_be_used_again_within_itself_and_by_threads() -> None:
    """A policy can be used again within itself and by threads."""
    strict = policy(copies="raise")
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        with strict:
            begun.set()
            ended.wait()

    thread = threading.Thread(target=other)
    with strict:
        thread.start()
        begun.wait()
        with strict:
            pass
        assert policy.now().copies == "raise"
    assert policy.now().copies == "allow"
    ended.set()
    thread.join()
    assert not is_observed()


def test_policy__forbids_within_a_record() -> None:
    """A record that began before a policy does not keep it from its work."""
    with xbridge.record() as seen, policy(copies="raise"):
        for call in (copy_one, lambda: xbridge.tree.to_numpy([REVERSED], copy=True)):
            with pytest.raises(PolicyError):
                call()
    assert seen.rows == ()


def test_policy__is_its_threads_own() -> None:
    """A policy is its thread's own."""
    seen: list[object] = []
    with policy(copies="raise"):
        thread = threading.Thread(target=lambda: seen.append((policy.now().copies, copy_one().tolist())))
        thread.start()
        thread.join()
    assert seen == [("allow", [2.0, 1.0, 0.0])]


def test_policy__block_that_is_left_in_another_context_ends_there() -> None:
    """A block that is left in another context ends there."""

    def held() -> Iterator[None]:
        with policy(copies="raise"):
            yield

    begun = held()
    copy_context().run(next, begun)
    with policy(casts="raise"):
        next(begun, None)
        assert policy.now() == ("allow", "allow", "allow", "raise")
    assert not is_observed()


def test_policy__function_can_be_held_to_a_policy() -> None:
    """A function can be held to a policy."""

    @policy(copies="raise")
    def strict(x: Any, *, copy: bool) -> Any:
        """What it says."""
        return xbridge.to_numpy(x, copy=copy)

    assert (strict.__name__, strict.__doc__) == ("strict", "What it says.")
    for _ in range(2):
        with pytest.raises(PolicyError):
            strict(REVERSED, copy=True)
    assert strict(REVERSED, copy=False) is REVERSED


def test_policy__async_function_is_held_to_it_while_it_runs() -> None:
    """An async function is held to a policy while it runs."""

    @policy(copies="raise")
    async def strict() -> None:
        await asyncio.sleep(0)
        copy_one()

    with pytest.raises(PolicyError):
        asyncio.run(strict())


def test_policy__object_that_is_not_a_function_cannot_be_decorated_with_a_policy() -> None:
    """An object that is not a function cannot be decorated with a policy."""
    things: list[Any] = [Toy, classmethod(lambda cls: copy_one()), 3]
    for each in things:
        with pytest.raises(xbridge.OptionError, match="it is not a function"):
            policy(copies="raise")(each)


def test_policy__generator_cannot_be_held_to_it() -> None:
    """A generator cannot be held to a policy."""

    def numbers() -> Iterator[int]:
        yield 1

    async def more() -> AsyncIterator[int]:
        yield 1

    for each in (numbers, more, partial(numbers)):
        with pytest.raises(xbridge.OptionError, match="runs in its consumer"):
            policy(copies="raise")(each)


def test_policy__plan_shows_the_error_of_a_policy_and_does_not_warn() -> None:
    """A plan shows the error of a policy and does not warn."""
    with policy(copies="raise", casts="warn"):
        plan = xbridge.explain(REVERSED, "numpy", copy=True)
        with pytest.raises(PolicyError) as caught:
            copy_one()
        assert str(plan.error) == str(caught.value)
        assert xbridge.explain(REVERSED, "numpy", dtype="float32").error is None
    assert xbridge.explain(REVERSED, "numpy", copy=True).error is None


# -- warnings ------------------------------------------------------------------------------------


def test_policy__warning_names_the_line_that_called() -> None:
    """A warning names the line that called."""
    with policy(copies="warn"), pytest.warns(xbridge.CopyWarning) as caught:
        copy_one()
    place = (__file__, copy_one.__code__.co_firstlineno + 1)
    assert [(one.filename, one.lineno) for one in caught] == [place]
    assert "a numpy float64 array of shape (3,) on cpu to numpy: copy=True" in str(caught[0].message)


def test_policy__warning_names_the_line_whichever_verb_was_called() -> None:
    """A warning names the line whichever verb was called."""
    torch = pytest.importorskip("torch")
    tracked = torch.ones(3, requires_grad=True)
    calls: list[Any] = [
        lambda: xbridge.to_backend(tracked, "numpy"),
        lambda: xbridge.to_list(tracked),
        lambda: xbridge.align(tracked, backend="numpy"),
        lambda: xbridge.asarray([tracked], backend="numpy"),
        lambda: unsafe_share(tracked, "numpy"),
    ]
    with torch.inference_mode(), policy(detaches="warn"):
        for call in calls:
            with pytest.warns(xbridge.DetachWarning) as caught:
                call()
            places = {(one.filename, one.lineno) for one in caught}
            assert places == {(__file__, call.__code__.co_firstlineno)}


# -- the whole process ---------------------------------------------------------------------------


def test_policy__of_the_process_holds_in_every_thread_and_gives_way_to_a_block() -> None:
    """A policy of the process holds in every thread and gives way to a block."""
    raised: list[PolicyError] = []

    def work() -> None:
        try:
            copy_one()
        except PolicyError as error:
            raised.append(error)

    before = _policy.set_process_rules(_policy.rules_in("copies=raise, casts=warn"))
    try:
        assert policy.now() == ("raise", "allow", "allow", "warn")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(raised) == 1
        with policy(copies="allow"):
            copy_one()
        _policy.set_process_rules(_policy.rules_in("casts=allow"))
        assert policy.now() == ("raise", "allow", "allow", "allow")
        assert is_observed()
    finally:
        _policy.set_process_rules(before)
    assert not is_observed()
    copy_one()


@pytest.mark.parametrize("words", ["copy=raise", "copies", "copies=never"])
def test_policy__of_the_process_that_is_misspelt_is_refused(words: str) -> None:
    """A policy of the process that is misspelt is refused."""
    with pytest.raises(xbridge.OptionError, match="try "):
        _policy.rules_in(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("copies=raise", "PolicyError"),
        ("x", "cannot read XBRIDGE_POLICY=x: "),
        ("copies=error", "try XBRIDGE_POLICY=copies=raise\n"),
    ],
)
def test_policy__environment_sets_the_policy_of_a_process(words: str, said: str) -> None:
    """The environment sets the policy of a process."""
    code = "import xbridge, numpy; xbridge.to_numpy(numpy.ones(3), copy=True); print('fine')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XBRIDGE_POLICY": words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in done.stderr
    assert "fine" not in done.stdout


# -- unsafe_share --------------------------------------------------------------------------------


def test_unsafe_share__shares_read_only_memory() -> None:
    """Read-only memory is shared with a library that cannot say so only on demand."""
    pytest.importorskip("torch")
    host = np.ones(3)
    host.flags.writeable = False
    assert xbridge.to_backend(host, "torch").data_ptr() != host.ctypes.data
    assert unsafe_share(host, "torch").data_ptr() == host.ctypes.data


def test_unsafe_share__shares_with_a_library_that_assumes_immutable_memory() -> None:
    """What may change is shared with a library that reads later on demand."""
    pytest.importorskip("jax")
    raw = np.zeros(64 + 12, "uint8")
    start = -raw.ctypes.data % 64
    host = raw[start : start + 12].view("float32")
    shared = unsafe_share(host, "jax")
    assert shared.unsafe_buffer_pointer() == host.ctypes.data
    assert np.shares_memory(np.asarray(unsafe_share(shared, "numpy")), host)


def test_unsafe_share__lazy_array_sees_what_is_written_later() -> None:
    """A promise over memory sees what is written later."""
    pytest.importorskip("dask")
    host = np.zeros(3)
    lazy = unsafe_share(host, "dask")
    host[:] = 7
    assert lazy.compute().tolist() == [7.0, 7.0, 7.0]


def test_unsafe_share__refuses_what_cannot_be_shared() -> None:
    """What cannot be shared at all is refused."""
    pytest.importorskip("torch")
    swapped = np.ones(3, np.dtype("float32").newbyteorder())
    for host, reason in ((REVERSED, "does not support its strides"), (swapped, "foreign order")):
        with pytest.raises(xbridge.CopyError, match=f"without a copy: .*{reason}; try to_backend"):
            unsafe_share(host, "torch")
    with pytest.raises(xbridge.CopyError, match="hands out a copy"):
        unsafe_share(np.float32(1), "torch")


def test_unsafe_share__detects_a_library_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that copies although it was not to is found out."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(get_backend("torch"), "from_numpy", torch.tensor)
    message = "cannot share this memory with torch: torch has copied it; try to_backend"
    with pytest.raises(xbridge.CopyError, match=message):
        unsafe_share(np.ones(3), "torch")


def test_hint__of_rules_is_rules() -> None:
    """What an error about the rules of the process advises are rules."""
    with pytest.raises(xbridge.OptionError) as caught:
        _policy.rules_in("copy=raise")
    assert _policy.rules_in(caught.value.hint).transfers == "raise"


def test_hint__of_a_policy_is_put_around_the_call() -> None:
    """A conversion that a policy forbids runs inside of the policy that the error advises."""
    with policy(copies="raise"):
        with pytest.raises(PolicyError) as caught:
            xbridge.to_numpy(np.ones(2), copy=True)
        with eval(caught.value.hint.removesuffix(" around it"), {"policy": policy}):
            assert xbridge.to_numpy(np.ones(2), copy=True).tolist() == [1.0, 1.0]
