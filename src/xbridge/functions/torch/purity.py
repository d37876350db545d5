"""Check that a torch function is pure: what it reads, writes and draws at random.

A derivative runs the function again, and compiled code may skip, merge or repeat calls. So a function must
not draw random numbers or write to tensors outside of it. It may read tensors, such as the parameters of a
module. Their version is stored with the value, so that a derivative for changed parameters is refused.

A `Watch` sees every operation, which takes longer than a small operation itself. So it sees the first run of
each signature. Later runs compare counters that torch keeps anyway, and are repeated under a `Watch` only
where a counter moved, to find out why.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache, partial
from inspect import unwrap
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef

from xbridge.errors import GradientError
from xbridge.extend import locks
from xbridge.functions.torch.private import (
    TorchDispatchMode,
    dispatch_modes,
    shared_flags,
    without_dispatch_modes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Tensors = Sequence[torch.Tensor]

_aten = torch.ops.aten
_BATCH_NORMS = (_aten.native_batch_norm.default, _aten.cudnn_batch_norm.default)
"""Operators that write to their running mean and variance in training, which their schemas do not declare."""

_NAMESPACES = {"aten", "prim", "prims", "quantized", "mkl", "mkldnn", "xbridge"}
"""The namespaces of operations whose tags say if they draw."""

_lock = locks.lock()


class Purity:
    """What a function reads beside its arguments, and which of its runs were watched."""

    def __init__(self, name: str, fn: object) -> None:
        self._name, self._fn = name, fn
        self._seen: dict[int, TensorWeakRef] = {}
        self._marks: list[int | None] = []
        """The versions of these tensors."""
        self._version = 0
        self._modules = find_modules(fn)
        self._members: list[object] = _members_of(self._modules)
        self._layout = 0
        """A number that changes when a layer or a tensor of the modules is replaced by another."""
        self.known = False
        """True after a first run, which has shown what the function reads."""
        self.overwrites = False
        """True if the function writes to its arguments."""
        self.has_norms = False
        """True if it computes norms, whose third derivatives are wrong in torch."""

    def version(self) -> int:
        """Return a number that changes when the tensors outside of the function change."""
        with _lock:
            if [*map(id, _members_of(self._modules))] != [*map(id, self._members)]:
                self._find_modules()
            now = self._read_marks()
            if now != self._marks:
                self._version += 1
                if None in now:
                    self._seen = {key: x for key, x in self._seen.items() if x() is not None}
                    now = self._read_marks()
                self._marks = now
            return self._version

    def _read_marks(self) -> list[int | None]:
        return [None if (x := found()) is None else x._version for found in self._seen.values()]

    @property
    def reads(self) -> bool:
        """True if the function reads tensors outside of it, or may do so."""
        return bool(self._seen) or not self.known

    def learn(self, watch: Watch) -> None:
        """Remember what the function read in a run, or raise if it wrote."""
        watch.refuse_writes(self._name)
        with _lock:
            self.version()
            self._seen.update({key: TensorWeakRef(x) for key, x in watch.reads().items()})
            self._marks = self._read_marks()
        self.known = True
        self.overwrites |= watch.overwrites
        self.has_norms |= watch.has_norms

    def run(self, fn: Callable[..., Tensors], xs: Tensors, watched: set[object]) -> Tensors:
        """Run the function or a derivative, and raise if it writes to other tensors or draws random numbers.

        The first run of each signature is watched, and the signature is added to `watched`. It is watched
        again after a layer or a tensor was replaced, because it reads others from then on.
        """
        before = self.counters()
        training = [module.training for module in self._modules]
        key = (self._layout, *[(x.shape, x.dtype) for x in xs], *training)
        if key not in watched:
            ys = self.watch(fn, xs)
            watched.add(key)
            return ys
        ys = fn(*xs)
        if self.counters() != before:
            self.watch(fn, _copy(xs))
        return ys

    def _find_modules(self) -> None:
        """Find the modules that the function reaches now, and what they hold."""
        self._modules = find_modules(self._fn)
        before, self._members = self._members, _members_of(self._modules)
        if [*map(id, before)] != [*map(id, self._members)]:
            self._layout += 1
            self._version += 1

    def counters(self) -> tuple[list[bytes], int]:
        """Return the states of torch's generators, and the version of what the function reads."""
        return _generator_states(), self.version()

    def watch(self, fn: Callable[..., Tensors], xs: Tensors) -> Tensors:
        """Run a function under a `Watch`. A function that sets a seed draws the same in another run."""
        before = _generator_states()
        with shared_flags, Watch(xs) as watch:
            ys = fn(*xs)
        after = watch.states()
        if watch.may_draw and after != before:
            given = _copy(xs)
            with shared_flags, Watch(given) as again:
                fn(*given)
            if again.states() != after:
                raise random_error(self._name)
        self.learn(watch)
        return ys

    def module_state(self) -> tuple[object, ...]:
        """Return the modules that the function reaches now, with the shapes of their tensors."""
        self._find_modules()
        return tuple(
            [(ref(module), *[(x.shape, x.dtype) for x in _own_tensors(module)]) for module in self._modules]
        )


