"""The page of the policies says what the code does."""

import re

import pytest
import torch

from docs.policies import PAGE, page
from lob.errors import BadInput
from policy.builtin import NAMES, make
from policy.script import _OPTIONAL, _REQUIRED, read_script

DIRECTIONS, MAGNITUDES = ("short", "hold", "long", "flat"), ("quarter", "half", "full")
KINDS, URGENCIES = ("market", "join", "improve"), ("normal", "patient", "aggressive")


def test_the_policies_page_is_what_is_declared():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m docs.policies`"


def test_the_page_lists_every_code_once_under_its_names():
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    start = next(i for i, row in enumerate(rows) if row[0] == "" and row[1] == "market normal")
    heads, body = rows[start][1:], rows[start + 2 :]
    found = {f"{row[0]} {head}": int(code) for row in body for head, code in zip(heads, row[1:], strict=True)}
    expected = {}
    for direction in DIRECTIONS:
        for magnitude in MAGNITUDES:
            for kind in KINDS:
                for urgency in URGENCIES:
                    expected[f"{direction} {magnitude} {kind} {urgency}"] = len(expected)
    assert found == expected


def test_every_policy_and_every_column_of_a_script_stands_on_the_page():
    text = PAGE.read_text()
    assert all(f"`{name}`" in text for name in NAMES if name != "script:FILE")
    assert all(re.search(rf"^\| `{name}` \| {needed} \|", text, re.M) for name in _REQUIRED for needed in ("yes",))
    assert all(re.search(rf"^\| `{name}` \| no \|", text, re.M) for name in _OPTIONAL)


def test_the_pages_script_can_be_read_and_holds_between_its_steps(tmp_path):
    lines = re.search(r"(?:^    .*\n)+", PAGE.read_text(), re.M)
    assert lines
    (tmp_path / "s.csv").write_text("".join(line[4:] for line in lines[0].splitlines(True)))
    policy = make(f"script:{tmp_path / 's.csv'}", 0, 2)
    picked = {step: policy.act(torch.zeros(2, 128), None, step).action.tolist() for step in (0, 1, 9, 10, 11)}
    assert picked == {0: [72, 72], 1: [27, 27], 9: [27, 27], 10: [81, 81], 11: [27, 27]}


@pytest.mark.parametrize("content", ["step,action\n0,long\n", "when,what\n0,1\n"])
def test_a_script_that_cannot_be_read_points_to_the_page(tmp_path, content):
    (tmp_path / "s.csv").write_text(content)
    with pytest.raises(BadInput, match=r"docs/policies\.md"):
        read_script(tmp_path / "s.csv", 1)
