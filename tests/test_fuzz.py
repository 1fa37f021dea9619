"""Damaged, odd and hostile input of every kind: a command does its work wholly or says in one line why not, in bounded memory and time.

The cases follow from a seed and a number; what fails prints the command that plays it again. `tests.fuzz` says what each suite does.
"""

import pytest

from tests.fuzz.limits import fuzz

SUITES = {"ingests": 500, "runs+stores": 40, "checkpoints+queries+settings": 80}
"""Suite -> cases in `make test`."""
DEEP = {"ingests": 10_000, "runs": 2_000, "stores": 1_000, "checkpoints": 1_000, "queries": 3_000, "settings": 5_000}


@pytest.mark.parametrize("suite", SUITES)
def test_whatever_a_file_holds_it_is_taken_wholly_or_refused_in_one_line(suite, tmp_path):
    found = fuzz(suite, 1, SUITES[suite], tmp_path)
    assert not found.faults, str(found)
    assert found.outcomes.total() == SUITES[suite] and len(found.outcomes) > 3, found.outcomes


@pytest.mark.deep
@pytest.mark.parametrize("suite", DEEP)
def test_ten_thousand_more_are_taken_wholly_or_refused_in_one_line(suite, tmp_path):
    found = fuzz(suite, 2, DEEP[suite], tmp_path)
    assert not found.faults, str(found)
    assert found.outcomes.total() == DEEP[suite]
