"""Check that a torch function is pure enough to be differentiated: what it reads, writes and draws at random.

A derivative runs the function again, and compiled code may skip, merge or repeat calls. So a tracked call
must not draw random numbers or write to tensors outside of it. It may read tensors, such as the parameters of
a module. Their version is stored with the value, so that a derivative for changed parameters is refused.

A `Watch` sees every operation, which takes longer than a small operation itself. So the runs of a known
function are followed by `Calls`, and repeated under a `Watch` only where these do not see enough.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

from xbridge._core.locks import Nesting, lock
from xbridge.errors import GradientError
from xbridge.functions.torch.norms import is_derived, is_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self, TypeGuard

    Tensors = Sequence[torch.Tensor]
    Seen = dict[int, tuple[TensorWeakRef, object]]

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
"""The method of subclasses that are tensors in all but name, such as the user's own kinds of parameters."""

_BATCH_NORMS = (torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default)
"""Operators that write to their running mean and variance in training, which their schemas do not declare."""

_CHANCES = ("dropout", "dropout_p", "train", "training")
"""Arguments of operations that draw nothing if one of them is 0 or False."""

_NAMESPACES = {"aten", "prim", "prims", "quantized", "mkl", "mkldnn", "xbridge"}
"""The namespaces of operations whose tags and schemas say what they do."""

_FINDERS = {getattr(torch.Tensor, name).__get__ for name in ("grad", "_grad", "_base")}
"""Getters that return a tensor which was there before."""

_RUNNERS = {torch.autograd.grad, torch.Tensor.backward}
"""Functions that run code of the user."""

_STATIC = {bool, int, float, complex, str, type(None), type(...)} | {
    torch.dtype, torch.device, torch.layout, torch.memory_format
}  # fmt: skip
"""The types of arguments that are compared by their values."""

_MAX_DOUBTS = 3
"""After so many repeated runs, all runs of a function are watched from their start."""

_MAX_HARMLESS = 4096
"""The most calls that are known to be harmless. Beyond that, all are forgotten."""

_MIN_MADE = 256
"""The number of tensors of earlier runs from which on those that are gone are looked for."""

_lock = lock()

# What the modes of torch do to be entered and left, without what they do for other modes.
_push_call_mode, _pop_call_mode = torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack
_push_mode, _pop_mode = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack
_count_modes = torch._C._len_torch_dispatch_stack
_DisableTorchDispatch = torch._C._DisableTorchDispatch

_find_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", bool)
"""Returns the hooks, if any, that run code of the user where a function of torch saves tensors.

Older versions do not tell, so `bool` says that there are some, and all runs are watched.
"""


class _Inside(Nesting):
    """The blocks in which the user's function itself runs, and not a derivative of it."""

    level = 0
    """The number of transforms around the function."""


inside = _Inside()


