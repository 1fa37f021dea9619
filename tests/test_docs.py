"""The pages that derive from code say what the code says, and commands that a page names are there."""

import re

from docs.generate import PAGE, page


def test_the_log_page_is_what_the_declared_tables_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m docs.generate`"


def test_each_figure_of_the_performance_page_has_a_command_that_exists_and_a_limit():
    from benchmarks.__main__ import NAMES
    from tests.scanners.rules import RULES

    text = (PAGE.parent / "performance.md").read_text(encoding="utf-8")
    figures = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "`python -m benchmarks" in line]
    assert len(figures) >= 10
    for cells in figures:
        assert len(cells) == 4 and all(len(cell) > 5 for cell in cells), cells
    named = [name for words in re.findall(r"`python -m benchmarks ([a-z ]+)`", text) for name in words.split()]
    named += re.findall(r"`python -m benchmarks\.bench_([a-z]+)", text)
    assert set(named) <= set(NAMES), set(named) - set(NAMES)
    scanned = re.findall(r"^\| ([A-Z]{5,}) \|", text, re.MULTILINE)
    assert scanned == [rule.name for rule in RULES]


def test_sim_bench_measures_what_the_performance_page_says():
    from sim.bench_cases import cases

    text = (PAGE.parent / "performance.md").read_text(encoding="utf-8")
    for word in ("tape", "stepping", "replaying", "verifying", "learner"):
        assert word in text.split("##")[0]
    assert len([case for case in cases() if not case.name.endswith("-cuda")]) == 5
