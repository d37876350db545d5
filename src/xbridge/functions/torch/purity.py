"""Check that a torch function is pure: what it reads, writes and draws at random.

A derivative runs the function again, and compiled code may skip, merge or repeat calls. So a function must
not draw random numbers or write to tensors outside of it. It may read tensors, such as the parameters of a
module. Their version is stored with the value, so that a derivative for changed parameters is refused.

A `Watch` sees every operation, which takes longer than a small operation itself. So it sees the first run of
each signature. Later runs compare counters that torch keeps anyway, and are repeated under a `Watch` only
where a counter moved, to find out why.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self, TypeGuard
from weakref import WeakSet, ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.weak import TensorWeakRef

from xbridge.errors import GradientError
from xbridge.extend import locks
from xbridge.functions.rules import no_derivative_error
from xbridge.functions.torch.private import (
    TorchDispatchMode,
    dispatch_modes,
    shared_flags,
    without_dispatch_modes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xbridge.errors import XBridgeError

    Tensors = Sequence[torch.Tensor]

_aten = torch.ops.aten
_BATCH_NORMS = (_aten.native_batch_norm.default, _aten.cudnn_batch_norm.default)
"""Operators that write to their running mean and variance in training, which their schemas do not declare."""

_NAMESPACES = {"aten", "prim", "prims", "quantized", "mkl", "mkldnn", "xbridge"}
"""The namespaces of operations whose tags say if they draw."""

_LEAVING = (torch.ops.aten.detach.default, torch.ops.aten._local_scalar_dense.default)
"""The operations that take a tensor or a number out of the graph. `Tensor.numpy` detaches too."""

_MAKES_ANOTHER = re.compile("new_.*|.*_like")
"""Names of operations whose results have only the shape and the dtype of a tensor."""

_lock = locks.lock()


class Purity:
    """What a function reads beside its arguments, as its first runs have shown."""

    def __init__(self, name: str, fn: object) -> None:
        self._name = name
        owner = getattr(fn, "__self__", None)  # of a method, such as `module.forward`
        self._modules = [ref(m) for m in (owner.modules() if isinstance(owner, torch.nn.Module) else ())]
        self._tensors: dict[int, tuple[TensorWeakRef, bool]] = {}
        """The tensors that the function read, and whether torch allocated their memory."""
        self._marks: list[int | None] = []
        self._members, self._modes = self._read_modules()
        self.last_version = 1
        """What `version` returned last."""
        self.layout = 0
        """A number that grows when a layer or a tensor is replaced by another."""
        self.known = False
        """True if a run has shown what the function reads, and none is being watched."""
        self.overwrites = False
        """True if the function writes to its arguments."""
        self.has_norms = False
        """True if it computes norms, whose third derivatives are wrong in torch."""

    def version(self) -> int:
        """Return a number that changes when the tensors outside of the function change."""
        with _lock:
            (members, self._modes), marks = self._read_modules(), self._read_marks()
            replaced = members != self._members or None in marks
            if replaced:
                self.layout += 1
                self._tensors = {key: held for key, held in self._tensors.items() if held[0]() is not None}
            if replaced or marks != self._marks:
                self.last_version += 1
                self._members, self._marks = members, self._read_marks()
            return self.last_version

    def _living_modules(self) -> list[torch.nn.Module]:
        return [module for found in self._modules if (module := found()) is not None]

    def _read_modules(self) -> tuple[list[int], list[bool]]:
        """Return the identities of the layers and tensors that the modules hold themselves, and the modes."""
        modules, held = self._living_modules(), list[object]()
        for module in modules:
            held += (*module._modules.values(), *module._parameters.values(), *module._buffers.values())
        return list(map(id, held)), [module.training for module in modules]

    def _read_marks(self) -> list[int | None]:
        """Return the versions of the tensors; None for one that is gone.

        Other memory, such as that of `torch.frombuffer`, may get another tensor in each run. None is missed.
        """
        return [
            x._version if (x := found()) is not None else None if allocated else 0
            for found, allocated in self._tensors.values()
        ]

    def describe_modules(self) -> object:
        """Return the mode of each module that the function runs, and the shapes of its tensors."""
        self.version()
        # A class may override `parameters` and `buffers`.
        own = [(m.training, (*m._parameters.values(), *m._buffers.values())) for m in self._living_modules()]
        return self.layout, *[
            (training, *[(x.shape, x.dtype) for x in held if x is not None]) for training, held in own
        ]

    def run(self, fn: Callable[..., Tensors], xs: Tensors, watched: set[object]) -> Tensors:
        """Run the function or a derivative, and raise if it writes to other tensors or draws random numbers.

        The first run of each signature is watched, and the signature is added to `watched`. It is watched
        again after a layer or a tensor was replaced, because it reads others from then on.
        """
        self.version()
        if self._signature(xs) not in watched:
            ys = self.watch(fn, xs)
            watched.add(self._signature(xs))
            return ys
        before = self.counters()
        ys = fn(*xs)
        if self.have_moved(before):
            self.watch(fn, _copy(xs))
        return ys

    def _signature(self, xs: Tensors) -> object:
        return self.layout, *[(x.shape, x.dtype) for x in xs], *self._modes

    def counters(self) -> object:
        """Return the states of torch's generators, and what `version` has just read of the tensors."""
        return _generator_states(), self._marks

    def have_moved(self, before: object) -> bool:
        """Return True if the counters are others now."""
        return before != (_generator_states(), self._read_marks())

    def watch(self, fn: Callable[..., Tensors], xs: Tensors) -> Tensors:
        """Run a function under a `Watch`. A function that sets a seed draws the same in another run."""
        self.known = False
        before = _generator_states()
        with Watch(self._name, xs) as watch:
            ys = fn(*xs)
        after = watch.states()
        if watch.may_draw and after != before:
            given = _copy(xs)
            with Watch(self._name, given) as again:
                fn(*given)
            if again.states() != after:
                raise GradientError.build(
                    f"follow {self._name}",
                    "it draws random numbers, and would draw others when it runs again for its derivative",
                    "module.eval() of the torch module itself, or random numbers as an argument",
                )
        self.learn(watch)
        return ys

    def learn(self, watch: Watch) -> None:
        """Remember what the function read in a run."""
        with _lock:
            self.version()
            for key, x in watch.reads().items():
                self._tensors[key] = TensorWeakRef(x), x.untyped_storage().resizable()
            self._modules = list(map(ref, dict.fromkeys([*self._living_modules(), *watch.modules])))
            (self._members, self._modes), self._marks = self._read_modules(), self._read_marks()
        self.known = True
        self.has_norms |= watch.has_norms


