"""A policy allows, warns or forbids: what it names, where it stands, and nothing else."""

from __future__ import annotations

import asyncio
import importlib
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
from toylib import Toy, make_backend

import xbridge
from xbridge import PolicyError, policy, unsafe_share
from xbridge._observe import policy as _policy
from xbridge._registry import registry
from xbridge._registry.registry import get

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

REVERSED = np.arange(3.0)[::-1]


def copy_one() -> Any:
    return xbridge.to_numpy(REVERSED, copy=True)


# -- what it names -------------------------------------------------------------------------------


def test_a_copy_a_cast_and_a_detach_are_three_things() -> None:
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


def test_a_move_between_devices_is_a_transfer_and_no_copy() -> None:
    strict = pytest.importorskip("array_api_strict")
    far = strict.asarray([1.0, 2.0], device=strict.Device("device1"))
    with policy(copies="raise", casts="raise"):
        assert xbridge.to_numpy(far, dtype=None).tolist() == [1.0, 2.0]
    with policy(transfers="raise"), pytest.raises(PolicyError, match="moves from device1 to cpu"):
        xbridge.to_numpy(far)


def test_what_shares_is_never_forbidden() -> None:
    torch = pytest.importorskip("torch")
    host = np.ones(3)
    with policy(copies="raise", transfers="raise", detaches="raise", casts="raise"):
        assert xbridge.to_numpy(host) is host
        assert xbridge.asarray(host) is host
        assert xbridge.to_backend(host, "torch").data_ptr() == host.ctypes.data
        assert xbridge.to_numpy(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_to_copy_an_empty_array_copies_nothing() -> None:
    with policy(copies="raise"):
        xbridge.to_numpy(np.ones((0, 3)), copy=True)


def test_to_stack_a_list_of_arrays_is_a_copy() -> None:
    with policy(copies="raise"), pytest.raises(PolicyError, match="arrays of a list are in separate memory"):
        xbridge.asarray([np.ones(2), np.ones(2)])


@pytest.mark.parametrize("tracked_first", [True, False])
def test_a_history_in_a_list_ends_once(tracked_first: bool) -> None:
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


def test_the_end_of_a_history_without_a_detach_is_one() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, requires_grad=True)
    with policy(detaches="raise"):
        with pytest.raises(PolicyError, match="its graph ends there"):
            xbridge.to_backend(x, "torch", dtype="int64")
        with torch.no_grad(), pytest.raises(PolicyError):
            xbridge.to_backend(x, "torch", copy=True)
        assert xbridge.to_backend(x, "torch", copy=True).requires_grad


def test_nothing_is_done_before_it_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    da, dask = pytest.importorskip("dask.array"), pytest.importorskip("dask")
    lazy = da.from_delayed(dask.delayed(lambda: pytest.fail("computed"))(), (3,), "float64")
    with policy(casts="raise"), pytest.raises(PolicyError):
        xbridge.to_numpy(lazy, dtype="float32")


# -- where it stands -----------------------------------------------------------------------------


def test_an_inner_policy_changes_what_it_names_alone() -> None:
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


def test_a_policy_can_be_used_again_within_itself_and_by_threads() -> None:
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
    assert not registry.observers


def test_a_policy_is_its_threads_own() -> None:
    seen: list[object] = []
    with policy(copies="raise"):
        thread = threading.Thread(target=lambda: seen.append((policy.now().copies, copy_one().tolist())))
        thread.start()
        thread.join()
    assert seen == [("allow", [2.0, 1.0, 0.0])]


def test_a_task_has_the_policy_of_the_block_that_began_it_until_the_block_ends() -> None:
    async def work(turns: list[asyncio.Event]) -> list[str]:
        seen: list[str] = []
        for turn in turns:
            await turn.wait()
            seen.append(policy.now().copies)
        return seen

    async def main() -> list[str]:
        turns = [asyncio.Event(), asyncio.Event()]
        with policy(copies="warn"), policy(copies="raise"):
            task = asyncio.create_task(work(turns))
            turns[0].set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        turns[1].set()
        assert policy.now().copies == "allow"
        return await task

    assert asyncio.run(main()) == ["raise", "allow"]


def test_tasks_side_by_side_have_each_their_own() -> None:
    async def work(rule: Any) -> bool:
        with policy(copies=rule):
            await asyncio.sleep(0)
            try:
                copy_one()
            except PolicyError:
                return False
            return True

    async def main() -> list[bool]:
        return await asyncio.gather(*(work(rule) for rule in ("raise", "allow", "raise")))

    assert asyncio.run(main()) == [False, True, False]


