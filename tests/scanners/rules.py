"""The rules of the step loop, each a scan over the functions that `step_loop.reached` gives. docs/performance.md says why each costs.

Five carry the names of the seeds' categories: PINMEM, ROMEM, LOCKHOT, BORROW, CPURO. Three are ours: ATOMIC (sums whose order the hardware
chooses), SIGNED (kernels compiled or launched lazily, types that mix badly) and RANDOM (draws that no counter names).
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.scanners.house import House
from tests.scanners.step_loop import DRAIN, HOST, KERNEL, READ_ONLY, STEP, Reached
from tests.scanners.syntax import Unit, arguments, assignments, is_cuda_kernel


class Finding(NamedTuple):
    """A place where a rule is broken."""

    rule: str
    file: str
    line: int
    function: str
    region: str
    what: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


class Rule(NamedTuple):
    """`severity` is what a breach costs (5: each step waits or differs; 3: a run or a machine does; 1: it might), `effort` what a remedy
    takes (1: a line, 3: a function)."""

    name: str
    forbids: str
    severity: int
    effort: int
    remedy: str
    scan: Callable[[House, Reached], Iterator[tuple[ast.AST, str]]]


IMPACT = {STEP: 5, KERNEL: 5, HOST: 3, DRAIN: 3}
"""How often the place is passed: each step of a device, each step of the CPU or once a block."""


def score(finding: Finding) -> float:
    """severity x impact / effort, as the seeds' scoreboard: 25.0 for a breach of the gravest kind in the step that one line mends."""
    rule = BY_NAME[finding.rule]
    return rule.severity * IMPACT[finding.region] / rule.effort


def scan(house: House, loop: list[Reached]) -> list[Finding]:
    """What every rule finds, in the order of files and lines; of a place that several regions pass, in the one that passes it most."""
    found: dict[tuple[str, str, int, str], Finding] = {}
    for rule in RULES:
        for one in loop:
            for node, what in rule.scan(house, one):
                line: int = node.lineno  # type: ignore[attr-defined]
                key = (one.unit.file, rule.name, line, what)
                if key not in found or IMPACT[found[key].region] < IMPACT[one.region]:
                    found[key] = Finding(rule.name, one.unit.file, line, one.unit.name, one.region, what)
    return sorted(found.values(), key=lambda finding: (finding.file, finding.line, finding.rule, finding.what))


# --- the scans: (node, what was found there) ---


