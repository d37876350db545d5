"""`policy`: allow kinds of conversions, warn of them or forbid them.

A policy never changes the result of a conversion: code under a policy gets the same result, or an error.

The rules of a `with` block apply in its thread or task. The rules of the process, which `XBRIDGE_POLICY` or
pytest's command line sets, apply outside of blocks, and to kinds of conversions for which a block has no
rule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar, cast
from warnings import warn_explicit

from xbridge._core.entry_points import entry_point
from xbridge._core.locks import lock
from xbridge._engine.execute import CallSite, Observer
from xbridge._plan.steps import Plan, Step
from xbridge._registry.registry import add_observer, remove_observer
from xbridge.errors import (
    CastWarning,
    CopyWarning,
    DetachWarning,
    OptionError,
    PolicyError,
    PolicyWarning,
    TransferWarning,
    shown,
)

Action: TypeAlias = Literal["allow", "warn", "raise"]
F = TypeVar("F", bound=Callable[..., object])


class Rules(NamedTuple):
    """The rules for conversions. Each is `"allow"`, `"warn"` or `"raise"`."""

    copies: Action = "allow"
    """New memory on the same device, of the same dtype."""
    transfers: Action = "allow"
    """Bytes that move from one device to another."""
    detaches: Action = "allow"
    """The end of the source's autograd graph."""
    casts: Action = "allow"
    """Another dtype, or another byte order."""


