"""Faults in calls of functions of other libraries, by the test that must notice them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kit_toy_backend as good
from kit_toy import Tile

from xbridge.errors import GradientError
from xbridge.functions.numpy import OpaqueRule
from xbridge.functions.rules import DerivableFunction, latest
from xbridge.functions.treedef import ARRAY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kit_toy_planting import Faults


def changed(**names: Any) -> Any:
    """Return the functions of the library with other ones under some names."""
    return {"functions": type("functions", (good.functions,), {k: staticmethod(v) for k, v in names.items()})}


def rule_with(**methods: Any) -> Any:
    """Return `rule(call)` for rules with other methods."""
    cls: Any = type("Planted", (OpaqueRule,), methods)
    return lambda call: cls(call, call.name)


def twice(self: Any, *xs: Tile) -> Sequence[Tile]:
    return [y * y for y in OpaqueRule.__call__(self, *xs)]


def lost(self: Any, *xs: Tile) -> Sequence[Tile]:
    made = OpaqueRule.__call__(self, *xs)
    latest.treedef = None
    return made


class Derived(OpaqueRule):
    """A derivative that is the seed."""

    order = 1

    def __call__(self, *xs: Tile) -> list[Tile]:
        return [xs[0]]


def derived(self: Any, *what: Any) -> DerivableFunction:
    return Derived(self.call, self.name)


def unordered(self: Any, *what: Any) -> DerivableFunction:
    made = Derived(self.call, self.name)
    made.order = 0
    return made


def seedless(self: Any, axes: Any) -> DerivableFunction:
    return Derived(self.call, self.name)


def refused(name: str) -> None:
    raise GradientError.build(f"call {name}", "a loop waits", "later")


def squared(rule: Any, xs: list[Tile]) -> list[Tile]:
    return [y * y for y in good.functions.run(rule, xs)]


def of_host(rule: Any, xs: list[Tile]) -> list[Any]:
    return [y.values() for y in good.functions.run(rule, xs)]


def shared(rule: Any, xs: list[Tile]) -> list[Tile]:
    return [Tile(x.memory) for x in xs]


def written(rule: Any, xs: list[Tile]) -> list[Tile]:
    made = good.functions.run(rule, xs)
    xs[0].write(made[0].values())
    return made


def without_treedef(rule: Any, xs: list[Tile]) -> list[Tile]:
    made = good.functions.run(rule, xs)
    latest.treedef = ("tuple", None, ARRAY)
    return made


FAULTS: Faults = {
    "test_a_rule_runs_its_function": {
        "a rule is a function": changed(rule=lambda call: call.fn),
        "a rule runs its function twice": changed(rule=rule_with(__call__=twice)),
        "a rule loses the form of the result": changed(rule=rule_with(__call__=lost)),
    },
    "test_a_rule_describes_what_it_returns": {
        "other shapes are described": changed(rule=rule_with(describe=lambda self, specs: ((), ARRAY))),
        "another form is described": changed(
            rule=rule_with(describe=lambda self, specs: (specs, ("tuple", None)))
        ),
    },
    "test_the_derivatives_of_a_rule_are_right_or_refused": {
        "a gradient is its cotangent": changed(rule=rule_with(vjp=derived)),
        "a tangent is that of the argument": changed(rule=rule_with(jvp=derived)),
        "a derivative has no order": changed(rule=rule_with(vjp=unordered)),
    },
    "test_a_batch_of_a_rule_is_one_call_for_each_example": {
        "a batch is another function": changed(rule=rule_with(batched=seedless)),
    },
    "test_a_function_may_be_called_outside_of_callbacks": {
        "no function may be called": changed(check_call=refused),
        "the check returns something": changed(check_call=lambda name: True),
    },
    "test_modes_are_compared": {
        "modes are new in each call": changed(modes=object),
    },
    "test_only_what_a_graph_holds_is_followed": {
        "everything is followed": {"follows": lambda x: True},
        "nothing is followed": {"follows": lambda x: False},
        "what is followed is a number": {"follows": lambda x: int(x.tracked)},
    },
    "test_a_caller_runs_a_rule_of_another_library": {
        "a run changes the values": changed(run=squared),
        "a run returns arrays of the host": changed(run=of_host),
        "a run writes to its argument": changed(run=written),
        "a run loses the form": changed(run=without_treedef),
        "a trace changes the values": changed(trace=lambda key, xs, numbers: [x * x * x for x in xs]),
    },
    "test_the_result_of_a_run_has_memory_of_its_own": {
        "a result shares memory with an argument": changed(run=shared),
    },
}
