"""The step loop holds nothing that a captured step must not hold, and each scanner finds what is planted and leaves innocents alone."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.scanners import rules
from tests.scanners.allowed import ALLOWED, Allowed
from tests.scanners.house import ROOMS, House, read
from tests.scanners.report import judge, report
from tests.scanners.step_loop import DRAIN, HOST, KERNEL, OUTSIDE, STEP, follow, reached

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def loop():
    return reached(read(REPO))


@pytest.fixture(scope="module")
def findings(loop):
    return rules.scan(read(REPO), loop)


def test_the_step_loop_holds_no_finding_that_nothing_explains(loop, findings):
    judged = judge(findings)
    assert not judged.open, "\n" + report(judged, Counter(one.unit.file for one in loop))


def test_every_entry_of_the_allow_list_explains_something_and_says_why(findings):
    judged = judge(findings)
    assert not judged.idle
    assert all(len(entry.reason) >= 20 for entry in ALLOWED)
    assert not [finding for finding, _ in judged.explained if finding.rule in ("LOCKHOT", "ATOMIC", "RANDOM", "ROMEM")]


def test_an_entry_that_explains_nothing_is_told(findings):
    idle = Allowed("CPURO", "policy/learner.py:Learner.update_together", "item()", "a reason that was good once, before a change")
    judged = judge(findings, (*ALLOWED, idle))
    assert judged.idle == [idle]
    assert "entries of the allow-list that explain nothing" in report(judged, {})


def test_the_step_loop_is_what_a_training_step_runs_and_no_more(loop):
    regions: dict[str, set[str]] = {}
    for one in loop:
        regions.setdefault(one.unit.key, set()).add(one.region)
    inside = {
        "sim/trainer.py:Trainer._play": STEP,
        "policy/learner.py:Learner._pull": STEP,  # through a generator's `yield from`
        "policy/model.py:Model.forward": STEP,  # through a call of the module
        "policy/temporal.py:scan": STEP,
        "policy/optimiser.py:Optimiser.step": STEP,
        "policy/launch.py:Launcher.bind.launch": STEP,  # through an attribute that holds what a factory made
        "cuda_env/run_cuda.py:CudaRunner.step.launch": STEP,  # handed over
        "cuda_env/blocks_cuda.py:CudaCapture.capture.launch": STEP,
        "policy/lane_pass.py:LanePass.__init__.<lambda 3>": HOST,  # an attribute's lambda, made in the CPU's branch
        "cuda_env/kernels_cpu.py:step_one": HOST,
        "cuda_env/blocks_cuda.py:CudaCapture._to_host": DRAIN,
        "cuda_env/kernels_moves.py:moves.step": KERNEL,
        "cuda_env/exchange.py:book_fill": KERNEL,
        "policy/loss_cuda.py:kernel.measure": KERNEL,
        "lob/philox.py:philox4x32": KERNEL,
    }
    missing = {key: region for key, region in inside.items() if region not in regions.get(key, ())}
    assert not missing
    outside = (
        "policy/learner.py:Learner.check",
        "cuda_env/env.py:Env.rows",
        "cuda_env/blocks.py:BlockLog.columns",
        "sim/capture.py:capture",
    )
    assert not [key for key in outside if key in regions]
    assert not [key for key in regions if key.startswith(("sim/watch", "sim/verify", "policy/bands", "policy/checkpoint", "store/"))]
    assert not [key for key in regions if key in OUTSIDE]


PLANTED = (
    # file, rule, what the finding says, the line behind which the fault is put, the fault
    ("policy/learner.py", "CPURO", "item()", "            self.updates += 1\n", "            print(norm.item())\n"),
    ("policy/memory.py", "LOCKHOT", "Lock", "        self.written += 1\n", "        self._lock = threading.Lock()\n"),
    ("policy/losses.py", "ATOMIC", "scatter_add_", "        kept.add_(more)\n", "        kept.scatter_add_(0, more, more)\n"),
    ("policy/health.py", "PINMEM", "pageable", "        self._counts.copy_(counts)\n", "        self._counts.copy_(torch.tensor([1]))\n"),
    ("policy/blocks.py", "RANDOM", "torch.rand", "        told = None\n", "        x = x + torch.rand(1)\n"),
    ("cuda_env/observe.py", "ROMEM", "features", "    cursor = state[s.CURSOR, lane]\n", "    features[0, 0] = 0\n"),
    ("cuda_env/run_cuda.py", "SIGNED", "no signature", "            self._step()\n", "            k.restart[1, 32](self.picks)\n"),
    ("cuda_env/kernels_cuda.py", "ATOMIC", "w.observation", "    lane = cuda.grid(1)\n", "    cuda.atomic.add(w.observation, 0, 1.0)\n"),
    ("cuda_env/blocks_cuda.py", "BORROW", "anew", "        self._runner.ordered(launch)\n", "        self.kept = as_device(self._block)\n"),
    (
        "cuda_env/blocks_cuda.py",
        "PINMEM",
        "cpu()",
        "        target = held[: tensor.numel()].view(tensor.shape)\n",
        "        tensor.cpu()\n",
    ),
    (
        "policy/learner.py",
        None,
        "",
        "        update, what, slot, generation = self._fault.tolist()\n",
        "        print(self._fault.item())\n",
    ),
)
"""The last one stands in `Learner.check`, which is not in the loop."""

BESIDE = {("policy/learner.py", "LOCKHOT"), ("cuda_env/run_cuda.py", "BORROW")}
"""Found by another rule in the same lines: the item is printed; what wraps for the planted line is then in the loop too."""


def test_faults_planted_in_the_house_are_found_where_they_stand_and_nowhere_else():
    sources, expected = _sources(), []
    for file, rule, says, line, fault in PLANTED:
        assert line in sources[file], f"{file} no longer holds {line!r}"
        sources[file] = sources[file].replace(line, line + fault, 1)
        if rule is not None:
            expected.append((file, rule, says))
    house = House(sources)
    judged = judge(rules.scan(house, reached(house)))
    unexplained = [(finding.file, finding.rule, finding.what) for finding in judged.open]
    for file, rule, says in expected:
        assert [what for where, by, what in unexplained if (where, by) == (file, rule) and says in what], (file, rule, says, unexplained)
    assert {(file, rule) for file, rule, _ in unexplained} - {(file, rule) for file, rule, _ in expected} == BESIDE
    told = report(judged, {})
    assert "PINMEM-001" in told
    assert "25.0" in told


def _sources() -> dict[str, str]:
    return {path.relative_to(REPO).as_posix(): path.read_text() for room in ROOMS for path in (REPO / room).glob("*.py")}


HEAD = """
import threading, logging, time, random
import numpy as np
import torch
from typing import Any, NamedTuple
from lob.jit import cuda


