"""The conversions that people write by hand, found in a module of Python, and replaced by calls of xbridge.

LibCST keeps the comments and the format of what is not replaced, and knows what a name was imported as. An
idiom is a chain of methods, such as `t.detach().cpu().numpy()`, a function of a library, or both. The array
that it converts is found by a path: `v` goes from a method to the object it is of, `a` to the first argument.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any, NamedTuple

import libcst as cst
from libcst import matchers as m
from libcst import metadata
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor

PARENT, POSITION = metadata.ParentNodeProvider, metadata.PositionProvider
NAMES, SCOPE = metadata.QualifiedNameProvider, metadata.ScopeProvider

TRACKED = "read-only if the tensor requires grad; writable=True makes a copy"
READONLY = "read-only memory is copied, and a mask is an error"
NEAREST = "a number that JAX's dtype cannot hold is an error"
WAITS = "complete when the call returns"
UNSURE = "if it is an array or a tensor: what else it may be is not known here"
UNTOUCHED = "the default device is not used, and a graph is kept"
ROUNDED = "each number is rounded once, where torch may round it to float32 first"
WRITTEN = "it is written to, and no write to the copy that writable=True makes reaches the tensor"
SHADOWED = "another xbridge is defined in this file"

DTYPES = {
    **{name: name for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32")},
    **{name: name for name in ("bfloat16", "float64", "complex64", "complex128")},
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
}
"""The canonical dtypes, by the names of torch's methods and attributes."""

TENSOR_METHODS = ("detach", "cpu", "resolve_conj", "resolve_neg")
"""The methods that xbridge makes unnecessary, all without arguments."""

WRITERS = {
    *("fill", "sort", "put", "partition", "resize", "setfield", "at", "shuffle"),
    *("copyto", "place", "putmask", "put_along_axis", "fill_diagonal", "readinto", "recv_into"),
}
"""Methods that write to their array, and functions that write to their first argument."""
WRITER = m.Name(m.MatchIfTrue(WRITERS.__contains__)) | m.Name(m.MatchRegex(r".*[^_]_"))
"""Matches these names, and those of torch's methods and functions that write, such as `zero_`."""

CONTAINERS = cst.Tuple | cst.List | cst.Dict | cst.ListComp | cst.DictComp
"""Expressions one level inside of which an array stands."""
PARTS = cst.Attribute | cst.Subscript | cst.Call | cst.Element | cst.DictElement | cst.IfExp
"""Expressions of a part of an array or of a container, and what stands between them and an array."""

DEVICE = m.Name("device") | m.Attribute(attr=m.Name("device")) | m.SimpleString()
"""What `to` takes as a device, and not as a dtype."""


class Idiom(NamedTuple):
    """A conversion by hand, and the call that replaces it."""

    line: int
    before: str
    after: str
    change: str
    """What is different afterwards, or nothing."""
    keeps_meaning: bool
    """Whether it can be replaced without a look at the program around it."""


class Link(NamedTuple):
    """One method of a chain."""

    name: str
    args: tuple[cst.Arg, ...]


class Replacement(NamedTuple):
    """The call in place of an idiom, but for the array."""

    verb: str
    path: str
    options: str
    change: str = ""
    keeps_meaning: bool = True

    def to_code(self, node: cst.Call, module: cst.Module) -> str:
        """Return the call as text."""
        array = _descend(node, self.path)
        if array.lpar and not isinstance(array, cst.Yield | cst.GeneratorExp):
            array = array.with_changes(lpar=array.lpar[1:], rpar=array.rpar[:-1])
        return f"xbridge.{self.verb}({module.code_for_node(array)}{self.options})"


