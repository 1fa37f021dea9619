"""The page on selection names tests that exist and figures that are right."""

import math
import re
from pathlib import Path

from policy.draws import BRANCH_PURPOSE, SAMPLE_PURPOSE
from policy.explore import EPSILON_FLOOR

REPO = Path(__file__).resolve().parent.parent
PAGE = (REPO / "docs" / "selection.md").read_text()


def test_every_mechanism_names_a_test_that_exists():
    rows = re.findall(r"^\| .* \| (composes|adapts|takes precedence) \| .* \| `(test_\w+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 15 and {kind for kind, _ in rows} == {"composes", "adapts", "takes precedence"}
    defined = {
        name
        for path in (REPO / "tests").glob("test_policy_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert {name for _, name in rows} <= defined
    assert PAGE.count("`test_") == len(rows)


def test_the_bounds_and_constants_on_the_page_are_those_of_the_code():
    e = math.e
    for n, shares in ((4, "47.54 10.92 73.11"), (3, "57.61 15.54 84.46")):
        exact = (e / (e + n - 1), 1 / (1 + (n - 1) * e), 2 * e / (2 * e + n - 2))
        assert " ".join(f"{100 * value:.2f}" for value in exact) == shares
        assert all(f"{share} %" in PAGE for share in shares.split())
    assert f"0x{BRANCH_PURPOSE:X} to 33" in PAGE and SAMPLE_PURPOSE == 0x73656C34
    assert f"at least {EPSILON_FLOOR}" in PAGE