def _method(node: ast.AST) -> str:
    """The name of the method that a node calls, or ''."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _spelled(node: ast.AST) -> str:
    return ast.unparse(node)


def _told(node: ast.AST) -> str:
    text = _spelled(node)
    return text if len(text) <= 110 else f"{text[:107]}..."


PAGEABLE = ("torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.asarray", "np.asarray", "np.array")


def pinmem(house: House, one: Reached) -> Iterator[tuple[ast.AST, str]]:
    """Copies between host and device that go through pageable memory: the driver stages them, and the host waits."""
    if one.region not in (STEP, DRAIN):
        return
    for node in one.nodes():
        if not isinstance(node, ast.Call):
            continue
        name, keywords = _spelled(node.func), {keyword.arg: keyword.value for keyword in node.keywords}
        if name in PAGEABLE and (one.region == STEP or name.startswith("torch.")):
            yield node, f"{_told(node)} takes host values to the device through pageable memory"
        elif _method(node) in ("cuda", "cpu"):
            yield node, f"{_told(node)} copies through pageable memory"
        elif _method(node) == "to" and _names_a_device(node):
            yield node, f"{_told(node)} copies through pageable memory where the device is another one"
        elif one.region == DRAIN and name in ("torch.empty", "torch.zeros") and "device" not in keywords and "pin_memory" not in keywords:
            yield node, f"{_told(node)} is a pageable target"
        elif one.region == DRAIN and _method(node) == "copy_" and "non_blocking" not in keywords:
            yield node, f"{_told(node)} waits for its copy"


def _names_a_device(call: ast.Call) -> bool:
    for part in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            return True
        if isinstance(part, ast.Name | ast.Attribute) and _spelled(part).split(".")[-1] in ("device", "cpu", "cuda"):
            return True
    return False


def romem(house: House, one: Reached) -> Iterator[tuple[ast.AST, str]]:
    """Writes through a name that stands for a read-only table, and read-only marks taken off."""
    frozen = frozen_names(house, one.unit)
    for node in one.nodes():
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and _spelled(node.func).startswith("cuda.atomic.") and node.args:
            targets = [node.args[0]]
        elif _method(node).endswith("_") and not _method(node).startswith("_"):
            targets = [node.func.value]  # type: ignore[attr-defined]
        for target in targets:
            written = isinstance(target, ast.Subscript) or not isinstance(node, ast.Assign)
            if written and (table := _table_of(target, frozen)) is not None:
                yield node, f"{_told(node)} writes to the read-only table {table}"
        unmarked = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _spelled(node).endswith(".flags.writeable")
        if unmarked or _method(node) == "setflags":
            yield node, f"{_told(node)} takes a read-only mark off"


def frozen_names(house: House, unit: Unit) -> frozenset[str]:
    """Names in a function that stand for a read-only table: by name, or because a caller hands one over under another name."""
    return frozenset(READ_ONLY) | _handed_tables(house).get(unit.key, frozenset())


@functools.cache
def _handed_tables(house: House) -> dict[str, frozenset[str]]:
    """For each function, its parameters that some caller gives a read-only table."""
    found: dict[str, set[str]] = {}
    units = [unit for module in house.modules.values() for unit in module.units]
    moved = True
    while moved:
        moved = False
        for unit in units:
            frozen = {*READ_ONLY, *found.get(unit.key, ())}
            for node in ast.walk(unit.node):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
                    continue
                given = [i for i, part in enumerate(node.args) if not isinstance(part, ast.Starred) and _is_table(part, frozen)]
                for callee in house.named_callees(node.func, unit) if given else ():
                    names = [argument.arg for argument in arguments(callee.node)]
                    fresh = {names[i] for i in given if i < len(names)} - found.get(callee.key, set()) - set(READ_ONLY)
                    if fresh:
                        found.setdefault(callee.key, set()).update(fresh)
                        moved = True
    return {key: frozenset(names) for key, names in found.items()}


def _is_table(node: ast.expr, frozen: set[str]) -> bool:
    return (isinstance(node, ast.Name) and node.id in frozen) or (isinstance(node, ast.Attribute) and _table_of(node, frozen) is not None)


def _table_of(node: ast.expr, frozen: frozenset[str] | set[str]) -> str | None:
    """The read-only table that an expression reaches into: `w.plan[row, 3]`, `market.bid_ticks[e]`; of `self` any part."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        if isinstance(node, ast.Attribute) and node.attr in frozen and isinstance(node.value, ast.Name | ast.Attribute):
            return node.attr
        node = node.value
    return node.id if isinstance(node, ast.Name) and node.id in frozen else None


LOCKS = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier", "Queue", "SimpleQueue")
SPEAKS = ("print", "open", "input", "breakpoint")
WAITS_ON_OS = ("time.sleep", "os.fsync", "os.write", "os.open", "os.replace", "warnings.warn", "subprocess.run", "subprocess.Popen")
FILE_METHODS = ("write_text", "write_bytes", "read_text", "read_bytes", "acquire", "flush", "mkdir", "unlink")
LOGGERS = ("logging", "logger", "log_", "_logger", "LOGGER")


def lockhot(house: House, one: Reached) -> Iterator[tuple[ast.AST, str]]:
    """Locks, files and prints."""
    for node in one.nodes():
        if isinstance(node, ast.With):
            for item in node.items:
                if "lock" in _spelled(item.context_expr).lower().rpartition(".")[2]:
                    yield node, f"with {_told(item.context_expr)} waits for a lock"
        if not isinstance(node, ast.Call):
            continue
        name = _spelled(node.func)
        if name in SPEAKS:
            yield node, f"{_told(node)} speaks to the outside"
        elif name.rpartition(".")[2] in LOCKS and name.split(".")[0] in ("threading", "multiprocessing", "queue", "asyncio", *LOCKS):
            yield node, f"{_told(node)} makes a lock"
        elif name in WAITS_ON_OS or name.split(".")[0] in LOGGERS or _method(node) in FILE_METHODS:
            yield node, f"{_told(node)} waits for the operating system"
        elif name in ("cuda.atomic.cas", "cuda.atomic.exch", "cuda.atomic.compare_and_swap"):
            yield node, f"{_told(node)} is what a lock on the device is made of"


WRAPS = (
    "as_cuda_array",
    "from_dlpack",
    "as_device",
    "as_numpy",
    "external_stream",
    "_wrap",
    "wrap",
    "frombuffer",
    "from_cuda_array_interface",
)