class Migration(cst.CSTTransformer):
    """Finds the idioms of a module, and replaces those that keep their meaning."""

    METADATA_DEPENDENCIES = (PARENT, POSITION, NAMES)

    def __init__(self, module: cst.Module, *, is_shadowed: bool) -> None:
        super().__init__()
        self._is_shadowed = is_shadowed
        self.found: list[Idiom] = []
        self._module = module
        self._kept: dict[cst.CSTNode, Replacement] = {}
        self._within: set[cst.CSTNode] = set()
        attributes = {x.attr for x in m.findall(module, m.Attribute()) if isinstance(x, cst.Attribute)}
        self._shared: dict[cst.Call, bool] = {}
        self._uses: dict[str, list[cst.CSTNode]] = {}
        for x in m.findall(module, m.Name() | m.Attribute()):
            if x not in attributes:
                self._uses.setdefault(module.code_for_node(x), []).append(x)
        self._has_tensors = not {"torch", "jax", "jnp"}.isdisjoint(self._uses)

    def visit_FormattedString(self, node: cst.FormattedString) -> None:  # noqa: N802 -- LibCST calls it so
        """List what stands in an f-string, in which quotes cannot be nested, and leave it as it is."""
        for call in m.findall(node, m.Call()):
            if isinstance(call, cst.Call):
                self._look_at(call, is_fixed=True)

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802 -- LibCST calls it so
        """Look at the whole of a chain before its parts."""
        self._look_at(node)

    def leave_Call(  # noqa: N802 -- LibCST calls it so
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> cst.BaseExpression:
        """Replace an idiom, in whose array others may have been replaced already."""
        if original_node not in self._kept:
            return updated_node
        code = self._kept[original_node].to_code(updated_node, self._module)
        made = cst.parse_expression(code, self._module.config_for_parsing)
        return made.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def _look_at(self, node: cst.Call, *, is_fixed: bool = False) -> None:
        """Note the idiom that a call is, if it is one and no part of another."""
        replacement = None if node in self._within else self._match(node)
        if not replacement:
            return
        for length in range(len(replacement.path)):
            self._within.add(_descend(node, replacement.path[:length]))
        if replacement.verb == "to_numpy" and "copy=" not in replacement.options and self._is_written(node):
            replacement = replacement._replace(change=WRITTEN, keeps_meaning=False)
        if self._is_shadowed:
            replacement = replacement._replace(change=SHADOWED, keeps_meaning=False)
        is_sure = replacement.keeps_meaning and replacement.change != ROUNDED
        keeps = is_sure and not is_fixed and not m.findall(node, m.Comment())
        if keeps:
            self._kept[node] = replacement
        codes = self._module.code_for_node(node), replacement.to_code(node, self._module)
        before, after = (" ".join(code.split()) for code in codes)
        position: Any = self.get_metadata(POSITION, node)
        self.found.append(Idiom(position.start.line, before, after, replacement.change, keeps))

    def _match(self, node: cst.Call) -> Replacement | None:
        root, links = self._unwind(node)
        if isinstance(root, cst.Call) and root.args and not root.args[0].star and not root.args[0].keyword:
            function = self._name_of(root.func)
            options = self._read(links, "torch") if function == "torch.from_numpy" else None
            if options:
                return Replacement("to_torch", "v" * len(links) + "a", *options)
            if not links:
                return self._match_function(function, root)
        return self._match_methods(node)

    def _match_function(self, function: str, call: cst.Call) -> Replacement | None:
        value = call.args[0].value
        array, links, (is_cast, _) = self._read_tail(value, "numpy")
        path = "v" * len(links)
        names = {link.name for link in links}
        is_sure = self._is_tensor(array, links)
        if function in _TO_JAX and len(call.args) == 1 and not is_cast and "numpy" in names:
            change = NEAREST if is_sure else UNSURE
            return Replacement("to_jax", "a" + path, ', dtype="nearest"', change, is_sure)
        if function in _TO_NUMPY and len(call.args) == 1:
            copy = ", copy=True" if function == "numpy.array" else ""
            if not is_cast and names & {*TENSOR_METHODS, "numpy"}:
                change = UNSURE if not is_sure else "" if copy else TRACKED
                return Replacement("to_numpy", "a" + path, copy, change, is_sure)
            is_name = not links and isinstance(array, cst.Name | cst.Attribute)
            if self._has_tensors and is_name and not copy:
                return Replacement("to_numpy", "a", "", UNSURE, keeps_meaning=False)
        is_list = m.matches(value, m.List([m.AtLeastN(m.Element(m.Name()), n=1)]))
        if function in ("torch.as_tensor", "torch.asarray") or (function == "torch.tensor" and is_list):
            options = [self._module.code_for_node(arg).rstrip(", ") for arg in call.args[1:]]
            given = ", ".join(["", 'backend="torch"', *options])
            return Replacement("asarray", "a", given, UNTOUCHED, keeps_meaning=False)
        return None

    def _match_methods(self, node: cst.Call) -> Replacement | None:
        _, every = self._unwind(node)
        if every[-1:] == [Link("tolist", ())] and self._has_tensors:
            root, links, (is_cast, _) = self._read_tail(_descend(node, "v"), "numpy")
            change = "" if links and self._is_tensor(root, links) else UNSURE
            is_sure = not change
            return None if is_cast else Replacement("to_list", "v" * len(links) + "v", "", change, is_sure)
        target = "numpy" if any(link.name == "numpy" for link in every) else "torch"
        root, links, (given, change) = self._read_tail(node, target)
        path = "v" * len(links)
        if any(link.name == "numpy" for link in links):
            is_sure = self._is_tensor(root, links)
            return Replacement("to_numpy", path, given, change if is_sure else UNSURE, is_sure)
        args = [arg for link in links for arg in link.args]
        is_moved = target == "torch" and any(
            m.matches(x, m.Arg(keyword=m.Name("non_blocking"))) for x in args
        )
        return Replacement("to_torch", path, given, change, keeps_meaning=False) if is_moved else None

    def _read_tail(
        self, node: cst.BaseExpression, target: str
    ) -> tuple[cst.BaseExpression, list[Link], tuple[str, str]]:
        """Return the last methods of a chain that are part of an idiom, and what they are called on."""
        _, links = self._unwind(node)
        while True:
            options = self._read(links, target)
            if options:
                return _descend(node, "v" * len(links)), links, options
            links = links[1:]

    def _read(self, links: list[Link], target: str) -> tuple[str, str] | None:
        """Return the options that methods ask for, and what changes; None if one is no part of an idiom."""
        given: dict[str, str] = {}
        change = TRACKED if target == "numpy" else READONLY
        is_array = False
        for name, args in links:
            asked = self._read_link(name, args, target, is_array=is_array)
            if asked is None or given.keys() & asked.keys():
                return None
            is_array = is_array or name == "numpy"
            change = asked.pop("change", change)
            given |= asked
            if asked.get("dtype") in ('"float16"', '"bfloat16"') and name != "astype":
                change = ROUNDED
        if target == "numpy" and "copy" in given and change != ROUNDED:
            change = ""
        return "".join(f", {option}={text}" for option, text in given.items()), change

    def _read_link(
        self, name: str, args: tuple[cst.Arg, ...], target: str, *, is_array: bool
    ) -> dict[str, str] | None:
        if name == "numpy" and target == "numpy" and not is_array:
            return {} if not args or m.matches(args[0], m.Arg(keyword=m.Name("force"))) else None
        if args:
            casts = ("astype",) if is_array else ("to", "type")
            return self._read_cast(args, target, is_array=is_array) if name in casts else None
        if is_array:
            return {"copy": "True"} if name == "copy" else None
        simple: dict[str, dict[str, str]] = {method: {} for method in TENSOR_METHODS}
        simple["clone"] = {"copy": "True"}
        if target == "torch":
            simple["cuda"] = {"device": '"cuda"'}
        return simple.get(name, {"dtype": f'"{DTYPES[name]}"'} if name in DTYPES else None)

    def _read_cast(self, args: tuple[cst.Arg, ...], target: str, *, is_array: bool) -> dict[str, str] | None:
        """Return what `to`, `type` or `astype` asks for: a device, a dtype, or both."""
        asked: dict[str, str] = {}
        for arg in args:
            word = arg.keyword.value if arg.keyword else ""
            dtype = self._dtype_of(arg.value)
            if word == "non_blocking":
                asked["change"] = WAITS
            elif word in ("", "dtype") and dtype:
                asked["dtype"] = f'"{dtype}"'
            elif word in ("", "device") and not is_array and m.matches(arg.value, DEVICE):
                asked["device"] = self._module.code_for_node(arg.value)
            else:
                return None
        if target == "numpy" and "device" in asked and asked.pop("device").strip("\"'") != "cpu":
            return None
        return {**asked, "copy": "True"} if is_array else asked

    def _dtype_of(self, value: cst.BaseExpression) -> str:
        """Return the canonical name of a dtype of torch or NumPy, such as `torch.long`, or nothing."""
        library, _, name = self._name_of(value).rpartition(".")
        return DTYPES.get(name, "") if library in ("torch", "numpy") else ""

    def _is_tensor(self, root: cst.BaseExpression, links: list[Link]) -> bool:
        """Return True if what a chain begins with has methods of tensors, or is made by a call of torch."""
        # Only torch's `numpy` takes `force`.
        before = {link.name for link in takewhile(lambda link: link.name != "numpy" or link.args, links)}
        if before & {*TENSOR_METHODS, "clone"} or (before and self._has_tensors):
            return True
        made: cst.CSTNode = root
        while isinstance(made, cst.Call | cst.Attribute | cst.Subscript) and not self._name_of(made):
            if m.matches(made, m.Attribute(attr=m.Name("shape"))):  # which is no tensor
                return False
            made = made.func if isinstance(made, cst.Call) else made.value
        return self._name_of(made).startswith("torch.")

    def _is_written(self, node: cst.CSTNode, depth: int = 0, follows: int = 2) -> bool:
        """Return True if an array is written to, which is so many levels inside of what stands there."""
        parts, containers, parent = 0, 0, self.get_metadata(PARENT, node)
        while isinstance(parent, PARTS | CONTAINERS):
            if m.matches(parent, m.Attribute(attr=WRITER)) and parts >= depth + containers:
                return True
            containers += isinstance(parent, CONTAINERS)
            parts += isinstance(parent, cst.Attribute | cst.Subscript)
            node, parent = parent, self.get_metadata(PARENT, parent)
        if isinstance(parent, cst.AssignTarget):
            return parts > depth
        if isinstance(parent, cst.AugAssign):
            return parent.target is node and parts >= depth
        depth = max(depth + containers - parts, 0)
        if isinstance(parent, cst.For) and parent.iter is node:
            return follows > 0 and self._is_written_by(parent.target, max(depth - 1, 0), follows - 1)
        if isinstance(parent, cst.Arg):
            return self._is_written_in_call(parent, depth, follows)
        is_written = isinstance(parent, cst.NamedExpr) and self._is_written(parent, depth, follows)
        targets: list[Any] = [*parent.targets] if isinstance(parent, cst.Assign) else [parent]
        names = isinstance(parent, cst.Assign | cst.AnnAssign | cst.NamedExpr) and follows == 2
        return is_written or (names and any(self._is_written_by(x.target, depth, 1) for x in targets))

    def _is_written_in_call(self, arg: cst.Arg, depth: int, follows: int) -> bool:
        """Return True if a function writes to its argument, or if a list that takes it in is written to."""
        call = cst.ensure_type(self.get_metadata(PARENT, arg), cst.Call)
        is_writer = arg is call.args[0] and m.matches(call.func, WRITER | m.Attribute(attr=WRITER))
        if is_writer or m.matches(arg, m.Arg(keyword=m.Name("out"))):
            return depth == 0
        if arg is call.args[0] and self._name_of(call.func) in _SHARERS:
            if call not in self._shared:
                self._shared[call] = False  # `x = torch.from_numpy(x)` leads back here
                self._shared[call] = self._is_written(call, depth)
            return self._shared[call]
        is_kept = follows == 2 and m.matches(call.func, m.Attribute(attr=m.Name("append")))
        return is_kept and self._is_written_by(_descend(call, "v"), depth + 1, 1)

    def _is_written_by(self, target: cst.CSTNode, depth: int, follows: int) -> bool:
        """Return True if an array is written to by what it is assigned to, in any function of the file."""
        if isinstance(target, cst.Tuple | cst.List):
            depth = max(depth - 1, 0)
            return any(self._is_written_by(x.value, depth, follows) for x in target.elements)
        while isinstance(target, cst.Subscript):
            target, depth = target.value, depth + 1
        uses = self._uses.get(self._module.code_for_node(target), ())
        return any(self._is_written(use, depth, follows) for use in uses)

    def _name_of(self, node: cst.CSTNode) -> str:
        """Return the full name of what a module has imported, or nothing."""
        dotted = node
        while isinstance(dotted, cst.Attribute):
            dotted = dotted.value
        if not isinstance(dotted, cst.Name):  # LibCST calls a method of what a function returns by both names
            return ""
        names = self.get_metadata(NAMES, node, set())
        found = {name.name for name in names if name.source.name == "IMPORT"}
        return found.pop() if len(found) == 1 else ""

    def _unwind(self, node: cst.BaseExpression) -> tuple[cst.BaseExpression, list[Link]]:
        links: list[Link] = []
        while (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and not self._name_of(node.func)
        ):
            links.insert(0, Link(node.func.attr.value, tuple(node.args)))
            node = node.func.value
        return node, links


_WORDS = re.compile(
    r"\b(numpy|tolist|asarray|array|as_tensor|tensor|from_numpy|device_put)\(|\bnon_blocking\b"
)
_TO_JAX = ("jax.numpy.asarray", "jax.numpy.array", "jax.device_put")
_TO_NUMPY = ("numpy.asarray", "numpy.array")
_SHARERS = {
    *("torch.from_numpy", "torch.as_tensor", "torch.asarray", "torch.from_dlpack", "numpy.asarray"),
    *("xbridge.to_torch", "xbridge.to_backend", "xbridge.asarray"),
}
"""The functions whose result has the memory of their first argument."""


def _descend(node: cst.CSTNode, path: str) -> Any:
    for turn in path:
        call = cst.ensure_type(node, cst.Call)
        node = call.args[0].value if turn == "a" else cst.ensure_type(call.func, cst.Attribute).value
    return node


def migrate(source: str) -> tuple[list[Idiom], str]:
    """Return the idioms of a module, and the module with those replaced that keep their meaning."""
    if not _WORDS.search(source):  # to parse a module takes a while
        return [], source
    wrapper = metadata.MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    scopes = {scope for scope in wrapper.resolve(SCOPE).values() if scope}
    assigned = [x for scope in scopes for x in scope.assignments["xbridge"]]
    names = {name for x in assigned for name in x.get_qualified_names_for("xbridge")}
    is_shadowed = any((name.name, name.source.name) != ("xbridge", "IMPORT") for name in names)
    finder = Migration(wrapper.module, is_shadowed=is_shadowed)
    module = wrapper.visit(finder)
    context = CodemodContext()
    if any(idiom.keeps_meaning for idiom in finder.found):
        AddImportsVisitor.add_needed_import(context, "xbridge")
    return sorted(finder.found), AddImportsVisitor(context).transform_module(module).code
