"""What the step loop is: declared here, and nowhere else. The rest follows from who calls whom.

Four regions. *Step*: what a CUDA graph holds, or a launch between two of them, eager on a GPU too. *Host*: the CPU's half of the same
step, which no GPU runs: modules of its own, and branches behind `device.type == "cpu"`. *Drain*: what fetches a block of the log, once in
many steps. *Kernel*: compiled code, CUDA's and the scalar functions below it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import NamedTuple

from tests.scanners.house import House
from tests.scanners.syntax import Class, Unit, arguments, is_cpu_kernel, is_cuda_kernel, is_property

STEP, HOST, DRAIN, KERNEL = "step", "host", "drain", "kernel"

ROOTS = {
    "sim/trainer.py:Player.run": STEP,
    "sim/trainer.py:Trainer.step": STEP,
    "sim/trainer.py:Trainer.step_together": STEP,
    "sim/trainer.py:Trainer.look_together": STEP,
    "sim/capture.py:_launcher.launch": STEP,
    "cuda_env/env.py:Env.step": STEP,
    "cuda_env/env.py:Env.observe": STEP,
    "cuda_env/env.py:Env.history": STEP,
    "cuda_env/env.py:Env.assemble": STEP,
    "cuda_env/blocks.py:BlockLog.put": STEP,
    "cuda_env/blocks.py:BlockLog.capture": STEP,
    "policy/select.py:select": STEP,
    "policy/select.py:to_picks": STEP,
    "policy/network.py:NetworkPolicy._think": STEP,
    "cuda_env/blocks.py:BlockLog.fetch": DRAIN,
}
"""Where each region begins. Beside these every function of `cuda_env` and `policy` under `cuda.jit` is a root of *kernel*, and every one
under `kernel_cpu` of *host*: a loop finds some of them by name, where syntax cannot follow."""

HOST_PARTS = ("cuda_env/run_cpu.py:", "cuda_env/blocks_cpu.py:", "cuda_env/kernels_cpu.py:", "policy/memory.py:_CpuRunner.")
"""Beginnings of the names of the CPU's own halves, which a device's step never enters."""

OUTSIDE = {
    "sim/capture.py:capture": "makes the graphs, once, before the first step",
    "cuda_env/env.py:Env._refuse": "raises, and so ends the loop",
    "cuda_env/env.py:Env.check": "is asked once a block, and has a finding of its own where it is asked",
    "policy/launch.py:Launcher.bind": "binds a kernel to its arrays, once, when a part is made; its launch is in the loop",
    "policy/select_kernel.py:fused_select": "binds likewise, in the first warm-up step; its launch is in the loop",
    "sim/peers.py:Peers._lost": "says why a process is gone, and so ends the run",
    "policy/select_kernel.py:facts": "makes the buffers of it",
}
"""Functions that the loop names and does not run each step, each with the reason: what they call is not followed."""

READ_ONLY = ("market", "plan", "params", "starts", "features", "support")
"""Tables that are made once and that a step reads: no name in the loop that stands for one of them may be written through."""


class Reached(NamedTuple):
    """A function of the loop, in a region. Of a *step* function the nodes of its host branches are left out."""

    unit: Unit
    region: str

    def nodes(self) -> Iterator[ast.AST]:
        """The nodes that run in this region, without those of functions inside."""
        return (node for node, region in _walk(self.unit, self.region) if region == self.region)


def reached(house: House) -> list[Reached]:
    """Everything that the loop runs, by file and name. Raises KeyError for a root or an outsider that is not in the house any more."""
    units = {unit.key: unit for module in house.modules.values() for unit in module.units}
    if missing := sorted(key for key in (*ROOTS, *OUTSIDE) if key not in units):
        raise KeyError(f"the step loop's declaration names what is not there: {', '.join(missing)}")
    waiting = [(units[key], region) for key, region in ROOTS.items()]
    for unit in units.values():
        if unit.file.startswith(("cuda_env/", "policy/")):
            waiting += [(unit, KERNEL)] * is_cuda_kernel(unit) + [(unit, HOST)] * is_cpu_kernel(unit)
    return follow(house, waiting)


def follow(house: House, roots: list[tuple[Unit, str]]) -> list[Reached]:
    """What is reached from some functions."""
    waiting, found = list(roots), {}
    while waiting:
        unit, region = waiting.pop()
        if region != KERNEL and is_host(unit):
            region = HOST
        if region == STEP and is_cuda_kernel(unit):
            region = KERNEL
        if (unit.key, region) in found or unit.key in OUTSIDE:
            continue
        found[unit.key, region] = Reached(unit, region)
        for node, inside in _walk(unit, region):
            waiting += [(callee, inside) for callee in callees(house, unit, node)]
    return [found[key] for key in sorted(found)]


@functools.cache
def is_host(unit: Unit) -> bool:
    """Whether a function is the CPU's own: by its name, or because it is made in a branch that is."""
    if unit.key.startswith(HOST_PARTS):
        return True
    if unit.parent is None:
        return False
    return is_host(unit.parent) or any(node is unit.node and region == HOST for node, region in _walk(unit.parent, STEP))


