"""A source file by its syntax: its functions and classes, what its names stand for, and small questions about nodes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import NamedTuple

Function = ast.FunctionDef | ast.Lambda


class Unit(NamedTuple):
    """A function or lambda."""

    file: str
    name: str
    """Qualified: `Learner.update`, `kernel.fused`, `Optimiser.__init__.<lambda 1>`."""
    node: Function
    owner: str | None
    """The class whose method it is, or in whose method it stands."""
    parent: Unit | None

    @property
    def key(self) -> str:
        return f"{self.file}:{self.name}"


class Class(NamedTuple):
    file: str
    node: ast.ClassDef
    methods: dict[str, Unit]

    @property
    def name(self) -> str:
        return self.node.name


class Module:
    """One file."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.lines = file, text.splitlines()
        self.tree = ast.parse(text, filename=file)
        self.functions: dict[str, Unit] = {}
        self.classes: dict[str, Class] = {}
        self.units: list[Unit] = []
        self.modules: dict[str, str] = {}  # alias -> file
        self.names: dict[str, tuple[str, str]] = {}  # alias -> (file, name)
        self.inside: dict[str, list[Unit]] = {}  # name of a function -> those defined in it
        self._collect(self.tree.body, "", None, None)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.modules[alias.asname or alias.name] = alias.name.replace(".", "/") + ".py"
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    # `from cuda_env import state` and `from cuda_env.state import CLOCK` look alike: both are kept, and one leads nowhere.
                    self.modules[alias.asname or alias.name] = f"{node.module.replace('.', '/')}/{alias.name}.py"
                    self.names[alias.asname or alias.name] = (node.module.replace(".", "/") + ".py", alias.name)

    def _collect(self, body: list[ast.stmt], prefix: str, owner: str | None, parent: Unit | None) -> None:
        for statement in body:
            self._visit(statement, prefix, owner, parent)

    def _lambdas(self, prefix: str) -> int:
        """The number of the coming lambda of a function."""
        return 1 + sum(unit.name.startswith(f"{prefix}<lambda") for unit in self.units)

    def _visit(self, node: ast.AST, prefix: str, owner: str | None, parent: Unit | None) -> None:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            name = prefix + (node.name if isinstance(node, ast.FunctionDef) else f"<lambda {self._lambdas(prefix)}>")
            unit = Unit(self.file, name, node, owner, parent)
            self.units.append(unit)
            if parent is not None:
                self.inside.setdefault(parent.name, []).append(unit)
            if isinstance(node, ast.FunctionDef):
                if parent is None and owner is None:
                    self.functions[node.name] = unit
                elif parent is None and owner is not None:
                    self.classes[owner].methods[node.name] = unit
            for child in ast.iter_child_nodes(node):
                self._visit(child, f"{name}.", owner, unit)
            return
        if isinstance(node, ast.ClassDef) and parent is None:
            self.classes[node.name] = Class(self.file, node, {})
            self._collect(node.body, f"{node.name}.", node.name, None)
            return
        for child in ast.iter_child_nodes(node):
            self._visit(child, prefix, owner, parent)


def arguments(node: Function) -> list[ast.arg]:
    of = node.args
    return [*of.posonlyargs, *of.args, *of.kwonlyargs, *([of.vararg] if of.vararg else []), *([of.kwarg] if of.kwarg else [])]


@functools.cache
def local_values(function: Function) -> dict[str, list[tuple[ast.expr | None, ast.expr | None]]]:
    """(value, annotation) of each assignment to a name in a function itself."""
    found: dict[str, list[tuple[ast.expr | None, ast.expr | None]]] = {}
    for node in own_nodes(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append((node.value, node.annotation))
        for place, value in _pairs(node):
            if isinstance(place, ast.Name):
                found.setdefault(place.id, []).append((value, None))
    return found


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(place, value) of an assignment; of a tuple, element by element where the value is one too."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if not isinstance(target, ast.Tuple):
            yield target, node.value  # type: ignore[attr-defined]
            continue
        value = node.value  # type: ignore[attr-defined]
        split = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
        yield from zip(target.elts, value.elts if split else [value] * len(target.elts), strict=True)


@functools.cache
def assignments(unit: Unit) -> list[tuple[ast.expr, ast.expr]]:
    """(place, value) of every assignment in a function and those inside it."""
    found: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(unit.node):
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            found.append((node.target, node.value))
        found += _pairs(node)
    return found


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Everything inside a function but what stands in functions inside it."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def decorators(unit: Unit) -> list[str]:
    return [ast.unparse(node) for node in unit.node.decorator_list] if isinstance(unit.node, ast.FunctionDef) else []


def returns_tensor(unit: Unit) -> bool:
    """Whether a function declares that it returns a tensor."""
    return isinstance(unit.node, ast.FunctionDef) and unit.node.returns is not None and ast.unparse(unit.node.returns) == "torch.Tensor"


def is_property(unit: Unit) -> bool:
    return "property" in decorators(unit)


def is_cuda_kernel(unit: Unit) -> bool:
    """A kernel, or a device function of one."""
    return any(name == "cuda.jit" or name.startswith("cuda.jit(") for name in decorators(unit))


def is_cpu_kernel(unit: Unit) -> bool:
    return any(name.startswith("kernel_cpu") for name in decorators(unit))


def is_self(node: ast.AST) -> bool:
    """Whether a node is the name `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


def once(found: list[Class]) -> list[Class]:
    """The classes without repetitions, in order."""
    return list({(of.file, of.name): of for of in found}.values())
