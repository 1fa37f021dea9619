"""What the scanners found, as tables for a terminal: a score for each rule and file, then each finding with its place and its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.scanners.allowed import ALLOWED, Allowed
from tests.scanners.rules import BY_NAME, RULES, Finding, score


class Judged(NamedTuple):
    """The findings that nothing explains, those that an entry of the allow-list does, and entries that explain nothing."""

    open: list[Finding]
    explained: list[tuple[Finding, Allowed]]
    idle: list[Allowed]


def judge(findings: Sequence[Finding], allowed: Sequence[Allowed] = ALLOWED) -> Judged:
    """Each finding belongs to the first entry that matches it."""
    explained: list[tuple[Finding, Allowed]] = []
    unexplained: list[Finding] = []
    for finding in findings:
        entry = next((entry for entry in allowed if entry.covers(finding)), None)
        if entry is None:
            unexplained.append(finding)
        else:
            explained.append((finding, entry))
    used = {entry for _, entry in explained}
    return Judged(unexplained, explained, [entry for entry in allowed if entry not in used])


def report(judged: Judged, functions: dict[str, int]) -> str:
    """The whole report. `functions`: how many functions of each file the loop runs."""
    found = [*judged.open, *(finding for finding, _ in judged.explained)]
    lines = [f"step loop: {sum(functions.values())} functions in {len(functions)} files", ""]
    lines += _table(
        ("rule", "forbids", "severity", "effort", "found", "explained", "open", "score"),
        [
            (
                rule.name, rule.forbids, str(rule.severity), str(rule.effort), str(sum(f.rule == rule.name for f in found)),
                str(sum(f.rule == rule.name for f, _ in judged.explained)), str(len(of)), f"{sum(map(score, of)):.1f}",
            )
            for rule in RULES
            for of in [[f for f in judged.open if f.rule == rule.name]]
        ],
    )  # fmt: skip
    lines += ["", *_by_file(judged, functions)]
    numbers: dict[str, int] = {}
    if judged.open:
        lines += ["", "open, gravest first"]
    for finding in sorted(judged.open, key=lambda finding: (-score(finding), finding.file, finding.line)):
        numbers[finding.rule] = numbers.get(finding.rule, 0) + 1
        lines += [
            f"{finding.rule}-{numbers[finding.rule]:03d}  {score(finding):4.1f}  {finding.place}  in {finding.function} ({finding.region})",
            f"    {finding.what}",
            f"    {BY_NAME[finding.rule].remedy}",
        ]
    if judged.explained:
        lines += ["", "explained"]
    for finding, entry in judged.explained:
        lines += [f"{finding.rule}  {finding.place}  in {finding.function}: {finding.what}", f"    {entry.reason}"]
    if judged.idle:
        lines += ["", "entries of the allow-list that explain nothing: take them out"]
        lines += [f"{entry.rule} {entry.function} {entry.what!r}" for entry in judged.idle]
    return "\n".join(lines)


def _by_file(judged: Judged, functions: dict[str, int]) -> list[str]:
    """Open findings of each rule, and beside them in brackets the explained ones, for every file of the loop that has any."""
    rows = []
    for file in sorted(functions):
        open_, explained = [f for f in judged.open if f.file == file], [f for f, _ in judged.explained if f.file == file]
        if not open_ and not explained:
            continue
        cells = []
        for rule in RULES:
            many, told = sum(f.rule == rule.name for f in open_), sum(f.rule == rule.name for f in explained)
            cells.append((str(many) if many else "") + (f"({told})" if told else "") or ".")
        rows.append((file, str(functions[file]), *cells, f"{sum(map(score, open_)):.1f}"))
    clean = len(functions) - len(rows)
    return [
        *_table(("file", "functions", *(rule.name for rule in RULES), "score"), rows),
        f"{clean} more files without a finding; in brackets, explained ones",
    ]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]