def borrow(house: House, one: Reached) -> Iterator[tuple[ast.AST, str]]:
    """Buffers seen anew in the loop: arrays wrapped (23 us each), and the same bytes read as another type."""
    if one.region == KERNEL:
        return
    for node in one.nodes():
        if not isinstance(node, ast.Call):
            continue
        name = _spelled(node.func).rpartition(".")[2]
        if name in WRAPS:
            yield node, f"{_told(node)} wraps an array anew"
        elif name == "view" and node.args and _spelled(node.args[0]).startswith(("torch.", "np.")):
            yield node, f"{_told(node)} reads the same bytes as another type"


READS = (
    "torch.equal",
    "torch.allclose",
    "torch.nonzero",
    "torch.masked_select",
    "torch.unique",
    "torch.unique_consecutive",
    "torch.argwhere",
)
READ_METHODS = ("item", "tolist", "nonzero", "masked_select", "unique", "is_nonzero", "equal", "argwhere")
HOST_READS = ("cpu", "numpy")
CASTS = ("bool", "int", "float", "complex", "str", "range", "min", "max", "sorted", "list", "tuple")


def cpuro(house: House, one: Reached) -> Iterator[tuple[ast.AST, str]]:
    """The host reads, or waits for, what lies on the device."""
    if one.region not in (STEP, DRAIN):
        return
    for node in one.nodes():
        if isinstance(node, ast.Call):
            name, method = _spelled(node.func), _method(node)
            if name in READS or method in READ_METHODS:
                if one.region == STEP or name.startswith("torch."):
                    yield node, f"{_told(node)} reads the device"
            elif method in HOST_READS and one.region == STEP:
                yield node, f"{_told(node)} reads the device"
            elif method == "synchronize":
                yield node, f"{_told(node)} waits for the device"
            elif method == "check" and one.region == DRAIN:
                yield node, f"{_told(node)} reads the device's faults"
            elif (name == "torch.where" and len(node.args) == 1) or method == "repeat_interleave":
                yield node, f"{_told(node)} has as many results as the device says"
            elif name in CASTS and any(house.is_tensor(part, one.unit) for part in node.args):
                yield node, f"{_told(node)} reads a tensor"
        elif isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert) and house.is_tensor(node.test, one.unit):
            yield node, f"a branch on the tensor {_told(node.test)}"
        elif any(house.is_tensor(part, one.unit) for part in _asked(node)):
            yield node, f"{_told(node)} asks a tensor whether it is true"
        elif isinstance(node, ast.FormattedValue) and house.is_tensor(node.value, one.unit):
            yield node, f"{{{_told(node.value)}}} prints a tensor"
        elif isinstance(node, ast.Subscript) and _is_mask(house, node.slice, one.unit) and house.is_tensor(node.value, one.unit):
            yield node, f"{_told(node)} has as many rows as a mask says"