class Purity:
    """The tensors outside of a function that it reads, with a version number of their contents."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: Seen = {}
        self._made: dict[int, Callable[[], torch.Tensor | None]] = {}
        """Tensors that a run made and that outlive it, such as a cache, which the next run may read."""
        self._most_made = _MIN_MADE
        self._version = 0
        self.known = False
        """True after a first run, which has shown what the function reads."""
        self.overwrites = False
        """True if the function writes to its arguments."""
        self.hides = False
        """True if a run has used code whose calls Python does not see, so all runs are watched."""
        self.hides_norms = False
        """True if norms are among what such code computes."""
        self.derives_norms = False
        """True if a run has differentiated, with norms among what it calls."""
        self._doubts = 0
        """How many of the last runs were repeated under a `Watch`, though there was nothing to refuse."""
        self.plain_backward = True
        """True unless a backward pass calls functions of torch, as hooks do."""

    def version(self) -> int:
        """Return a number that changes when the tensors outside of the function change."""
        with _lock:
            changed = False
            for key, (tensor, mark) in tuple(self._seen.items()):
                x = tensor()
                if x is None:
                    del self._seen[key]
                    changed = True
                elif mark != (now := _version_mark(x)):
                    self._seen[key] = tensor, now
                    changed = True
            self._version += changed
            return self._version

    @property
    def reads(self) -> bool:
        """True if the function reads tensors outside of it, or may do so."""
        return bool(self._seen) or not self.known

    def learn(self, watch: Watch, *, again: bool = False) -> None:
        """Remember what the function read in a run, or raise if it wrote.

        With `again`, the run was for a derivative. It repeats the run of the value, so it is an error if it
        reads tensors that no earlier run has read.
        """
        watch.refuse_writes()
        self.derives_norms |= watch.derives_norms
        seen = watch.seen()
        self.version()  # counts a change whose earlier mark is replaced below
        with _lock:
            news = seen.keys() & watch.inside - set(map(id, self._known_tensors()))
            self._seen.update(seen)
            if not again:
                self._keep_made(watch.made)
        if again and news:
            raise changed_error(self._name)
        self.known = True
        self.overwrites |= watch.overwrites
        self.hides |= watch.hidden
        self.hides_norms |= watch.hides_norms

    def knows(self, watch: Watch, *more: torch.Tensor) -> bool:
        """Return True if all tensors that a backward pass called functions with were there in the run before.

        `more` are the tensors at the ends of its graph.
        """
        with _lock:
            known = self._known_tensors()
        return watch.called <= set(map(_storage_id, filter(_has_memory, (*known, *more))))

    def _known_tensors(self) -> list[torch.Tensor]:
        """Return the tensors that runs have read or made, and that still exist."""
        made = [x() for x in self._made.values()]
        return [*_living(self._seen), *[x for x in made if x is not None]]

    def _keep_made(self, made: Mapping[int, Callable[[], torch.Tensor | None]]) -> None:
        """Remember tensors that a run made. Those that are gone are forgotten when they may be the most."""
        self._made.update(made)
        if len(self._made) > self._most_made:
            self._made = {key: x for key, x in self._made.items() if x() is not None}
            self._most_made = 2 * len(self._made) + _MIN_MADE

    def run(self, fn: Callable[..., Tensors], xs: Tensors, *, again: bool, whole: bool) -> Tensors:
        """Run a function, and raise if it writes to other tensors or draws random numbers.

        Every run is watched, because what a function reads may depend on the shapes and values of `xs`. With
        `whole`, `fn` is the function itself, so a run after the first may be followed by its calls.
        """
        follows = whole and self.known and not (self.overwrites or self.hides)
        # Among other dispatch modes, the first may be one without values.
        by_calls = follows and self._doubts < _MAX_DOUBTS and not _count_modes()
        if by_calls:
            calls = Calls(xs, self._seen)
            ys = calls.follow(lambda: fn(*xs))
            if ys is not None and all(map(calls.knows, ys)):
                with _lock:
                    self._keep_made(calls.own)
                self._doubts = 0
                return ys
        with shared_flags, Watch(self._name, xs, real=True) as watch:
            ys = fn(*xs)
        if watch.derives_norms and not self.derives_norms:
            self.derives_norms = True
            return self.run(fn, xs, again=again, whole=whole)
        if watch.draws:
            self._refuse_random(fn, xs)
        self._doubts += by_calls
        self.learn(watch, again=again)
        return ys

    def _refuse_random(self, fn: Callable[..., Tensors], xs: Tensors) -> None:
        """Raise if the function draws other random numbers in another run. If it sets a seed, it does not."""
        draws = []
        for _ in range(2):
            given = [x.clone() for x in xs]  # the function may write to them, and return them
            with shared_flags, Watch(self._name, given, real=True) as watch:
                fn(*given)
            draws.append(watch.draws)
        if draws[0] != draws[1]:
            raise random_error(self._name)


class _SharedFlags:
    """Guards the use of dispatch modes in several threads at the same time.

    A mode belongs to a thread, but torch has flags for the whole process that say if any mode is on, and each
    mode restores the flags that it found. So of overlapping threads, the last could leave a flag on for ever.
    This context sets the flags by a count of its users. While they are on, torch's compiler runs functions as
    they are written, so that their calls are seen.
    """

    def __init__(self) -> None:
        self._users = 0

    def __enter__(self) -> None:
        with _lock:
            self._users += 1
            if self._users == 1:
                _set_flags(on=True)

    def __exit__(self, *_: object) -> None:
        with _lock:
            self._users -= 1
            if self._users or not _count_modes():
                _set_flags(on=self._users > 0)


shared_flags = _SharedFlags()

_names = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]
_flags = [dict.fromkeys(_names, on) for on in (False, True)]
_note_flag = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", id)


def _set_flags(*, on: bool) -> None:
    vars(_python_dispatch).update(_flags[on])
    _note_flag(on)


class _Frames(TorchFunctionMode):
    """Counts the calls of torch's functions that are running now, and looks for norms and derivatives."""

    depth = 0
    norms = derives = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.depth += 1
        if inside.depth and is_norm(func):
            self.norms = True
            self.derives |= is_derived(inside.level)
        elif inside.depth:
            self.derives |= func in _RUNNERS
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.depth -= 1


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """A dispatch mode that records which foreign tensors a function reads and writes, and its random draws.

    A tensor is foreign if the function neither made it nor got it as an argument. In a run on tensors without
    values, a write to a foreign tensor is refused before it happens. In a run with values it is refused at
    the end, because the memory may be the function's own, such as that of a NumPy array which it made.
    """

    def __init__(self, name: str, xs: Tensors, *, real: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self._name, self._real = name, real
        self._arguments = set(map(_storage_id, filter(_has_memory, xs)))
        self._own, self._foreign = set[int](), set[int]()
        self._held: dict[int, StorageWeakRef] = {}
        """References to these storages, so that none gets the identity of one that is gone."""
        self.own(xs)
        self._read: Seen = {}
        self.inside = set[int]()
        """The identities of tensors that the function itself read, and not a derivative of it."""
        self.called = set[int]()
        """The storages of the foreign tensors that were read in calls of torch's functions."""
        self.made: dict[int, TensorWeakRef] = {}
        self._written = set[int]()
        """The storages of foreign tensors to which it wrote, perhaps through a view that is gone."""
        self.draws: list[object] = []
        """The states of the generators at each draw."""
        self.overwrites = False
        """True if an operation writes to an argument."""
        self.hidden = False
        """True if the function computes by code whose calls Python does not see, such as TorchScript."""
        self.hides_norms = False
        """True if such code computes a norm whose third derivatives are wrong."""
        self._frames = _Frames()

    def __enter__(self) -> Self:
        self._frames.__enter__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        super().__enter__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        return self

    @property
    def derives_norms(self) -> bool:
        """True if the function differentiates, and calls norms."""
        return self._frames.norms and self._frames.derives

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call] # torch leaves it untyped
        self._frames.__exit__(*error)  # type: ignore[no-untyped-call] # torch leaves it untyped

    def own(self, xs: Tensors) -> None:
        """Regard tensors as made by the function."""
        self._own.update({self._hold(x) for x in xs if _is_plain(x)} - self._foreign)

    def _hold(self, x: torch.Tensor) -> int:
        """Return the identity of a tensor's storage, which no other storage gets during the run."""
        storage = x.untyped_storage()
        key = int(storage._cdata)
        if key not in self._held:
            self._held[key] = StorageWeakRef(storage)  # type: ignore[no-untyped-call] # torch leaves it untyped
        return key

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if inside.depth and not self._frames.depth:
            self.hidden = True
            trains = func in _BATCH_NORMS and args[5]
            self.hides_norms |= func is torch.ops.aten.native_layer_norm.default or trains
        if _draws(func, args, kwargs):
            self.draws.append(_generator_states(kwargs.get("generator")) if self._real else None)
        if func is torch.ops.aten.lift_fresh.default:  # of a tensor that was just made, such as from an array
            self.own(args)
        for x in filter(self._is_foreign, _leaves((args, tuple(kwargs.values())))):
            self._foreign.add(self._hold(x))
            if inside.depth:
                self.inside.add(id(x))
            if self._frames.depth:
                self.called.add(_storage_id(x))
            if id(x) not in self._read or self._read[id(x)][0]() is not x:
                self._read[id(x)] = TensorWeakRef(x), _version_mark(x)
        written = []
        for x in filter(_has_memory, _targets(func, args, kwargs)):
            self.overwrites |= _storage_id(x) in self._arguments
            if self._is_foreign(x):
                if not self._real:
                    raise _write_error(self._name)
                written.append(x)
        before = _generator_states() if self._real and _is_opaque(func) else None
        made = func(*args, **kwargs)
        if before and before != _generator_states():
            self.draws.append(before)
        self._written.update(map(_storage_id, written))
        leaves = _leaves((made,))
        self.own(leaves)
        self.made.update({id(x): TensorWeakRef(x) for x in leaves if _is_plain(x)})
        return made

    def _is_foreign(self, x: object) -> bool:
        return _is_plain(x) and _storage_id(x) not in self._own

    @property
    def writes(self) -> bool:
        """True if the function wrote to a tensor that it did not make."""
        living = [x() for x, _ in self._read.values()] if self._written else []
        return any(x is not None and _storage_id(x) in self._written for x in living)

    def refuse_writes(self) -> None:
        """Raise if the function wrote to a tensor that it did not make."""
        if self.writes:
            raise _write_error(self._name)

    def seen(self) -> Seen:
        """Return the foreign tensors that the function read, without views of them that it made itself."""
        living = {key: (found[0](), found) for key, found in self._read.items()}
        return {
            key: found
            for key, (x, found) in living.items()
            if x is not None and not (key in self.made and self.made[key]() is x)
        }