def callees(house: House, unit: Unit, node: ast.AST) -> list[Unit]:
    """The functions that a node runs, or hands over to be run."""
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        return [one for one in house.module(unit).units if one.node is node]
    if isinstance(node, ast.Call):
        handed = [one for part in (*node.args, *(k.value for k in node.keywords)) for one in _handed(house, unit, part)]
        objects = house.types(node.func, unit)
        called = [of.methods[name] for of in objects for name in ("__call__", "forward") if name in of.methods]
        return [*house.named_callees(node.func, unit), *called, *_built(house, unit, node), *handed]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        owners = [one for of in house.types(node.value, unit) for one in house.family(of)]
        return [of.methods[node.attr] for of in owners if node.attr in of.methods and is_property(of.methods[node.attr])]
    return []


def _built(house: House, unit: Unit, call: ast.Call) -> list[Unit]:
    """The call of a class with fields alone runs nothing; of any other, its `__init__`."""
    made: list[Class] = house.constructed(call.func, unit)
    return [of.methods["__init__"] for of in made if "__init__" in of.methods]


def _handed(house: House, unit: Unit, part: ast.expr) -> list[Unit]:
    """The function that an argument names, if it is one."""
    if not isinstance(part, ast.Name | ast.Attribute):
        return []
    if isinstance(part, ast.Name) and any(argument.arg == part.id for argument in arguments(unit.node)):
        return []
    if isinstance(part, ast.Attribute) and (objects := house.types(part.value, unit)):  # of any other object an attribute is a value
        return [one.methods[part.attr] for of in objects for one in house.family(of) if part.attr in one.methods]
    if isinstance(part, ast.Attribute) and not (isinstance(part.value, ast.Name) and part.value.id in house.module(unit).modules):
        return []
    return house.named_callees(part, unit)


# --- branches that one device alone runs ---


def _device_of(test: ast.expr) -> str | None:
    """ "cuda" or "cpu" where a condition says on which device the branch behind it runs; None where it says nothing of it."""
    if isinstance(test, ast.Attribute) and test.attr == "is_cuda":
        return "cuda"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return {"cuda": "cpu", "cpu": "cuda", None: None}[_device_of(test.operand)]
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
        named = test.comparators[0].value
        spelled = ast.unparse(test.left)
        if named in ("cuda", "cpu") and spelled.endswith((".type", "device")):
            same = isinstance(test.ops[0], ast.Eq)
            return named if same else {"cuda": "cpu", "cpu": "cuda"}[named]
    return None


def _walk(unit: Unit, region: str) -> Iterator[tuple[ast.AST, str]]:
    """Each node of a function with the region that runs it: its own, or *host* in a branch that is the CPU's. A function inside is given as
    one node."""
    node = unit.node
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    if region != STEP:
        yield from ((inner, region) for inner in _flat(body))
        return
    yield from _in_step(body)


def _in_step(body: list) -> Iterator[tuple[ast.AST, str]]:
    for place, statement in enumerate(body):
        of = _device_of(statement.test) if isinstance(statement, ast.If | ast.IfExp) else None
        if of is None:
            if isinstance(statement, ast.FunctionDef | ast.Lambda):
                yield statement, STEP
            else:
                yield statement, STEP
                yield from _in_step(list(ast.iter_child_nodes(statement)))
            continue
        yield statement, STEP
        then, other = (part if isinstance(part, list) else [part] for part in (statement.body, statement.orelse))
        on_cpu, on_cuda = (then, other) if of == "cpu" else (other, then)
        yield from _in_step(on_cuda)
        yield from ((node, HOST) for node in _flat(on_cpu))
        if isinstance(statement, ast.If) and _leaves(then):  # what follows is the other device's
            rest = body[place + 1 :]
            yield from _in_step(rest) if of == "cpu" else ((node, HOST) for node in _flat(rest))
            return


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue)


def _flat(body: list) -> Iterator[ast.AST]:
    """Every node under some, where a function inside is one node."""
    waiting = list(body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