def _copy(xs: Tensors) -> Tensors:
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in xs]


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """A dispatch mode that notes which foreign tensors and modules a function uses, and if it draws.

    A tensor is foreign if the function neither made it nor got it as an argument. A write to one is refused
    before it happens.
    """

    def __init__(self, name: str, xs: Tensors) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self._name = name
        self._storages: dict[int, tuple[bool, StorageWeakRef]] = {}
        """Whether each storage is the function's own. A reference keeps its identity from another use."""
        self._read: dict[int, TensorWeakRef] = {}
        self.made: dict[int, TensorWeakRef] = {}
        """The tensors that operations returned."""
        self._generators: list[torch.Generator] = []
        """The generators that it named."""
        self.modules: WeakSet[torch.nn.Module] = WeakSet()
        """The modules that it called, with those inside of them."""
        self.may_draw = False
        """True if an operation may draw random numbers."""
        self.has_norms = False
        """True if it computes a norm of the numbers in a layer or a batch."""
        for x in filter(_has_version, xs):
            self._is_own(x, is_first_made=True)

    def __enter__(self) -> Self:
        thread = get_ident()

        def note(module: torch.nn.Module, _: Any) -> None:
            if get_ident() == thread:
                self.modules.update(module.modules())

        shared_flags.__enter__()
        self._hook = register_module_forward_pre_hook(note)
        super().__enter__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call] # torch leaves it untyped
        self._hook.remove()
        shared_flags.__exit__()

    def _is_own(self, x: torch.Tensor, *, is_first_made: bool) -> bool:
        """Return True if the function made the memory of a tensor, which the first sight of it shows."""
        storage = x.untyped_storage()
        sight = is_first_made, StorageWeakRef(storage)  # type: ignore[no-untyped-call] # torch leaves it untyped
        return self._storages.setdefault(int(storage._cdata), sight)[0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # The operation of a user may draw without a tag that says so.
        self.may_draw |= torch.Tag.nondeterministic_seeded in func.tags or func.namespace not in _NAMESPACES
        generator = kwargs.get("generator")
        if generator is not None and generator not in self._generators:
            self._generators.append(generator)
        trains = func in _BATCH_NORMS and args[5]
        self.has_norms |= func is _aten.native_layer_norm.default or trains
        is_new = func is _aten.lift_fresh.default  # of a tensor that was just made, such as from an array
        tensors = filter(_has_version, leaves((args, kwargs)))
        foreign = {id(x): x for x in tensors if not self._is_own(x, is_first_made=is_new)}
        self._read.update({key: TensorWeakRef(x) for key, x in foreign.items()})
        written = args[3:5] if trains else _written_arguments(func, args, kwargs)
        if any(id(x) in foreign for x in leaves(written)):
            raise GradientError.build(
                f"follow {self._name}",
                "it writes to a tensor that is not its own, and would write again for its derivative",
                "module.eval() of the torch module itself, "
                "or torch.func.functional_call with that tensor as an argument and a result",
            )
        made = func(*args, **kwargs)
        for y in filter(_has_version, leaves((made,))):
            self._is_own(y, is_first_made=True)
            self.made[id(y)] = TensorWeakRef(y)
        return made

    def states(self) -> list[bytes]:
        """Return the states of torch's generators, and of those that the function named."""
        return _generator_states(*self._generators)

    def reads(self) -> dict[int, torch.Tensor]:
        """Return the foreign tensors that the function read, without views of them that it made itself."""
        living = {key: found() for key, found in self._read.items()}
        made = {key: found() for key, found in self.made.items() if key in living}
        return {key: x for key, x in living.items() if x is not None and made.get(key) is not x}


# -- why a result has no graph -------------------------------------------------------------------------------
def find_cut(
    name: str, run: Callable[[], Sequence[torch.Tensor]], xs: Sequence[torch.Tensor]
) -> XBridgeError | None:
    """Return the error for results without a graph that come from numbers of `xs`; None for constants."""
    with DependencyTracker(name, xs) as tracker, _ListDetector(tracker):
        ys = run()
    if not (tracker.leave or any(map(tracker.reach, ys))):
        return None
    return no_derivative_error(
        name,
        "it detaches what torch follows, takes its numbers out of torch, or calls what has no derivative",
        "operations of torch instead, or jax.lax.stop_gradient around the result",
    )


class DependencyTracker(Watch):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """A watch that also notices which tensors are computed from the numbers of its arguments.

    It sees operations, so also those of code whose calls Python does not see, such as TorchScript.
    """

    def __init__(self, name: str, xs: Sequence[torch.Tensor]) -> None:
        super().__init__(name, xs)
        self._reached = set(self._storages)
        """The storages that were computed from those numbers, which the watch keeps."""
        self.leave = False
        """True if the numbers have left the graph."""

    def reach(self, x: torch.Tensor) -> bool:
        """Return True if a tensor is computed from the numbers."""
        return x.layout is not torch.strided or x.untyped_storage()._cdata in self._reached

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if any(map(self.reach, _inexact_leaves((args, kwargs)))):
            self.leave |= func in _LEAVING or not torch.is_grad_enabled()
            if not _MAKES_ANOTHER.fullmatch(func.overloadpacket.__name__):
                strided = [y for y in _inexact_leaves((made,)) if y.layout is torch.strided]
                self._reached.update(y.untyped_storage()._cdata for y in strided)
        return made


class _ListDetector(TorchFunctionMode):
    """A mode that notices if numbers leave by `Tensor.tolist`, which is no operation."""

    def __init__(self, tracker: DependencyTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist:
            self._tracker.leave |= any(map(self._tracker.reach, _inexact_leaves(args)))
        return func(*args, **(kwargs or {}))


# -- arguments of operations ---------------------------------------------------------------------------------
def _written_arguments(func: Any, args: Any, kwargs: Any) -> list[Any]:
    if not func._schema.is_mutable:
        return []
    declared = {argument.name: argument.alias_info for argument in func._schema.arguments}
    given = {**dict(zip(declared, args, strict=False)), **kwargs}
    return [x for name, x in given.items() if declared[name] is not None and declared[name].is_write]


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


def _has_version(x: object) -> TypeGuard[torch.Tensor]:
    return isinstance(x, torch.Tensor) and x.layout is torch.strided and not x.is_inference()


def _generator_states(*more: torch.Generator) -> list[bytes]:
    """Return the states of torch's default generators, and of others."""
    # A mode, such as one of tensors without values, would see the operations that read a state.
    with without_dispatch_modes() if dispatch_modes._is_in_torch_dispatch_mode else nullcontext():
        generators = (torch.default_generator, *torch.cuda.default_generators, *more)
        return [each.get_state().numpy().tobytes() for each in generators]


def _inexact_leaves(xs: Sequence[Any]) -> list[torch.Tensor]:
    tensors = [x for x in leaves(xs) if isinstance(x, torch.Tensor)]
    return [x for x in tensors if x.dtype.is_floating_point or x.dtype.is_complex]