def _asked(node: ast.AST) -> list[ast.expr]:
    """What `and`, `or` and `not` ask for its truth."""
    if isinstance(node, ast.BoolOp):
        return node.values
    return [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []


def _is_mask(house: House, index: ast.expr, unit: Unit) -> bool:
    """Whether an index is a boolean tensor: a comparison, or comparisons joined, inverted or declared so."""
    if isinstance(index, ast.Tuple):
        return any(_is_mask(house, part, unit) for part in index.elts)
    if isinstance(index, ast.Compare):
        return house.is_tensor(index, unit)
    if isinstance(index, ast.BinOp) and isinstance(index.op, ast.BitAnd | ast.BitOr):
        return _is_mask(house, index.left, unit) or _is_mask(house, index.right, unit)
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
        return house.is_tensor(index.operand, unit)
    if isinstance(index, ast.Attribute):
        return any(house.declared(of, index.attr).startswith("bool") for of in house.types(index.value, unit))
    return False


RACING = (
    "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "index_add", "index_add_", "index_reduce_", "bincount", "histc",
    "put_", "index_put_",
)  # fmt: skip


def atomic(house: House, one: Reached) -> Iterator[tuple[ast.AST, str]]:
    """Additions whose order the hardware chooses, but of integers, whose sum does not depend on it."""
    for node in one.nodes():
        if not isinstance(node, ast.Call):
            continue
        if _spelled(node.func).startswith("cuda.atomic.") and node.args:
            dtype = _dtype(house, node.args[0], one.unit)
            if not dtype.startswith("int"):
                yield node, f"{_told(node)} adds to {dtype or 'an array whose type is not declared'} in whatever order threads come"
        elif one.region != KERNEL and _method(node) in RACING:
            yield node, f"{_told(node)} adds in whatever order threads come"


def _dtype(house: House, target: ast.expr, unit: Unit) -> str:
    """The element type of what a kernel adds to: of `cuda.shared.array`, or as the field's declaration says."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Name):
        made = [value for place, value in assignments(unit) if isinstance(place, ast.Name) and place.id == target.id]
        calls = [
            value for value in made if isinstance(value, ast.Call) and _spelled(value.func) in ("cuda.shared.array", "cuda.local.array")
        ]
        return _spelled(calls[0].args[1]).rpartition(".")[2] if calls else ""
    if isinstance(target, ast.Attribute):
        fields = {
            house.declared(of, target.attr)
            for module in house.modules.values()
            for of in module.classes.values()
            if house.annotation(of, target.attr) is not None
        } - {""}
        kinds = {text.split("[")[0] for text in fields}
        return kinds.pop() if len(kinds) == 1 else ""
    return ""


WIDE = ("uint16", "uint32", "uint64")


def signed(house: House, one: Reached) -> Iterator[tuple[ast.AST, str]]:
    """Kernels that compile when they are first called, or launch on a stream of their own; unsigned integers in kernels."""
    for node in one.nodes():
        if one.region in (STEP, DRAIN) and isinstance(node, ast.Call):
            if isinstance(node.func, ast.Subscript) and any(is_cuda_kernel(of) for of in house.named_callees(node.func.value, one.unit)):
                yield node, f"{_told(node)} launches a kernel that has no signature yet"
            elif isinstance(node.func, ast.Subscript) and isinstance(node.func.slice, ast.Tuple) and len(node.func.slice.elts) == 2:
                yield node, f"{_told(node)} launches on the default stream"
            elif _method(node) in ("specialize", "compile", "recompile") or _spelled(node.func) in (
                "cuda.jit",
                "numba.njit",
                "torch.compile",
            ):
                yield node, f"{_told(node)} compiles in the loop"
        if one.region == KERNEL and isinstance(node, ast.Name | ast.Attribute) and _spelled(node).rpartition(".")[2] in WIDE:
            yield node, f"{_told(node)}: with a signed integer it makes a float of 53 bits"


DRAWS = (
    "torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.normal", "torch.bernoulli", "torch.multinomial", "F.dropout",
    "torch.rand_like", "torch.randn_like",
)  # fmt: skip
DRAW_METHODS = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_", "multinomial", "bernoulli")


def random(house: House, one: Reached) -> Iterator[tuple[ast.AST, str]]:
    """Draws that no counter names: another order of calls, or another device, draws others."""
    for node in one.nodes():
        if isinstance(node, ast.Call):
            name = _spelled(node.func)
            if name in DRAWS or _method(node) in DRAW_METHODS or name.startswith(("np.random.", "random.", "secrets.", "os.urandom")):
                yield node, f"{_told(node)} draws from a generator with a state of its own"


RULES = (
    Rule(
        "PINMEM", "copies through pageable memory", 5, 1,
        "keep the value on the device, or stage it in pinned memory that is made once, and copy without blocking", pinmem,
    ),
    Rule(
        "ROMEM", "writes to read-only tables", 5, 3, "write to the lane's own state: a table is made once, and all lanes share it", romem,
    ),
    Rule("LOCKHOT", "locks, files and prints", 5, 3, "do it when a block is drained, or before the loop", lockhot),
    Rule(
        "BORROW", "arrays wrapped anew, bytes read as another type", 3, 1, "wrap and view once, where the part is made", borrow,
    ),
    Rule(
        "CPURO", "reads of the device by the host", 5, 1,
        "use torch.where and masks, and leave the value on the device until the block is fetched", cpuro,
    ),
    Rule("ATOMIC", "sums whose order the hardware chooses", 5, 3, "add integers, or sum in a fixed order of lanes", atomic),
    Rule(
        "SIGNED", "kernels without a signature, unsigned integers", 3, 1,
        "specialise the kernel where the part is made, for its arrays and its stream; use int64 and masks", signed,
    ),
    Rule(
        "RANDOM", "draws from a generator's state", 5, 3,
        "draw from Philox by (seed, lane, step, purpose): lob/philox.py, policy/draws.py", random,
    ),
)  # fmt: skip
"""Every rule."""

BY_NAME = {rule.name: rule for rule in RULES}