class _Block(Observer):
    """The observer of one `with` block, which has its rules.

    The rules end with the block, even for a task that was started in it and is still running.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.runs = True

    def forbid(self, plan: Plan) -> None:
        """Raise an error if the plan has an operation that the policy forbids."""
        for word, reason in self._find_operations(plan, "raise"):
            why = f"{reason}, and policy({word}='raise') forbids {word}"
            raise PolicyError.build(plan.conversion.asked(), why, f"policy({word}='allow') around it")

    def before(self, plan: Plan, caller: CallSite) -> None:
        """Warn of operations of the plan, at the calling line."""
        for word, reason in self._find_operations(plan, "warn"):
            warn_explicit(
                f"{plan.conversion.asked().removeprefix('convert ')}: {reason}",
                _CATEGORIES[word],
                caller.f_code.co_filename,
                caller.f_lineno,
                module=caller.f_globals.get("__name__"),
                registry=caller.f_globals.setdefault("__warningregistry__", {}),
            )

    def _find_operations(self, plan: Plan, rule: Action) -> Iterator[tuple[str, str]]:
        """Yield the word and the reason of each operation under a rule, but not copies of empty arrays."""
        if _innermost_block() is not self:
            return
        rules = self.rules._asdict()
        found = {"detaches": "its graph ends there"} if plan.cuts_graph else {}
        for step in plan.steps:
            for word in words_of(step):
                if step.copy_reason and (word != "copies" or step.nbytes != 0):
                    found.setdefault(word, step.copy_reason.message)
        yield from ((word, reason) for word, reason in found.items() if rules[word] == rule)


_blocks_here: ContextVar[tuple[_Block, ...]] = ContextVar("xbridge policy", default=())
_process_block = _Block(Rules())
_process_block_lock = lock()


def _innermost_block() -> _Block:
    return next((block for block in reversed(_blocks_here.get()) if block.runs), _process_block)


class policy:  # noqa: N801 -- read as a statement, like `contextlib.suppress`
    """Allow, warn about or forbid conversions, in a `with` block or in a decorated function.

    Parameters
    ----------
    copies, transfers, detaches, casts : {None, "allow", "warn", "raise"}
        The rule for conversions that would make new memory of the same dtype on the same device, move bytes
        between devices, end a graph, or change a dtype, requested or not. None keeps the rule around the
        block. Outside of all blocks, everything is allowed.

    Raises
    ------
    OptionError
        Another word is given. Or the decorated object is not a function, or is a generator, whose body
        runs in its consumer.
    PolicyError
        By a conversion in the block, before any step of it runs.

    Warns
    -----
    CopyWarning, TransferWarning, DetachWarning, CastWarning
        By a conversion in the block, with the line that called it. All are `PolicyWarning`.

    Examples
    --------
    >>> import numpy as np, xbridge
    >>> with policy(copies="raise"):
    ...     xbridge.to_numpy(np.ones(3), copy=True)
    Traceback (most recent call last):
    xbridge.errors.PolicyError: cannot convert a numpy float64 array of shape (3,) on cpu to numpy: copy=True,
    and policy(copies='raise') forbids copies; try policy(copies='allow') around it
    >>> with policy(casts="warn", transfers="raise"):
    ...     policy.now()
    Rules(copies='allow', transfers='raise', detaches='allow', casts='warn')
    """

    @entry_point
    def __init__(
        self,
        *,
        copies: Action | None = None,
        transfers: Action | None = None,
        detaches: Action | None = None,
        casts: Action | None = None,
    ) -> None:
        said = {"copies": copies, "transfers": transfers, "detaches": detaches, "casts": casts}
        self._said: dict[str, Action] = {
            word: _check_action(word, rule) for word, rule in said.items() if rule is not None
        }
        self._blocks: list[_Block] = []

    def __repr__(self) -> str:
        return f"policy({', '.join(f'{word}={rule!r}' for word, rule in self._said.items())})"

    @staticmethod
    def now() -> Rules:
        """Return the rules for conversions that are called here and now."""
        return _innermost_block().rules

    def __enter__(self) -> Self:
        block = _Block(policy.now()._replace(**self._said))
        add_observer(block)
        self._blocks.append(block)
        _blocks_here.set((*_blocks_here.get(), block))
        return self

    def __exit__(self, *_: object) -> None:
        """End the rules of the innermost block of this policy."""
        blocks = _blocks_here.get()
        mine = [block for block in blocks if block in self._blocks]
        block = (mine or self._blocks)[-1]  # a generator may leave its block in another context
        block.runs = False
        self._blocks.remove(block)
        _blocks_here.set(tuple(block for block in blocks if block.runs))
        remove_observer(block)

    def __call__(self, fn: F, /) -> F:
        """Return a function that runs each call in a block of this policy."""
        reason = ""
        if isgeneratorfunction(fn) or isasyncgenfunction(fn):
            reason = "the body of a generator runs in its consumer"
        elif isinstance(fn, type) or not callable(fn):
            reason = "it is not a function"
        if reason:
            action = f"put {getattr(fn, '__qualname__', repr(fn))} under a policy"
            raise OptionError.build(action, reason)

        @wraps(fn)
        async def awaited(*args: Any, **options: Any) -> object:
            with policy(**self._said):
                return await cast("Awaitable[object]", fn(*args, **options))

        @wraps(fn)
        def called(*args: Any, **options: Any) -> object:
            with policy(**self._said):
                return fn(*args, **options)

        is_async = iscoroutinefunction(fn) or iscoroutinefunction(type(fn).__call__)
        return cast("F", awaited if is_async else called)


def rules_in(words: str) -> Rules:
    """Return the rules of the process with these changes, such as `transfers=raise,copies=warn`."""
    said: dict[str, Action] = {}
    for part in filter(None, words.replace(" ", "").split(",")):
        word, _, rule = part.partition("=")
        if word not in Rules._fields:
            reason = f"policies are on {', '.join(Rules._fields)}"
            raise OptionError.build(f"take a policy on {word!r}", reason, "transfers=raise")
        said[word] = _check_action(word, rule)
    return _process_block.rules._replace(**said)


def set_process_rules(rules: Rules) -> Rules:
    """Set the rules of the process, which apply outside of blocks, and return the previous ones."""
    global _process_block
    block = _Block(rules)
    with _process_block_lock:
        before, _process_block = _process_block, block
    if before.rules != Rules():
        remove_observer(before)
    if rules != Rules():
        add_observer(block)
    return before.rules


def set_rules_of_environment(text: str) -> None:
    """Set the rules that `XBRIDGE_POLICY` holds, which an error names."""
    try:
        set_process_rules(rules_in(text))
    except OptionError as error:
        hint = "XBRIDGE_POLICY=" + str(error.hint).replace("'", "")
        raise error.build(f"read XBRIDGE_POLICY={text}", error.reason, hint) from None


_CATEGORIES: dict[str, type[PolicyWarning]] = {
    "copies": CopyWarning,
    "transfers": TransferWarning,
    "detaches": DetachWarning,
    "casts": CastWarning,
}


def words_of(step: Step) -> tuple[str, ...]:
    """Return the options of a policy that apply to a step, such as "casts".

    A step that changes the order of the bytes alone is a copy.
    """
    if step.op == "stream_to_device":
        return ("casts" if len(step.args) > 1 else "copies", "transfers")
    if step.copy_reason and step.copy_reason.kind == "byte_order":
        return ("copies",)
    return ({"to_device": "transfers", "astype": "casts"}.get(step.op, "copies"),)


def _check_action(word: str, rule: str) -> Action:
    if not isinstance(rule, str) or rule not in ("allow", "warn", "raise"):
        action = f"take {word}={shown(rule)} as a policy"
        raise OptionError.build(action, "it is 'allow', 'warn' or 'raise'", f"{word}='raise'")
    return cast("Action", rule)
