"""Writes docs/log.md from the declared tables: `python -m docs.generate`. A test holds the page to the declarations."""

from pathlib import Path

from cuda_env.tables import FILLS, ORDERS, WORKING_FILLS, WORKING_ORDERS
from lob.tables import LEVELS, Column, Table
from sim.tables import DIAG, RUN_TABLES, TRAIN_DIAG

PAGE = Path(__file__).resolve().parent / "log.md"

_INTRO = """# The run log, as built

Written by `python -m docs.generate` from the declarations (`cuda_env/tables.py`, `cuda_env/diag.py`, `policy/diag_columns.py`,
`sim/tables.py`).

`<runs>/<run>/` holds `manifest.json` (config, data, schema, layout and code hashes, device, the declared tables, chain head, end state),
`eval_summary.json`, `chain.jsonl`, `segments/` (sealed Parquet parts) and, while the run lives or where it broke off, `journal/`.

- A step's rows are appended, then committed together by one record in the journal; `kill -9` loses at most what came after the last commit.
- Every `segment_steps` steps all tables seal together into Parquet parts whose bytes depend on their content alone, and one line of
  `chain.jsonl` links them: `H_k = SHA-256(H_(k-1) + the line)`, from `H_0` over config, seeds, data, schema and code.
  The last line covers the summary.
- Readers take parts from the chain, then the committed journal: a file that the chain does not name is not part of the log.
- `sim verify RUN` recomputes all of it; `--head HASH` tells a chain that was rewritten whole from the original. `sim seal RUN` closes a
  broken-off run where it stands: it is not resumed any more.
- Training seals only behind its checkpoints, and makes the journal durable before each. A resumed run is rewound to the steps behind its
  checkpoint: later rows, which it logs again, move to `abandoned/<n>/journal/`, and `abandoned/<n>/rewind.json` counts them. They are
  no part of the run: chain, readers and SQL pass them over, `sim verify` and the columns `abandoned_steps` and `abandoned_rows` of `runs`
  name them. Finished, it has the bytes of a run that never stopped, but for `timing` and `attempts`, which has a row for each start.
- `checkpoints/step-00001000/` of a training run holds the network's checkpoint (`manifest.json`, `tensors.pt`) and what else a resume needs
  (`state.json`, `state.pt`); `last` and `best` lead to the newest one and to the one that did best on the validation days.

In SQL (`sim sql --runs RUNS "select … from steps"`) every table has `run_id`; a coded column shows its names and keeps its codes as
`<name>_code`; each `*_usd_micros` column is joined by `*_usd`, the same number as DECIMAL(18,6).

Money is int64 micro-dollars. Null stands only where a column says so. -1 is what a slot holds that was never played.

| level | tables |
|---|---|
"""


def _levels(tables: tuple[Table, ...]) -> str:
    rows = []
    for level in LEVELS:
        kept = ", ".join(f"`{table.name}`" for table in tables if level in table.levels)
        name, note = (level, "") if level != "sampled" else ("sampled:n", "; `steps` and `orders` of the first n lanes")
        rows.append(f"| `{name}` | {kept}{note} |")
    return "\n".join(rows)


def _table(table: Table) -> str:
    lines = [
        f"## {table.name}",
        "",
        f"{table.doc}; ordered by {', '.join(table.key)}" + ("" if table.hashed else "; outside every hash"),
        "",
    ]
    return "\n".join(lines + _columns(table.columns))


def _columns(columns: tuple[Column, ...]) -> list[str]:
    lines = ["| column | type | unit | what |", "|---|---|---|---|"]
    for column in columns:
        codes = "" if column.codes is None else " (" + ", ".join(f"{code} {name}" for code, name in column.codes.items()) + ")"
        null = "" if not column.nullable or "null" in column.doc else "; may be null"
        lines.append(f"| `{column.name}` | {column.dtype} | {column.unit} | {(column.doc + codes + null).replace('|', chr(92) + '|')} |")
    return lines


def _sections() -> list[str]:
    sections = [_table(table) for table in RUN_TABLES]
    added = ["A training run's `diag` has these columns too; in SQL over several runs they are null in the others.", ""]
    sections[RUN_TABLES.index(DIAG)] += "\n\n" + "\n".join(added + _columns(TRAIN_DIAG.columns[len(DIAG.columns) :]))
    for plain, working in ((ORDERS, WORKING_ORDERS), (FILLS, WORKING_FILLS)):
        said = f"Where orders work in the book (docs/exchange.md) it is {working.doc}, and has these columns otherwise, or more:"
        sections[RUN_TABLES.index(plain)] += "\n\n" + "\n".join(
            [said, "", *_columns(tuple(c for c in working.columns if c not in plain.columns))]
        )
    return sections


def page() -> str:
    """The whole page as Markdown."""
    return _INTRO + _levels(RUN_TABLES) + "\n\n" + "\n\n".join(_sections()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
