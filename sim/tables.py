"""The log tables that the use cases write: `events`, and, outside every hash, `timing` and `attempts`. This file declares them."""

from dataclasses import replace

from cuda_env import diag as env_diag
from cuda_env.tables import TABLES as ENV_TABLES
from cuda_env.tables import tables_of
from lob.actions import Phase, names
from lob.tables import LEVELS, Column, Table
from policy import tables as policy_tables
from policy.bands import ANOMALY, WARNING
from policy.diag_columns import TRAINING

_PHASE = Column("phase", "int8", "code", "train, eval or replay", names(Phase))
_STEP = Column("step", "int32", "1", "decision of the phase, counted from 0")

INFO = 0
SEVERITY = {INFO: "info", WARNING: "warning", ANOMALY: "anomaly"}

EVENTS = Table(
    "events",
    (
        _PHASE,
        _STEP,
        Column("seq", "int32", "1", "count within the step"),
        Column("lane", "int32", "1", "lane that it concerns; null: the whole run", nullable=True),
        Column("severity", "int8", "code", "how grave it is", SEVERITY),
        Column("kind", "str", "1", "what happened, one lower-case word or dotted name, like checkpoint.saved"),
        Column("message", "str", "1", "the same in a sentence, without wall-clock, host or path"),
        Column("value", "float64", "1", "the number that it is about; null: none", nullable=True),
    ),
    key=("phase", "step", "seq"),
    levels=LEVELS,
    doc="one row per event in a run's life: warnings, anomalies, checkpoints, controller triggers, resets",
)

TIMING = Table(
    "timing",
    (
        _PHASE,
        _STEP,
        Column("wall_ns", "int64", "ns", "wall-clock at the end of the step, UTC nanoseconds since 1970"),
        Column("elapsed_ns", "int64", "ns", "time that the step took"),
        Column("observe_ns", "int64", "ns", "of it, assembling observations; null: not told apart on a GPU", nullable=True),
        Column("policy_ns", "int64", "ns", "of it, the policy; null: not told apart on a GPU", nullable=True),
        Column("physics_ns", "int64", "ns", "of it, gates, execution and marks; null: not told apart on a GPU", nullable=True),
        Column("learn_ns", "int64", "ns", "of it, rewards, replay memory and learner; null: nothing learns, or a GPU", nullable=True),
        Column("log_ns", "int64", "ns", "of it, the log, waiting included; in blocks, where the block's rows were made"),
        Column("waited_ns", "int64", "ns", "how long the run has waited for the log's disk so far"),
    ),
    key=("phase", "step"),
    levels=LEVELS,
    doc="one row per step: wall-clock, outside every hash",
    hashed=False,
)

ATTEMPTS = Table(
    "attempts",
    (
        Column("attempt", "int32", "1", "starts of the run, counted from 0"),
        Column("started_ns", "int64", "ns", "wall-clock of the start, UTC nanoseconds since 1970"),
        Column("host", "str", "1", "machine name"),
        Column("process", "int64", "1", "process id"),
        Column("threads", "int32", "1", "threads that it may use"),
        Column("python", "str", "1", "Python version"),
        Column("command", "str", "1", "command line"),
        Column("folder", "str", "1", "working folder"),
    ),
    key=("attempt",),
    levels=LEVELS,
    doc="one row per start of the run: host, threads, paths, outside every hash",
    hashed=False,
)

DIAG = Table(
    "diag",
    env_diag.DIAG + policy_tables.DIAG,
    key=("phase", "step"),
    levels=LEVELS,
    doc="one row per step: sums over lanes of what was picked, gates, what it earned; the environment's part, then the policy's",
)

TRAIN_DIAG = replace(DIAG, columns=DIAG.columns + TRAINING)
"""`diag` of a training run: rewards, losses, signals and controls of each step beside what every run has."""

RUN_TABLES = (DIAG, *ENV_TABLES, EVENTS, TIMING, ATTEMPTS)
"""Every table of a run that does not train."""

TRAIN_TABLES = (TRAIN_DIAG, *RUN_TABLES[1:])
"""Every table of a training run."""


def run_tables(queue_model: str, is_training: bool = False) -> tuple[Table, ...]:
    """Every table of a run under a queue model: `RUN_TABLES` or `TRAIN_TABLES`, with what orders in the book add to theirs."""
    return (TRAIN_DIAG if is_training else DIAG, *tables_of(queue_model), *RUN_TABLES[1 + len(ENV_TABLES) :])


def event_row(
    phase: int, step: int, seq: int, severity: int, kind: str, message: str, value: float | None = None
) -> dict[str, int | str | float | None]:
    """A row of `events` that concerns the whole run."""
    row = {"phase": int(phase), "step": step, "seq": seq, "lane": None, "severity": severity}
    return row | {"kind": kind, "message": message, "value": value}


def emitted(level: str) -> tuple[str, ...]:
    """The environment's tables that a log level keeps."""
    return tuple(table.name for table in ENV_TABLES if level.partition(":")[0] in table.levels)
