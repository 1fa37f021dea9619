"""The house's sources as the scanners read them: functions, classes, what a name stands for, and what type an expression has.

By syntax alone: nothing is imported. What syntax cannot tell is answered generously: a method of an object of unknown type is every method
of that name, and a function that is handed over counts as called.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from tests.scanners.syntax import (
    Class,
    Module,
    Unit,
    arguments,
    assignments,
    is_property,
    is_self,
    local_values,
    once,
    own_nodes,
    returns_tensor,
)

ROOMS = ("lob", "cuda_env", "policy", "sim")
"""Rooms whose code can run inside a step."""

NOT_TENSORS = frozenset({
    "device", "Generator", "no_grad", "enable_grad", "is_tensor", "finfo", "iinfo", "autocast", "compile", "dtype", "Size", "save", "load",
    "is_floating_point", "equal", "allclose", "get_num_threads", "set_num_threads", "inference_mode", "is_grad_enabled",
})  # fmt: skip
"""Functions of `torch` whose result is no tensor; `equal` and `allclose` are reads of their own (`rules.READS`)."""

NOT_TENSOR_METHODS = frozenset({
    "numel", "dim", "size", "stride", "data_ptr", "element_size", "storage_offset", "is_contiguous", "untyped_storage", "get_device",
    "item", "tolist", "numpy", "nelement", "is_floating_point", "is_pinned", "nbytes", "ndimension",
})  # fmt: skip


class House:
    """All modules, by file."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.modules = {file: Module(file, text) for file, text in sources.items()}
        self._busy: set[tuple[int, str]] = set()
        self._families: dict[str, list[Class]] = {}
        self._assigned: dict[tuple[str, str], list[tuple[ast.expr, Unit]]] = {}

    @cached_property
    def methods(self) -> dict[str, list[Unit]]:
        """Every method of every class, by its bare name."""
        found: dict[str, list[Unit]] = {}
        for module in self.modules.values():
            for of in module.classes.values():
                for name, unit in of.methods.items():
                    found.setdefault(name, []).append(unit)
        return found

    def module(self, unit: Unit) -> Module:
        return self.modules[unit.file]

    def function(self, file: str, name: str) -> Unit | None:
        return self.modules[file].functions.get(name) if file in self.modules else None

    def class_(self, file: str, name: str) -> Class | None:
        """A class by the name that it has in a file, its own or an imported one's."""
        if file not in self.modules:
            return None
        module = self.modules[file]
        if name in module.classes:
            return module.classes[name]
        if name in module.names:
            other, original = module.names[name]
            return self.modules[other].classes.get(original) if other in self.modules else None
        return None

    def family(self, of: Class) -> list[Class]:
        """A class, what it derives from, and what derives from it: a method that is called on one may be any of theirs."""
        mark = f"{of.file}:{of.name}"
        if mark not in self._families:
            self._families[mark] = self._family(of)
        return self._families[mark]

    def _family(self, of: Class) -> list[Class]:
        found, waiting = [of], [of]
        while waiting:
            one = waiting.pop()
            above = [self.class_(one.file, base.id) for base in one.node.bases if isinstance(base, ast.Name)]
            below = [
                other
                for module in self.modules.values()
                for other in module.classes.values()
                if any(isinstance(base, ast.Name) and self.class_(other.file, base.id) is one for base in other.node.bases)
            ]
            for other in (*above, *below):
                if other is not None and other not in found:
                    found.append(other)
                    waiting.append(other)
        return found

    # --- what an attribute holds ---

    def assigned(self, of: Class, attribute: str) -> list[tuple[ast.expr, Unit]]:
        """Each expression that is put into `self.attribute` by the class's family, with the method that does."""
        if (mark := (f"{of.file}:{of.name}", attribute)) not in self._assigned:
            methods = [unit for one in self.family(of) for unit in one.methods.values()]
            self._assigned[mark] = [
                (value, unit)
                for unit in methods
                for place, value in assignments(unit)
                if isinstance(place, ast.Attribute) and is_self(place.value) and place.attr == attribute
            ]
        return self._assigned[mark]

    def annotation(self, of: Class, attribute: str) -> tuple[ast.expr, Class] | None:
        """The declared type of a field, and the class that declares it."""
        for one in self.family(of):
            for node in one.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == attribute:
                    return node.annotation, one
        return None

    def declared(self, of: Class, attribute: str) -> str:
        """The comment behind a field's declaration, where the house states element type and shape: `int64[lanes]`."""
        for one in self.family(of):
            for node in one.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == attribute:
                    return self.modules[one.file].lines[node.lineno - 1].partition("#")[2].strip()
        return ""

    # --- types ---

    def types(self, node: ast.expr, unit: Unit) -> list[Class]:
        """The house's classes that an expression in a function may be of; empty when none is known."""
        mark = (id(node), unit.key)
        if mark in self._busy:
            return []
        self._busy.add(mark)
        try:
            return self._types(node, unit)
        finally:
            self._busy.discard(mark)

    def _types(self, node: ast.expr, unit: Unit) -> list[Class]:
        if isinstance(node, ast.Name):
            if is_self(node) and unit.owner is not None:
                of = self.class_(unit.file, unit.owner)
                return [of] if of else []
            return self._types_of_name(node.id, unit)
        if isinstance(node, ast.Attribute):
            found = []
            for of in self.types(node.value, unit):
                declared = self.annotation(of, node.attr)
                if declared is not None:
                    found += self.named(declared[0], declared[1].file)
                for value, where in self.assigned(of, node.attr):
                    found += self.types(value, where)
                for one in self.family(of):
                    if node.attr in one.methods and is_property(one.methods[node.attr]):
                        found += self.returned(one.methods[node.attr])
            return once(found)
        if isinstance(node, ast.IfExp):
            return once([*self.types(node.body, unit), *self.types(node.orelse, unit)])
        if isinstance(node, ast.Call):
            made = self.constructed(node.func, unit)
            return made or once([of for callee in self.named_callees(node.func, unit) for of in self.returned(callee)])
        return []

    def _types_of_name(self, name: str, unit: Unit) -> list[Class]:
        at: Unit | None = unit
        while at is not None:
            for argument in arguments(at.node):
                if argument.arg == name:
                    return self.named(argument.annotation, at.file) if argument.annotation else []
            found = []
            for value, annotation in local_values(at.node).get(name, ()):
                found += self.named(annotation, at.file) if annotation else self.types(value, at) if value else []
            if found:
                return once(found)
            at = at.parent
        return []

    def named(self, annotation: ast.expr, file: str) -> list[Class]:
        """The house's classes that an annotation names, however deep."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        found = [self.class_(file, node.id) for node in ast.walk(annotation) if isinstance(node, ast.Name)]
        return once([of for of in found if of is not None])

    def constructed(self, func: ast.expr, unit: Unit) -> list[Class]:
        """The classes that a call makes an object of."""
        if isinstance(func, ast.Name):
            of = self.class_(unit.file, func.id)
            return [of] if of else []
        if isinstance(func, ast.IfExp):
            return [*self.constructed(func.body, unit), *self.constructed(func.orelse, unit)]
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
            file = self.module(unit).modules.get(func.value.id, "")
            of = self.modules[file].classes.get(func.attr) if file in self.modules else None
            return [of] if of else []
        return []

    def returned(self, unit: Unit) -> list[Class]:
        """The house's classes that a function returns: as declared, or as its return statements say."""
        if isinstance(unit.node, ast.Lambda):
            return self.types(unit.node.body, unit)
        if unit.node.returns is not None and (named := self.named(unit.node.returns, unit.file)):
            return named
        found = [self.types(node.value, unit) for node in own_nodes(unit.node) if isinstance(node, ast.Return) and node.value]
        return once([of for each in found for of in each])

    # --- calls ---

    def named_callees(self, func: ast.expr, unit: Unit) -> list[Unit]:
        """The functions that an expression may stand for; of a class, what makes or calls it."""
        module = self.module(unit)
        if isinstance(func, ast.Name):
            at: Unit | None = unit
            while at is not None:  # a function defined in this one or around it
                nested = [one for one in module.inside.get(at.name, ()) if one.name.rpartition(".")[2] == func.id]
                if nested:
                    return nested
                at = at.parent
            if func.id in module.functions:
                return [module.functions[func.id]]
            if func.id in module.names and (found := self.function(*module.names[func.id])):
                return [found]
            of = self.class_(unit.file, func.id)
            return [of.methods["__init__"]] if of and "__init__" in of.methods else []
        if isinstance(func, ast.Attribute):
            if isinstance(func.value, ast.Name) and (file := module.modules.get(func.value.id)) in self.modules:
                found = self.modules[file].functions.get(func.attr)
                of = self.modules[file].classes.get(func.attr)
                return [found] if found else [of.methods["__init__"]] if of and "__init__" in of.methods else []
            if func.attr == "py_func":
                return self.named_callees(func.value, unit)
            if self._is_foreign(func.value, unit):
                return []
            known = self.types(func.value, unit)
            found_units: list[Unit] = []
            for of in known:
                for one in self.family(of):
                    if func.attr in one.methods:
                        found_units.append(one.methods[func.attr])
                for value, where in self.assigned(of, func.attr):
                    found_units += self.held(value, where)
            if found_units or known:
                return list(dict.fromkeys(found_units))
            return [] if self.is_tensor(func.value, unit) else self.methods.get(func.attr, [])
        return []

    def _is_foreign(self, node: ast.expr, unit: Unit) -> bool:
        """Whether an expression begins at a module that is not the house's: `torch.cuda`, `np.random`, `cuda.atomic`."""
        while isinstance(node, ast.Attribute | ast.Call):
            node = node.value if isinstance(node, ast.Attribute) else node.func
        if not isinstance(node, ast.Name) or any(argument.arg == node.id for argument in arguments(unit.node)):
            return isinstance(node, ast.Constant | ast.JoinedStr)
        module = self.module(unit)
        return node.id == "cuda" or (node.id in module.modules and module.modules[node.id] not in self.modules)

    def held(self, value: ast.expr, unit: Unit) -> list[Unit]:
        """What is called when a value that was kept is: a lambda, a function, or what a function made and gave back."""
        module = self.module(unit)
        if isinstance(value, ast.Lambda):
            return [one for one in module.units if one.node is value]
        if isinstance(value, ast.IfExp):
            return [*self.held(value.body, unit), *self.held(value.orelse, unit)]
        if isinstance(value, ast.Name | ast.Attribute):
            return self.named_callees(value, unit)
        if isinstance(value, ast.Call):
            makers = [] if self.constructed(value.func, unit) else self.named_callees(value.func, unit)
            made = [one for maker in makers for one in self.module(maker).inside.get(maker.name, ())]
            called = [of.methods["__call__"] for of in self.types(value, unit) if "__call__" in of.methods]
            return [*made, *called]
        return []

    # --- tensors ---

    def is_tensor(self, node: ast.expr, unit: Unit) -> bool:
        """Whether an expression is known to be a torch tensor."""
        mark = (id(node), f"tensor {unit.key}")
        if mark in self._busy:
            return False
        self._busy.add(mark)
        try:
            return self._is_tensor(node, unit)
        finally:
            self._busy.discard(mark)

    def _is_tensor(self, node: ast.expr, unit: Unit) -> bool:
        if isinstance(node, ast.Name):
            return self._name_is_tensor(node.id, unit)
        if isinstance(node, ast.Call):
            func = node.func
            if isinstance(func, ast.Attribute):
                if isinstance(func.value, ast.Name) and func.value.id == "torch":
                    return func.attr not in NOT_TENSORS
                if self.is_tensor(func.value, unit):
                    return func.attr not in NOT_TENSOR_METHODS
            callees = self.named_callees(func, unit)
            return bool(callees) and all(returns_tensor(one) for one in callees)
        if isinstance(node, ast.Attribute):
            if self.is_tensor(node.value, unit):
                return node.attr in ("T", "mT", "grad", "data", "real")
            for of in self.types(node.value, unit):
                declared = self.annotation(of, node.attr)
                if declared is not None and ast.unparse(declared[0]) == "torch.Tensor":
                    return True
                if any(self.is_tensor(value, where) for value, where in self.assigned(of, node.attr)):
                    return True
                for one in self.family(of):
                    method = one.methods.get(node.attr)
                    if method is not None and is_property(method) and returns_tensor(method):
                        return True
            return False
        if isinstance(node, ast.BinOp):
            return self.is_tensor(node.left, unit) or self.is_tensor(node.right, unit)
        if isinstance(node, ast.UnaryOp):
            return not isinstance(node.op, ast.Not) and self.is_tensor(node.operand, unit)
        if isinstance(node, ast.Compare):
            by_value = not any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops)
            return by_value and any(self.is_tensor(part, unit) for part in (node.left, *node.comparators))
        if isinstance(node, ast.Subscript):
            return self.is_tensor(node.value, unit)
        if isinstance(node, ast.IfExp):
            return self.is_tensor(node.body, unit) or self.is_tensor(node.orelse, unit)
        return False

    def _name_is_tensor(self, name: str, unit: Unit) -> bool:
        at: Unit | None = unit
        while at is not None:
            for argument in arguments(at.node):
                if argument.arg == name:
                    return argument.annotation is not None and ast.unparse(argument.annotation).strip("'\"") in (
                        "torch.Tensor",
                        "torch.Tensor | None",
                    )
            values = [value for value, _ in local_values(at.node).get(name, ()) if value is not None]
            if values:
                return any(self.is_tensor(value, at) for value in values)
            at = at.parent
        return False


def read(root: Path) -> House:
    """The house of a checkout."""
    return House({path.relative_to(root).as_posix(): path.read_text() for room in ROOMS for path in sorted((root / room).glob("*.py"))})