def _living(seen: Seen) -> list[torch.Tensor]:
    """Return the tensors that still exist. It does what each `TensorWeakRef` does, in less time."""
    living = [x for x in [x.ref() for x, _ in tuple(seen.values())] if x is not None]
    for x in living:
        x._fix_weakref()  # type: ignore[attr-defined] # torch does not declare it
    return living


class _DoubtError(BaseException):
    """Stops a run before a call that `Calls` cannot vouch for."""


T = TypeVar("T")
_harmless = set[tuple[object, ...]]()
"""The functions of torch, with all arguments but tensors, whose operations neither drew nor wrote."""


class Calls(TorchFunctionMode, TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """A mode that follows a run by its calls of torch's functions.

    A call on tensors of this run, or known from earlier runs, is harmless if the same call on other tensors
    neither drew nor wrote. Any other call is checked operation by operation, and so are the operations that
    no call of Python makes, such as those of TorchScript. The run ends before an operation that draws or that
    writes to memory from outside of the run. It also ends before an operation without a call that writes or
    reads a number, before a call within which hooks for saved tensors run, and before a call on an unknown
    tensor, which is new or was made without a call.
    """

    _dispatch_mode_key = None

    def __init__(self, xs: Tensors, seen: Seen) -> None:  # torch's own take longer than all of a run's checks
        self._xs = xs
        self._known = {id(x): x for x in _living(seen)} if seen else {}
        self.own: dict[int, Callable[[], torch.Tensor | None]] = {id(x): ref(x) for x in xs}
        """The tensors that were made in the run, and its arguments."""
        self._depth = 0
        """The number of dispatch modes with this one, or 0 if it checks no operations."""
        self._doubts = False
        self._calls = False
        """True while a call is checked; other operations are checked where no call is running."""
        self._varies = False
        """True if an operation writes, or reads a number from a tensor, such as a probability."""

    def __enter__(self) -> Self:
        _push_call_mode(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """End the run, also with another error if it is in doubt: the function may have caught ours."""
        _pop_call_mode()
        return self._doubts and kind not in (KeyboardInterrupt, SystemExit)

    def follow(self, run: Callable[[], T]) -> T | None:
        """Return what a function returns, or None if its run has to be watched."""
        made = None
        with shared_flags, self:
            _push_mode(self)
            self._depth = _count_modes()
            try:
                made = run()
            finally:
                _pop_mode(None)
        return None if self._doubts else made

    def follow_backward(self, run: Callable[[], T]) -> T | None:
        """Return what a backward pass returns, or None if it calls torch's functions, or draws.

        Its operations are not checked, because they come from the graph, and not from calls.
        """
        made, before = None, _generator_states()
        with shared_flags, self:
            made = run()
        return None if self._doubts or _generator_states() != before else made

    def knows(self, x: torch.Tensor) -> bool:
        """Return True if a tensor was made in the run or is known from earlier ones."""
        key = id(x)
        return self._known.get(key) is x or ((own := self.own.get(key)) is not None and own() is x)

    def _doubt(self) -> _DoubtError:
        """Return the error that ends the run."""
        self._doubts = True
        return _DoubtError()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parts = [func]
        self._append_arguments(args, parts)
        if kwargs:
            parts += kwargs
            self._append_arguments(kwargs.values(), parts)
        if _find_saving_hooks(True) is not None:  # noqa: FBT003 -- torch's order
            raise self._doubt()
        way = tuple(parts)
        if way in _harmless and _count_modes() == self._depth:
            unchecked = _DisableTorchDispatch()
            try:
                made = func(*args, **kwargs)
            finally:  # an error would keep this frame, and so the guard
                del unchecked
        else:
            made = self._run_checked(way, args, kwargs)
        if type(made) in _PLAIN:
            if func not in _FINDERS:
                self.own[id(made)] = ref(made)
        elif isinstance(made, (list, tuple)):
            self.own.update({id(y): ref(y) for y in _leaves(made) if type(y) in _PLAIN})
        return made

    def _append_arguments(self, xs: Iterable[Any], way: list[Any]) -> None:
        """Append the arguments of a call to the key for it, or raise if one is not known.

        A tensor appears as its type, because what a function does to other memory depends on no values.
        """
        known, own = self._known, self.own  # this runs in each call of torch's functions
        for x in xs:
            kind = type(x)
            if kind in _PLAIN:
                key = id(x)
                if known.get(key) is not x and ((made := own.get(key)) is None or made() is not x):
                    raise self._doubt()
                way.append(torch.Tensor)
            elif kind in _STATIC:
                way.append(x)
            elif isinstance(x, (list, tuple)):
                self._append_arguments(x, way)
            elif kind is slice:
                self._append_arguments((x.start, x.stop, x.step), way)
            else:
                raise self._doubt()

    def _run_checked(self, way: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        """Call a function of torch, and remember if it did no harm."""
        func = way[0]
        foreign = type(func) is FunctionType and not func.__module__.startswith("torch.")
        if self._doubts or not self._depth or foreign or func in _RUNNERS:
            raise self._doubt()
        self._calls, self._varies = True, False
        try:
            made = func(*args, **kwargs)
        finally:
            self._calls = False
        # A call on an empty tensor may draw or write nothing, where it would do so with others.
        tensors = [x for x in _leaves((args, tuple(kwargs.values()))) if isinstance(x, torch.Tensor)]
        if not self._varies and all(map(torch.Tensor.numel, tensors)):
            if len(_harmless) >= _MAX_HARMLESS:
                _harmless.clear()
            _harmless.add(way)
        return made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():  # which sees this method too, if no call is running
            written = set(map(_storage_id, filter(_has_memory, _targets(func, args, kwargs))))
            opaque = _is_opaque(func)
            varies = opaque or bool(written) or func is torch.ops.aten._local_scalar_dense.default
            hidden = not self._calls
            if _draws(func, args, kwargs) or (varies and (hidden or written & self._foreign_storages())):
                raise self._doubt()
            self._varies |= varies
            before = _generator_states() if opaque else None
            made = func(*args, **kwargs)
            if before and before != _generator_states():
                raise self._doubt()
            return made

    def _foreign_storages(self) -> set[int]:
        """Return the storages of the arguments, and of known tensors and their gradients."""
        known = self._known.values()
        grads = [x.grad for x in known if x.requires_grad and x.is_leaf and x.grad is not None]
        return set(map(_storage_id, filter(_has_memory, (*self._xs, *known, *grads))))


OWN_MODES = (Watch, Calls)


def _targets(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield the tensors that an operation writes to."""
    if func in _BATCH_NORMS:
        yield from args[3:5] if args[5] else ()
    for i, name in _written_arguments(func):
        yield from _leaves((args[i] if i < len(args) else kwargs.get(name),))


def _leaves(xs: Sequence[Any]) -> list[Any]:
    """Return the leaves of arguments or results of an operation, which nest in lists and tuples only."""
    return [leaf for x in xs for leaf in (_leaves(x) if isinstance(x, (list, tuple)) else (x,))]


@cache
def _written_arguments(func: Any) -> list[tuple[int, str]]:
    """Return the positions and names of the arguments that an operation writes to."""
    return [
        (i, argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


@cache
def _is_opaque(func: Any) -> bool:
    """Return True if an operation runs code of a user, which may draw without a tag that says so."""
    return func.namespace not in _NAMESPACES


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Return True if an operation draws random numbers: attention may, and does not without dropout."""
    chances = _chance_arguments(func)
    if chances is None:
        return False
    for i, name, default in chances:
        chance = args[i] if i < len(args) else kwargs.get(name, default)
        if chance is not None and not chance:
            return False
    return True


@cache
def _chance_arguments(func: Any) -> list[tuple[int, str, object]] | None:
    """Return the arguments that decide if an operation draws random numbers; None if it never draws any."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    arguments = enumerate(func._schema.arguments)
    return [(i, each.name, each.default_value) for i, each in arguments if each.name in _CHANCES]


def _has_memory(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.layout is torch.strided


def _is_plain(x: Any) -> TypeGuard[torch.Tensor]:
    kind = type(x)
    plain = kind in _PLAIN or (isinstance(x, torch.Tensor) and kind.__torch_dispatch__ is _NO_DISPATCH)
    return plain and x.layout is torch.strided and not x.is_inference()


def _storage_id(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _version_mark(x: torch.Tensor) -> object:
    return x._version, x.data_ptr()


def _generator_states(generator: torch.Generator | None = None) -> list[bytes]:
    """Return the state of a generator; without one, the states of torch's default generators."""
    shared = (torch.default_generator, *torch.cuda.default_generators)
    return [each.get_state().numpy().tobytes() for each in ((generator,) if generator else shared)]


def random_error(name: str) -> GradientError:
    """Return the error for a function that draws random numbers."""
    return GradientError.build(
        f"follow {name}",
        "it draws random numbers, and would draw others when it runs again for its derivative",
        "module.eval(), or random numbers as an argument",
    )


def _write_error(name: str) -> GradientError:
    return GradientError.build(
        f"follow {name}",
        "it writes to a tensor that is not its own, and would write again when it runs for its derivative",
        "module.eval(), or torch.func.functional_call with that tensor as an argument and a result",
    )


def changed_error(name: str) -> GradientError:
    """Return the error for the derivative of a value that the function would no longer return."""
    return GradientError.build(
        f"differentiate {name}",
        "a tensor that it reads has changed since its value was computed",
        "torch.func.functional_call with that tensor as an argument",
    )
