"""Format a plan: as one line, as aligned lines, as a table for notebooks or rich, as a dict for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xbridge._core.text import html_table, rich_table, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xbridge._plan.steps import ArrayEndpoint, Plan

Cells = tuple[str, str, str, str]
"""A row: "from", "to" or the number of the step; a description; the bytes; a note."""


def line(plan: Plan) -> str:
    """Return the input, the target and the verdict in one line."""
    return f"{_description(plan.source)} to {plan.conversion.target.name}: {'; '.join(verdict(plan))}"


def text(plan: Plan) -> str:
    """Return lines for the source, each step, the target and the verdict."""
    return "\n".join([*table([*_rows(plan)], right=[2]), f"so    {'; '.join(verdict(plan))}"])


def html(plan: Plan) -> str:
    """Return the lines of `text` as an HTML table. The error of a refused conversion is in color."""
    return html_table([*_rows(plan), ("so", "; ".join(verdict(plan)))], [2], "#c62828" if plan.error else "")


def rich(plan: Plan) -> Iterator[Any]:
    """Yield the lines of `text` as a table of rich. The error of a refused conversion is in color."""
    from rich.text import Text  # noqa: PLC0415 -- rich calls this

    yield rich_table([*_rows(plan)], [2])
    yield Text(f"so  {'; '.join(verdict(plan))}", "bold red" if plan.error else "")


def as_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as a dict of types that JSON has."""
    error = plan.error
    return {
        "source": _info(plan.source),
        "target": plan.target and _info(plan.target),
        "backend": plan.conversion.target.name,
        "steps": [
            {
                "backend": step.backend,
                "op": step.op,
                "args": [*map(str, step.args)],
                "nbytes": step.nbytes,
                "reason": step.reason,
            }
            for step in plan.steps
        ],
        "shares_memory": plan.shares_memory,
        "writable": plan.writable,
        "exact": plan.exact,
        "cuts_graph": plan.cuts_graph,
        "checks": [step.action for step in plan.checks],
        "error": error and {"type": type(error).__name__, "message": str(error)},
    }


def verdict(plan: Plan) -> Iterator[str]:
    """Yield the facts about the result, in a few words each."""
    if plan.error:
        yield f"{type(plan.error).__name__}: {plan.error}"
        return
    if plan.steps:
        memory = "shares memory" if plan.shares_memory else "new memory"
        yield f"{memory}, {'writable' if plan.writable else 'read-only'}"
    else:
        yield "the array itself"
    if not plan.exact:
        yield "values may change"
    if plan.conversion.info.requires_grad:
        yield "the graph ends here" if plan.cuts_graph else "the graph goes on"
    for step in plan.checks:
        yield f"an error if a value does not fit {step.args[0]}"


def bytes_of(number: int | None) -> str:
    """Format a number of bytes; None becomes a question mark."""
    return "? bytes" if number is None else f"{number:,} bytes"


def _rows(plan: Plan) -> Iterator[Cells]:
    yield "from", _description(plan.source), bytes_of(plan.source.nbytes), _state(plan.source)
    for number, step in enumerate(plan.steps, 1):
        nbytes = bytes_of(step.nbytes) if step.copy_reason else ""
        yield str(number), f"{step.backend} {step.action}", nbytes, step.reason
    if plan.target is None:
        yield "to", plan.conversion.target.name, "", "refused"
    else:
        yield "to", _description(plan.target), bytes_of(plan.target.nbytes), _state(plan.target)


def _description(end: ArrayEndpoint) -> str:
    return f"{end.backend} {end.dtype} {end.shape} on {end.device}"


def _state(end: ArrayEndpoint) -> str:
    writable = {True: "writable", False: "read-only", None: "memory unknown"}[end.writable]
    return f"{writable}, requires grad" if end.requires_grad else writable


def _info(end: ArrayEndpoint) -> dict[str, Any]:
    known = [n if isinstance(n, int) else None for n in end.shape]  # a lazy array may have an unknown shape
    return {**end._asdict(), "shape": known, "device": str(end.device)}