class Sums(NamedTuple):
    whole: Any  # int64[n]
    real: Any  # float64[n]
    chosen: torch.Tensor  # bool[n]


class Part:
    def __init__(self, device):
        self.kept = torch.zeros(3, device=device)
        self.device = device
        self.names = ["a"]


@cuda.jit
def kernel(w):
    pass


def step(part: Part, values: torch.Tensor, sums: Sums, stream, launcher, flag: bool):
"""


def found_in(body: str, region: str = STEP) -> list[rules.Finding]:
    """Findings in a function with this body, in a house of its own."""
    text = HEAD + "".join(f"    {line}\n" for line in body.splitlines())
    house = House({"policy/planted.py": text, "lob/jit.py": "cuda = 0\n"})
    unit = house.modules["policy/planted.py"].functions["step"]
    return rules.scan(house, follow(house, [(unit, region)]))


FAULTS = [
    ("PINMEM", STEP, "part.kept.copy_(torch.from_numpy(np.zeros(3)))"),
    ("PINMEM", STEP, "x = torch.tensor([1.0], device=part.device)"),
    ("PINMEM", STEP, "x = values.to('cuda')"),
    ("PINMEM", STEP, "x = values.to(part.device, non_blocking=True)"),
    ("PINMEM", STEP, "x = values.cuda()"),
    ("PINMEM", DRAIN, "x = values.cpu()"),
    ("PINMEM", DRAIN, "x = torch.empty(3)"),
    ("PINMEM", DRAIN, "pinned = part.kept\npinned.copy_(values)"),
    ("ROMEM", KERNEL, "w.plan[0, 1] = 2"),
    ("ROMEM", KERNEL, "market.bid_ticks[0] += 1"),
    ("ROMEM", KERNEL, "cuda.atomic.add(w.features, 0, 1)"),
    ("ROMEM", STEP, "part.world.params.fill_(0)"),
    ("ROMEM", STEP, "part.kept.setflags(write=True)"),
    ("ROMEM", HOST, "part.kept.flags.writeable = True"),
    ("LOCKHOT", STEP, "print(1)"),
    ("LOCKHOT", HOST, "with part.lock:\n    pass"),
    ("LOCKHOT", STEP, "lock = threading.Lock()"),
    ("LOCKHOT", STEP, "logging.info('step')"),
    ("LOCKHOT", STEP, "open('x')"),
    ("LOCKHOT", STEP, "time.sleep(1)"),
    ("LOCKHOT", KERNEL, "cuda.atomic.cas(sums.whole, 0, 0, 1)"),
    ("BORROW", STEP, "x = cuda.as_cuda_array(values)"),
    ("BORROW", STEP, "x = torch.from_dlpack(values)"),
    ("BORROW", STEP, "x = values.view(torch.int32)"),
    ("BORROW", HOST, "x = part.rows.view(np.int32)"),
    ("CPURO", STEP, "x = values.sum().item()"),
    ("CPURO", STEP, "x = values.tolist()"),
    ("CPURO", STEP, "x = values.numpy()"),
    ("CPURO", STEP, "x = bool(values.any())"),
    ("CPURO", STEP, "x = int(part.kept[0])"),
    ("CPURO", STEP, "total = values.sum()\nif total > 0:\n    pass"),
    ("CPURO", STEP, "while part.kept.any():\n    pass"),
    ("CPURO", STEP, "x = 1 if values.max() > 0 else 2"),
    ("CPURO", STEP, "x = flag and values.any()"),
    ("CPURO", STEP, "x = not sums.chosen"),
    ("CPURO", STEP, "assert values.sum() == 0"),
    ("CPURO", STEP, "x = f'{values}'"),
    ("CPURO", STEP, "x = values[values > 0]"),
    ("CPURO", STEP, "x = values[sums.chosen]"),
    ("CPURO", STEP, "x = torch.nonzero(values)"),
    ("CPURO", STEP, "x = torch.where(values > 0)"),
    ("CPURO", STEP, "torch.cuda.synchronize()"),
    ("CPURO", STEP, "x = torch.equal(values, part.kept)"),
    ("CPURO", DRAIN, "stream.synchronize()"),
    ("ATOMIC", KERNEL, "cuda.atomic.add(sums.real, 0, 1.0)"),
    ("ATOMIC", KERNEL, "cells = cuda.shared.array(4, float32)\ncuda.atomic.add(cells, 0, 1.0)"),
    ("ATOMIC", KERNEL, "cuda.atomic.add(unknown, 0, 1.0)"),
    ("ATOMIC", STEP, "part.kept.index_add_(0, values, values)"),
    ("ATOMIC", HOST, "x = torch.bincount(values)"),
    ("SIGNED", STEP, "kernel[1, 32](values)"),
    ("SIGNED", STEP, "launcher.compiled[1, 32](values)"),
    ("SIGNED", STEP, "x = kernel.specialize(values)"),
    ("SIGNED", KERNEL, "x = np.uint64(3) + w"),
    ("RANDOM", STEP, "x = torch.rand(3)"),
    ("RANDOM", STEP, "part.kept.normal_()"),
    ("RANDOM", HOST, "x = np.random.default_rng(0)"),
    ("RANDOM", HOST, "x = random.random()"),
]


@pytest.mark.parametrize(("rule", "region", "body"), FAULTS)
def test_a_planted_fault_is_found(rule, region, body):
    found = found_in(body, region)
    assert rule in {finding.rule for finding in found}
    line = len(HEAD.splitlines()) + 1
    assert all(line <= finding.line < line + len(body.splitlines()) for finding in found)


INNOCENTS = [
    (STEP, "x = torch.zeros(3, device=values.device)\nx += values"),
    (STEP, "x = values.to(torch.float32)"),
    (STEP, "x = torch.where(values > 0, values, 0)"),
    (STEP, "if len(values) > 3 and values.shape[0] > values.numel():\n    pass"),
    (STEP, "if values is None or values.dtype == torch.float32:\n    pass"),
    (STEP, "if flag and not part.names:\n    pass"),
    (STEP, "if part.device.type == 'cpu':\n    x = values.numpy()\nelse:\n    x = values * 2"),
    (STEP, "if part.device.type != 'cuda':\n    return values.item()\nx = values + 1"),
    (STEP, "x = values[:, 2:4].view(-1, 2)\ny = x[values.long()]"),
    (STEP, "x = int(values.shape[0]) + min(3, len(values))"),
    (STEP, "x = f'{values.shape}'"),
    (STEP, "x = max(len(part.names), 3)"),
    (STEP, "launcher.compiled[1, 32, stream](values)"),
    (HOST, "x = values.numpy()\nif values.any():\n    y = x.sum().item()"),
    (DRAIN, "pinned = torch.empty(3, pin_memory=True)\npinned.copy_(values, non_blocking=True)\nx = pinned.numpy().tolist()"),
    (KERNEL, "cuda.atomic.add(sums.whole, 0, 1)"),
    (KERNEL, "cells = cuda.shared.array(4, int64)\ncuda.atomic.add(cells, 0, 1)"),
    (KERNEL, "plan = w.plan\nx = w.plan[0, 1] + market.bid_ticks[0]\nw.state[0] = x"),
    (KERNEL, "if w.state[0] > 0 and w.state[1] > 0:\n    w.state[2] = 1"),
]


@pytest.mark.parametrize(("region", "body"), INNOCENTS)
def test_an_innocent_is_left_alone(region, body):
    assert not found_in(body, region)


def test_a_table_that_is_handed_on_under_another_name_stays_read_only():
    outer = "def outer(w, lane):\n    inner(w.market, w.state, lane)\n\n\n"
    text = outer + "def inner(book, mine, lane):\n    book.bid[lane] = mine[lane]\n    mine[lane] = 1\n"
    house = House({"policy/planted.py": text})
    found = rules.scan(house, follow(house, [(house.modules["policy/planted.py"].functions["outer"], KERNEL)]))
    assert [(finding.rule, finding.line) for finding in found] == [("ROMEM", 6)]


def test_the_score_is_severity_by_impact_by_effort():
    (gravest,) = found_in("x = values.to('cuda')")
    assert rules.score(gravest) == 25.0
    (lock,) = found_in("print(1)")
    assert round(rules.score(lock), 1) == 8.3
    (once,) = found_in("x = values.cpu()", DRAIN)
    assert rules.score(once) == 15.0


def test_the_command_prints_every_rule_and_exits_zero_on_a_clean_tree():
    done = subprocess.run([sys.executable, "-m", "tests.scanners"], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for rule in rules.RULES:
        assert rule.name in done.stdout
    assert "policy/memory.py" in done.stdout


def test_a_declaration_that_names_what_is_gone_is_refused():
    sources = _sources()
    sources["cuda_env/env.py"] = sources["cuda_env/env.py"].replace("def assemble(", "def put_together(")
    with pytest.raises(KeyError, match=r"Env\.assemble"):
        reached(House(sources))
