"""The run log's writer. It writes any declared table and knows no column of it, but for `step` and `lane`, by which rows are cut and
sampled.

Rows of a step are appended in key order, `end_step` closes the step, a flush (by rows or by the clock, at the end of a step) commits it
to the journal, and every `segment_steps` steps the journal is sealed in the background: see `store.journal`, `store.segments`,
`store.chain`. When sealing is slower than the run, `end_step` waits and `waited_s` counts; nothing is dropped. A run that was broken off
goes on from a checkpoint by `resume`: see `store.reopen`.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lob.errors import BadInput, TapeproofError
from lob.tables import LEVELS, Table
from store.buffers import RowBuffer
from store.chain import CHAIN, append_line, append_link, append_unhashed, start_hash
from store.journal import JOURNAL, Journal, read_journal, sync_journal
from store.manifest import MANIFEST, new_manifest, pretty_json, read_manifest, replace_file, sync_folder
from store.reopen import Place, check_same, reopen
from store.segments import write_segment

MAX_UNSEALED = 2
"""Full segments that may wait for the sealer before the run waits for them."""


def parse_level(level: str) -> tuple[str, int | None]:
    """(level, lanes) of `full`, `sampled:n`, `fills`, `trades` or `diag`; lanes is None except for `sampled`. Raises BadInput."""
    name, _, count = level.partition(":")
    if name == "sampled" and count.isdigit() and int(count) > 0:
        return name, int(count)
    if name in LEVELS and name != "sampled" and not count:
        return name, None
    raise BadInput(f"log level {level!r} is unknown: use full, sampled:n (n lanes, like sampled:16), fills, trades or diag")


def lanes_kept(table: Table, level: str) -> int | None:
    """Of how many lanes a table's rows are kept at a level: None all of them, 0 none, n the first n.

    `sampled:n` thins the tables that the next lower level would drop, where they have a `lane`. The first n lanes are kept: lanes are
    alike by construction (a lane's number seeds its draws and decides nothing else), and a reader needs no count of lanes to know which
    they are.
    """
    name, count = parse_level(level)
    if name not in table.levels:
        return 0
    thinned = name == "sampled" and LEVELS[LEVELS.index("sampled") + 1] not in table.levels and "lane" in table.names
    return count if thinned else None


def _kept(tables: Sequence[Table], level: str) -> dict[str, Table]:
    """{name: table} of those of which a level keeps rows."""
    return {table.name: table for table in tables if lanes_kept(table, level) != 0}


def lock_run(run_dir: Path) -> int:
    """Lock a run's folder for writing; returns the handle that holds the lock. Raises BadInput when another writer holds it."""
    handle = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise BadInput(f"{run_dir}: another process is writing this run; wait for it, or stop it first") from None
    return handle


def seal_journal(run_dir: Path, k: int, tables: Mapping[str, Table], head: str, first: int, part: Any) -> str:
    """Seal journal part k behind `head`: its files, the unhashed index, the chain line; then drop the journal. Returns the new head."""
    hashed, unhashed = write_segment(run_dir, k, tables, part.tables)
    if unhashed:
        append_unhashed(run_dir, k, unhashed)
    head = append_link(run_dir, head, {"k": k, "steps": [first, part.steps], "step": part.step, "tables": hashed})
    shutil.rmtree(part.folder)
    return head


def end_chain(run_dir: Path, manifest: Mapping[str, Any], head: str, k: int, end: Mapping[str, Any]) -> str:
    """Append the end line k and note head and end state in the manifest. Returns the head."""
    head = append_link(run_dir, head, {"k": k, "end": dict(end)})
    note_end(run_dir, manifest, head, end)
    return head


def note_end(run_dir: Path, manifest: Mapping[str, Any], head: str, end: Mapping[str, Any]) -> None:
    """Write head, end state and steps into the manifest."""
    noted = {**manifest, "head": head, "end_state": end["state"], "steps": end["steps"]}
    replace_file(Path(run_dir) / MANIFEST, pretty_json(noted))


class RunLog:
    """One run's writer: `create` or `resume`, then `append` and `end_step` for each step, then `finish` (or `close` when interrupted).

    `waited_s` is how long the run waited for the sealer, `steps` how many steps have ended, `head` the chain's head so far.
    """

    def __init__(
        self,
        run_dir: Path,
        manifest: dict[str, Any],
        tables: Sequence[Table],
        lock: int,
        flush_rows: int,
        flush_seconds: float,
        checkpointed: int | None,
        place: Place,
    ) -> None:
        level = manifest["log"]["level"]
        self.run_dir = run_dir
        self.head = place.head
        self.waited_s = 0.0
        self._manifest = manifest
        self._segment_steps: int = manifest["log"]["segment_steps"]
        self._lanes = {table.name: lanes_kept(table, level) for table in tables}
        self._tables = _kept(tables, level)
        self._buffers = {name: RowBuffer(table) for name, table in self._tables.items()}
        self._lock = lock
        self._flush_rows = flush_rows
        self._flush_seconds = flush_seconds
        self._resumable = checkpointed is not None
        self._checkpointed = checkpointed  # steps behind the last checkpoint; None: sealing waits for none
        self._mark = (
            place.steps,
            place.step,
            dict.fromkeys(self._tables, 0),
        )  # steps ended, number of the last, rows of each that are theirs
        self._committed = place.steps
        self._last_flush = time.monotonic()
        self._k = place.k
        self._segment_end = place.first + self._segment_steps
        self._complete = place.complete
        self._journal = Journal(run_dir, place.k, self._tables, place.part)
        self._held = deque(place.held)  # (k, first step, end) of full segments that wait for a checkpoint
        self._sealing: deque[Future[str]] = deque()
        self._sealer = ThreadPoolExecutor(1, thread_name_prefix="seal")
        self._seal_failed = False
        self._fault: BaseException | None = None
        self._open = True
        self._seal_ready()

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the chain starts from."""
        return self._manifest["identity"]

    @classmethod
    def create(
        cls,
        run_dir: Path | str,
        *,
        identity: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        tables: Sequence[Table],
        level: str = "full",
        segment_steps: int = 1024,
        flush_rows: int = 262_144,
        flush_seconds: float = 1.0,
        seal_behind_checkpoints: bool = False,
    ) -> "RunLog":
        """Begin a run in a new folder.

        `identity` is what the chain starts from (config, seeds, data, schema, layout and code hashes, device class), strict JSON;
        `attributes` (host, paths, times) are kept beside it, outside every hash. A flush comes at the end of the step at which
        `flush_rows` rows or `flush_seconds` have gathered. With `seal_behind_checkpoints` a segment is sealed only after `checkpointed`
        covers it. Raises BadInput: the folder exists and is not empty or cannot be written, or the level is unknown.
        """
        run_dir = Path(run_dir)
        parse_level(level)
        if segment_steps < 1:
            raise BadInput(f"segment_steps is {segment_steps}: a segment holds at least one step")
        for table in tables:
            if any(not table.column(name).dtype.startswith("int") for name in table.key):
                raise ValueError(f"table {table.name}: key columns must be integers")
        manifest = new_manifest(identity, attributes or {}, level, segment_steps, tables)
        head = start_hash(manifest)
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            lock = lock_run(run_dir)
            if any(run_dir.iterdir()):
                os.close(lock)
                raise BadInput(f"{run_dir}: a run or other files are already there; give the run a new folder")
            replace_file(run_dir / MANIFEST, pretty_json(manifest))
            append_line(run_dir / CHAIN, {"k": 0, "hash": head})
            sync_folder(run_dir)
            checkpointed = 0 if seal_behind_checkpoints else None
            return cls(run_dir, manifest, tables, lock, flush_rows, flush_seconds, checkpointed, Place(0, -1, head, (), 1, 0))
        except OSError as error:
            raise BadInput(f"{run_dir}: the run cannot be written there ({error.strerror}); choose another folder or free space") from None

    @classmethod
    def resume(
        cls,
        run_dir: Path | str,
        steps: int,
        *,
        identity: Mapping[str, Any],
        tables: Sequence[Table],
        head: str | None = None,
        flush_rows: int = 262_144,
        flush_seconds: float = 1.0,
    ) -> "RunLog":
        """Go on with a run that was broken off, from a durable checkpoint that was taken after its first `steps` steps (0: from its start).

        The log is rewound to exactly there (`store.reopen`); finished, it has the bytes of a run that never stopped, but for tables outside
        every hash. What the run has sealed stays; more is sealed behind `checkpointed`. `identity` and `tables` are those of the run as it
        would be started now, `head` is the chain's head at the checkpoint. Killed at any moment, it can be repeated.

        Raises NotFound; BadInput: another process writes the run, it has ended, something of its identity differs (the first field is
        named), the disk refuses; DamagedLog: the log does not hold those steps, or holds more of them sealed.
        """
        run_dir = Path(run_dir)
        manifest = read_manifest(run_dir)
        check_same(run_dir, manifest, identity, tables)
        lock = -1
        try:
            lock = lock_run(run_dir)
            place = reopen(run_dir, manifest, _kept(tables, manifest["log"]["level"]), steps, head)
            return cls(run_dir, manifest, tables, lock, flush_rows, flush_seconds, steps, place)
        except BaseException as error:
            if lock >= 0:
                os.close(lock)
            if isinstance(error, OSError):
                where = error.filename or run_dir
                remedy = "free space or make it writable, then resume again; nothing is lost"
                raise BadInput(f"{where}: the run cannot be resumed ({error.strerror}): {remedy}") from None
            raise

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self._mark[0]

    @property
    def _ended(self) -> dict[str, int]:
        return self._mark[2]

    def keeps(self, table: str) -> bool:
        """Whether rows of this table are kept at the run's level (of some lanes at least)."""
        return table in self._tables

    def append(self, table: str, columns: Mapping[str, Any]) -> None:
        """Add rows, in key order: {column: array}, every declared column and no other, dtypes exactly as declared.

        Integer and float columns are numpy arrays (masked arrays where null is allowed), strings are lists. Rows belong to steps that the
        next `end_step` closes. A table that the level does not keep is ignored. Raises ValueError on wrong names, dtypes or lengths, and
        CheckFailed on NaN, infinity or a null where none may be.
        """
        buffer = self._buffer(table)
        if buffer is not None:
            buffer.append(columns, self._lanes[table])

    def append_row(self, table: str, row: Mapping[str, Any]) -> None:
        """Add one row of plain numbers and strings, None where null is allowed: for tables of a row a step (diag, timing) or now and then
        (events).

        Raises as `append` does, except that a number that does not fit its column is refused only when the row is flushed.
        """
        buffer = self._buffer(table)
        if buffer is not None:
            buffer.append_row(row, self._lanes[table])

    def _buffer(self, table: str) -> RowBuffer | None:
        self._check_open()
        buffer = self._buffers.get(table)
        if buffer is None and table not in self._lanes:
            raise ValueError(f"table {table} is not declared; declared are {', '.join(self._lanes)}")
        return None if self._complete else buffer

    def end_step(self, step: int, steps: int = 1) -> None:
        """Close a step, or a block of `steps` steps that ends with number `step` (rows are then cut at a segment's border by their `step`).

        Flushes, seals and waits as due. Raises BadInput when the disk cannot take it; what was committed stays readable. An interrupt at
        any moment loses no step that had ended before: `close` commits it.
        """
        self._check_open()
        if self._complete:
            raise BadInput(f"{self.run_dir}: the run is sealed up to its end at step {self.steps}; close it with `sim seal {self.run_dir}`")
        if self.steps == self._segment_end:
            self._rotate()  # an interrupt came before it
        while steps:
            now = min(steps, self._segment_end - self.steps)
            steps -= now
            if steps:
                ended = {name: buffer.rows_until(step - steps, self._ended[name]) for name, buffer in self._buffers.items()}
            else:
                ended = {name: buffer.rows for name, buffer in self._buffers.items()}
            self._mark = (self.steps + now, step - steps, ended)  # in one assignment: an interrupt comes before it or after it
            if self.steps == self._segment_end:
                self._rotate()
        if sum(self._ended.values()) >= self._flush_rows or time.monotonic() - self._last_flush >= self._flush_seconds:
            self.commit()

    def commit(self) -> None:
        """Flush the ended steps to the journal now: after this a `kill -9` does not lose them."""
        self._check_open()
        mark = self._mark
        steps, step, ended = mark
        if steps > self._committed or any(ended.values()):
            try:
                batches = {name: self._buffers[name].batch(count) for name, count in ended.items() if count}
                self._journal.commit(batches, steps, step, mark)
            except OSError as error:
                self._fail(error)
            except Exception as error:
                self._fault = error
                raise
            with self._nothing_to_lose():
                del batches
                self._committed = steps
                for name, count in ended.items():
                    self._buffers[name].drop(count)
                self._mark = (steps, step, dict.fromkeys(ended, 0))
        self._last_flush = time.monotonic()

    def sync(self) -> None:
        """Commit the ended steps and make them durable, before the checkpoint that they lead up to: they then survive power loss too.

        Waits for the seals that are under way, so that `head` covers what the checkpoint before this one let seal. Raises BadInput.
        """
        self.commit()
        self._wait(0)
        try:
            for k, _, _ in self._held:
                sync_journal(self.run_dir / JOURNAL / f"{k:08d}")
            self._journal.sync()
        except OSError as error:
            self._fail(error)

    def checkpointed(self, steps: int) -> None:
        """A checkpoint of the state after the run's first `steps` steps (`log.steps` when it was taken) is durable: seal what it covers."""
        if self._checkpointed is not None:
            self._checkpointed = max(self._checkpointed, steps)
            self._seal_ready()

    def finish(self, end_state: str, summary: Mapping[str, Any] | None = None, summary_file: str = "eval_summary.json") -> str:
        """Seal the rest, write the summary (strict JSON), then the chain's end line and the manifest's end. Returns the chain's head.

        Rows appended after the last `end_step` are kept: they belong to the run's end. Raises ValueError when the summary holds NaN or
        infinity, or when a run that seals behind checkpoints has none of its last step (nothing is sealed then).
        """
        self._check_open()
        content = None if summary is None else pretty_json(summary)
        if self._checkpointed is not None and self._checkpointed < self.steps:
            raise ValueError(f"{self.steps} steps have ended and the last checkpoint was taken after {self._checkpointed}: take one first")
        self._checkpointed = None
        self._mark = (*self._mark[:2], {name: buffer.rows for name, buffer in self._buffers.items()})
        if self.steps > self._segment_end - self._segment_steps or any(self._ended.values()):
            self._rotate()
        self._seal_ready()
        self._wait(0)
        end: dict[str, Any] = {"state": end_state, "steps": self.steps, "summary": None}
        try:
            self._journal.close()
            shutil.rmtree(self.run_dir / JOURNAL)
            if content is not None:
                replace_file(self.run_dir / summary_file, content)
                end["summary"] = {"file": summary_file, "sha256": hashlib.sha256(content).hexdigest()}
            self.head = end_chain(self.run_dir, self._manifest, self.head, self._k, end)
        except OSError as error:
            self._fail(error)
        self._release()
        return self.head

    def close(self) -> None:
        """Stop where the run stands: commit the ended steps, let running seals end, leave the journal. `seal` makes it whole later."""
        if not self._open:
            return
        try:
            if self._fault is None:
                self.commit()
                self._wait(0)
        finally:
            self._journal.close()
            self._release()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rotate(self) -> None:
        """Commit the full segment, open the next journal, hand the full one to the sealer."""
        self.commit()
        with self._nothing_to_lose():
            self._journal.close()
            self._held.append((self._k, self._segment_end - self._segment_steps, self.steps))
            self._k += 1
            self._segment_end += self._segment_steps
            try:
                self._journal = Journal(self.run_dir, self._k, self._tables)
            except OSError as error:
                self._fail(error)
        self._seal_ready()

    @contextmanager
    def _nothing_to_lose(self) -> Iterator[None]:
        """Around work on the log's own state while everything is committed: what breaks it off ends the log there."""
        try:
            yield
        except BaseException as error:
            self._fault = self._fault or error
            raise

    def _seal_ready(self) -> None:
        while self._held and (self._checkpointed is None or self._held[0][2] <= self._checkpointed):
            k, first, _ = self._held.popleft()
            self._wait(MAX_UNSEALED - 1)
            self._sealing.append(self._sealer.submit(self._seal, k, first))

    def _seal(self, k: int, first: int) -> str:
        # One thread, in order: `head` moves only here while seals are running, and no segment is sealed after one that could not be.
        if self._seal_failed:
            return self.head
        try:
            part = read_journal(self.run_dir / JOURNAL / f"{k:08d}", self._tables, check=False)
            self.head = seal_journal(self.run_dir, k, self._tables, self.head, first, part)
        except BaseException:
            self._seal_failed = True
            raise
        return self.head

    def _wait(self, left: int) -> None:
        """Wait until at most `left` seals are running."""
        while self._sealing and (len(self._sealing) > left or self._sealing[0].done()):
            started = time.monotonic()
            done = self._sealing[0].done()
            try:
                self._sealing[0].result()
            except OSError as error:
                self._fail(error)
            self._sealing.popleft()
            if not done:
                self.waited_s += time.monotonic() - started

    def _check_open(self) -> None:
        if self._fault is not None:
            raise self._fault
        if not self._open:
            raise ValueError(f"{self.run_dir}: the log is closed")

    def _fail(self, error: OSError) -> None:
        """The disk refused: nothing more is written, what was committed stays."""
        resume = f"go on with `sim train --resume {self.run_dir}` or " if self._resumable else ""
        fault: TapeproofError = BadInput(
            f"{error.filename or self.run_dir}: {error.strerror}; the run is committed up to step {self._committed} of {self.steps}: "
            f"free space, then {resume}close it with `sim seal {self.run_dir}`"
        )
        self._fault = fault
        raise fault from None

    def _release(self) -> None:
        self._open = False
        self._sealer.shutdown(wait=True)
        os.close(self._lock)