def test_a_block_that_is_left_in_another_context_ends_there() -> None:
    def held() -> Iterator[None]:
        with policy(copies="raise"):
            yield

    begun = held()
    copy_context().run(next, begun)
    with policy(casts="raise"):
        next(begun, None)
        assert policy.now() == ("allow", "allow", "allow", "raise")
    assert not registry.observers


def test_a_function_can_be_held_to_a_policy() -> None:
    @policy(copies="raise")
    def strict(x: Any, *, copy: bool) -> Any:
        """What it says."""
        return xbridge.to_numpy(x, copy=copy)

    assert (strict.__name__, strict.__doc__) == ("strict", "What it says.")
    for _ in range(2):
        with pytest.raises(PolicyError):
            strict(REVERSED, copy=True)
    assert strict(REVERSED, copy=False) is REVERSED


def test_an_async_function_is_held_to_it_while_it_runs() -> None:
    @policy(copies="raise")
    async def strict() -> None:
        await asyncio.sleep(0)
        copy_one()

    with pytest.raises(PolicyError):
        asyncio.run(strict())


def test_an_object_that_is_called_like_an_async_function_is_held_to_it() -> None:
    class Step:
        async def __call__(self) -> None:
            copy_one()

    with pytest.raises(PolicyError):
        asyncio.run(policy(copies="raise")(Step())())


def test_an_object_that_is_not_a_function_cannot_be_decorated_with_a_policy() -> None:
    things: list[Any] = [Toy, classmethod(lambda cls: copy_one()), 3]
    for each in things:
        with pytest.raises(
            xbridge.OptionError, match="it is not a function; try its methods, below @classmethod"
        ):
            policy(copies="raise")(each)


def test_a_generator_cannot_be_held_to_it() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def more() -> AsyncIterator[int]:
        yield 1

    for each in (numbers, more, partial(numbers)):
        with pytest.raises(xbridge.OptionError, match="runs in its consumer; try a with block"):
            policy(copies="raise")(each)


@pytest.mark.parametrize("rule", ["forbid", "", True])
def test_another_word_is_refused(rule: Any) -> None:
    with pytest.raises(xbridge.OptionError, match="'allow', 'warn' or 'raise'; try copies='raise'"):
        policy(copies=rule)


def test_it_reads_as_it_was_written() -> None:
    assert repr(policy(casts="warn", copies="raise")) == "policy(copies='raise', casts='warn')"


def test_a_plan_shows_the_error_of_a_policy_and_does_not_warn() -> None:
    with policy(copies="raise", casts="warn"):
        plan = xbridge.explain(REVERSED, "numpy", copy=True)
        with pytest.raises(PolicyError) as caught:
            copy_one()
        assert str(plan.error) == str(caught.value)
        assert xbridge.explain(REVERSED, "numpy", dtype="float32").error is None
    assert xbridge.explain(REVERSED, "numpy", copy=True).error is None


# -- warnings ------------------------------------------------------------------------------------


def test_a_warning_names_the_line_that_called() -> None:
    with policy(copies="warn"), pytest.warns(xbridge.CopyWarning) as caught:
        copy_one()
    place = (__file__, copy_one.__code__.co_firstlineno + 1)
    assert [(one.filename, one.lineno) for one in caught] == [place]
    assert "a numpy float64 array of shape (3,) on cpu to numpy: copy=True" in str(caught[0].message)


def test_a_warning_names_the_line_whichever_verb_was_called() -> None:
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


def test_a_warning_is_filtered_by_its_category() -> None:
    with policy(copies="warn", casts="warn"), warnings.catch_warnings():
        warnings.simplefilter("ignore", xbridge.PolicyWarning)
        warnings.simplefilter("error", xbridge.CastWarning)
        copy_one()
        with pytest.raises(xbridge.CastWarning):
            xbridge.to_numpy(REVERSED, dtype="float32")