def find_modules(fn: object) -> list[torch.nn.Module]:
    """Return the modules that a function may call: itself, and those in its closure, instance and globals.

    They may be in lists, tuples and dicts there, and in attributes of the instance or of objects there.
    """
    found: dict[torch.nn.Module, None] = {}
    rest, seen = [fn, *_attributes(fn)], set[int]()
    while rest:
        x = rest.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, torch.nn.Module):
            found.update(dict.fromkeys(x.modules()))
        elif isinstance(x, MethodType):
            rest += [x.__self__, x.__func__, *_attributes(x.__self__)]
        elif isinstance(x, partial):
            rest += [x.func, *x.args, *x.keywords.values()]
        elif isinstance(x, FunctionType):
            cells = [cell.cell_contents for cell in x.__closure__ or () if _is_filled(cell)]
            rest += [unwrap(x), *cells, *[y for each in cells for y in _attributes(each)]]
            named = [x.__globals__.get(name) for name in x.__code__.co_names]
            rest += [y for y in named if getattr(y, "__globals__", x.__globals__) is x.__globals__]
        elif isinstance(x, (list, tuple)):
            rest += x
        elif isinstance(x, dict):
            rest += x.values()
    return list(found)


def _attributes(x: object) -> list[object]:
    """Return the attributes of an instance. Those of modules are found by torch."""
    has_own = hasattr(x, "__dict__") and not isinstance(x, (type, ModuleType, torch.nn.Module))
    return [*vars(x).values()] if has_own else []


def _members_of(modules: Sequence[torch.nn.Module]) -> list[object]:
    """Return the layers and tensors that modules hold themselves."""
    return [
        x
        for module in modules
        for held in (module._modules, module._parameters, module._buffers)
        for x in held.values()
    ]


def _is_filled(cell: Any) -> bool:
    """Return False for the cell of a variable that has no value yet."""
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _own_tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _copy(xs: Tensors) -> Tensors:
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in xs]


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """A dispatch mode that records which foreign tensors a function reads and writes, and if it draws.

    A tensor is foreign if the function neither made it nor got it as an argument. With `refuses`, the name of
    the function, a write to one is refused before it happens, because a trace must not change anything.
    """

    def __init__(self, xs: Tensors, refuses: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self._refuses = refuses
        self._arguments = set(map(_storage_id, filter(_has_memory, xs)))
        self._own, self._foreign = set[int](), set[int]()
        self._held: dict[int, StorageWeakRef] = {}
        """References to these storages, so that none gets the identity of one that is gone."""
        self._add_own(xs)
        self._read: dict[int, TensorWeakRef] = {}
        self.made: dict[int, TensorWeakRef] = {}
        """The tensors that operations returned."""
        self._written = set[int]()
        """The storages of foreign tensors to which it wrote, perhaps through a view that is gone."""
        self._generators: list[torch.Generator] = []
        """The generators that it named."""
        self.may_draw = False
        """True if an operation may draw random numbers."""
        self.overwrites = False
        """True if an operation writes to an argument."""
        self.has_norms = False
        """True if it computes a norm of the numbers in a layer or a batch."""

    def _add_own(self, xs: Tensors) -> None:
        """Regard tensors as made by the function."""
        self._own.update({self._hold(x) for x in xs if _has_version(x)} - self._foreign)

    def _hold(self, x: torch.Tensor) -> int:
        """Return the identity of a tensor's storage, which no other storage gets during the run."""
        storage = x.untyped_storage()
        key = int(storage._cdata)
        if key not in self._held:
            self._held[key] = StorageWeakRef(storage)  # type: ignore[no-untyped-call] # torch leaves it untyped
        return key

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # The operation of a user may draw without a tag that says so.
        self.may_draw |= torch.Tag.nondeterministic_seeded in func.tags or func.namespace not in _NAMESPACES
        generator = kwargs.get("generator")
        if generator is not None and generator not in self._generators:
            self._generators.append(generator)
        trains = func in _BATCH_NORMS and args[5]
        self.has_norms |= func is _aten.native_layer_norm.default or trains
        if func is _aten.lift_fresh.default:  # of a tensor that was just made, such as from an array
            self._add_own(args)
        for x in filter(self._is_foreign, leaves((args, kwargs))):
            self._foreign.add(self._hold(x))
            self._read[id(x)] = TensorWeakRef(x)
        for x in filter(_has_memory, _targets(func, args, kwargs)):
            self.overwrites |= _storage_id(x) in self._arguments
            if self._is_foreign(x):
                if self._refuses:
                    raise _write_error(self._refuses)
                self._written.add(_storage_id(x))
        made = func(*args, **kwargs)
        ys = list(filter(_has_version, leaves((made,))))
        self._add_own(ys)
        self.made.update({id(x): TensorWeakRef(x) for x in ys})
        return made

    def _is_foreign(self, x: object) -> bool:
        return _has_version(x) and _storage_id(x) not in self._own

    def states(self) -> list[bytes]:
        """Return the states of torch's generators, and of those that the function named."""
        return [
            *_generator_states(),
            *[state for each in self._generators for state in _generator_states(each)],
        ]

    def refuse_writes(self, name: str) -> None:
        """Raise if the function wrote to a tensor that it did not make.

        Memory that is gone with the run was its own, such as that of a NumPy array which it made.
        """
        living = [found() for found in self._read.values()] if self._written else []
        if any(x is not None and _storage_id(x) in self._written for x in living):
            raise _write_error(name)

    def reads(self) -> dict[int, torch.Tensor]:
        """Return the foreign tensors that the function read, without views of them that it made itself."""
        living = {key: found() for key, found in self._read.items()}
        made = {key: found() for key, found in self.made.items() if key in living}
        return {key: x for key, x in living.items() if x is not None and made.get(key) is not x}


def _targets(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield the tensors that an operation writes to."""
    if func in _BATCH_NORMS:
        yield from args[3:5] if args[5] else ()
    for i, name in _written_arguments(func):
        yield from leaves((args[i] if i < len(args) else kwargs.get(name),))


@cache
def _written_arguments(func: Any) -> list[tuple[int, str]]:
    """Return the positions and names of the arguments that an operation writes to."""
    return [
        (i, argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def leaves(xs: Sequence[Any]) -> list[Any]:
    """Return the leaves of arguments or results of an operation, which nest in lists, tuples and dicts."""
    found = []
    for x in xs:
        if isinstance(x, (list, tuple)):
            found += leaves(x)
        elif isinstance(x, dict):
            found += leaves([*x.values()])
        else:
            found.append(x)
    return found


def _has_memory(x: object) -> TypeGuard[torch.Tensor]:
    return isinstance(x, torch.Tensor) and x.layout is torch.strided


def _has_version(x: object) -> TypeGuard[torch.Tensor]:
    return _has_memory(x) and not x.is_inference()


def _storage_id(x: torch.Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _generator_states(generator: torch.Generator | None = None) -> list[bytes]:
    """Return the state of a generator; without one, the states of torch's default generators."""
    shared = (torch.default_generator, *torch.cuda.default_generators)
    # A mode, such as one of tensors without values, would see the operations that read a state.
    with without_dispatch_modes() if dispatch_modes._is_in_torch_dispatch_mode else nullcontext():
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