def test_a_line_is_warned_of_once_as_python_does() -> None:
    with policy(copies="warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            copy_one()
    assert len(caught) == 1


# -- the hot path --------------------------------------------------------------------------------


def test_the_hot_table_is_empty_while_a_policy_stands_and_full_again_after_the_last() -> None:
    xbridge.to_numpy(np.ones(2))
    full = (
        {name: set(table) for name, table in registry.fast_converters.items()},
        set(registry.identity_types),
    )
    assert full[0]["numpy"]
    outer, inner = policy(copies="warn"), policy(casts="warn")
    with outer:
        with inner:
            assert not any(registry.fast_converters.values())
        assert not any(registry.fast_converters.values())
        assert not registry.identity_types
    assert (
        {name: set(table) for name, table in registry.fast_converters.items()},
        set(registry.identity_types),
    ) == full


@pytest.mark.usefixtures("own_registry")
def test_a_backend_that_is_loaded_under_a_policy_takes_the_plan_too() -> None:
    xbridge.register_backend("toylib", make_backend())
    with policy(copies="raise"):
        assert xbridge.backend_of(Toy(np.ones(2))) == "toylib"
        assert not any(registry.fast_converters.values())


def test_a_compiled_function_is_traced_whole_under_a_policy() -> None:
    torch = pytest.importorskip("torch")
    torch.compiler.reset()
    with policy(casts="raise", copies="raise"):
        double = torch.compile(
            lambda x: xbridge.to_backend(x * 2, "torch", dtype="float64"), fullgraph=True, backend="eager"
        )
        assert double(torch.ones(2)).dtype == torch.float64
    torch.compiler.reset()


# -- the whole process ---------------------------------------------------------------------------


def test_a_policy_of_the_process_holds_in_every_thread_and_gives_way_to_a_block() -> None:
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
        assert registry.observers
    finally:
        _policy.set_process_rules(before)
    assert not registry.observers
    copy_one()


@pytest.mark.parametrize("words", ["copy=raise", "copies", "copies=never"])
def test_a_policy_of_the_process_that_is_misspelt_is_refused(words: str) -> None:
    with pytest.raises(xbridge.OptionError, match="try "):
        _policy.rules_in(words)


def test_the_environment_is_read_when_xbridge_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XBRIDGE_POLICY", "copies=raise")
    try:
        importlib.reload(xbridge)
        assert policy.now().copies == "raise"
    finally:
        _policy.set_process_rules(_policy.Rules())
    assert not registry.observers


@pytest.mark.parametrize(("words", "said"), [("copies=raise", "PolicyError"), ("", "fine"), ("x", "Option")])
def test_the_environment_sets_the_policy_of_a_process(words: str, said: str) -> None:
    code = "import xbridge, numpy; xbridge.to_numpy(numpy.ones(3), copy=True); print('fine')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XBRIDGE_POLICY": words},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said in done.stdout + done.stderr
    assert ("fine" in done.stdout) is (said == "fine")


# -- unsafe_share --------------------------------------------------------------------------------


def test_read_only_memory_is_shared_with_a_library_that_cannot_say_so_only_on_demand() -> None:
    pytest.importorskip("torch")
    host = np.ones(3)
    host.flags.writeable = False
    assert xbridge.to_backend(host, "torch").data_ptr() != host.ctypes.data
    assert unsafe_share(host, "torch").data_ptr() == host.ctypes.data


def test_repeated_elements_are_shared_on_demand() -> None:
    pytest.importorskip("torch")
    host = np.broadcast_to(np.ones(1), 3)
    assert unsafe_share(host, "torch").stride() == (0,)


def test_what_may_change_is_shared_with_a_library_that_reads_later_on_demand() -> None:
    pytest.importorskip("jax")
    raw = np.zeros(64 + 12, "uint8")
    start = -raw.ctypes.data % 64
    host = raw[start : start + 12].view("float32")
    shared = unsafe_share(host, "jax")
    assert shared.unsafe_buffer_pointer() == host.ctypes.data
    assert np.shares_memory(np.asarray(unsafe_share(shared, "numpy")), host)


def test_a_promise_over_memory_sees_what_is_written_later() -> None:
    pytest.importorskip("dask")
    host = np.zeros(3)
    lazy = unsafe_share(host, "dask")
    host[:] = 7
    assert lazy.compute().tolist() == [7.0, 7.0, 7.0]


def test_what_cannot_be_shared_at_all_is_refused() -> None:
    pytest.importorskip("torch")
    swapped = np.ones(3, np.dtype("float32").newbyteorder())
    for host, reason in ((REVERSED, "no such strides"), (swapped, "foreign order")):
        with pytest.raises(xbridge.CopyError, match=f"without a copy: .*{reason}; try to_backend"):
            unsafe_share(host, "torch")
    with pytest.raises(xbridge.CopyError, match="hands out a copy"):
        unsafe_share(np.float32(1), "torch")


def test_a_library_that_copies_although_it_was_not_to_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(get("torch"), "from_numpy", torch.tensor)
    message = "cannot share this memory with torch: torch has copied it; try to_backend"
    with pytest.raises(xbridge.CopyError, match=message):
        unsafe_share(np.ones(3), "torch")


def test_within_a_library_there_is_nothing_to_share() -> None:
    assert unsafe_share(REVERSED, "numpy") is REVERSED


def test_no_policy_changes_what_is_shared() -> None:
    pytest.importorskip("torch")
    host = np.ones(3)
    host.flags.writeable = False
    with policy(copies="allow", casts="allow", detaches="allow", transfers="allow"):
        assert xbridge.to_backend(host, "torch").data_ptr() != host.ctypes.data
