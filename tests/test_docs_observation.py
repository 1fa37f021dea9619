"""The page of the observation says what the code declares."""

from docs.observation import PAGE, page
from lob.features import FEATURES


def test_the_observation_page_is_what_is_declared():
    assert PAGE.read_text() == page(), "run `python -m docs.observation`"


def test_every_market_slot_stands_on_the_page_with_its_formula():
    text = PAGE.read_text()
    assert all(f"| {f.slot} | `{f.name}` |" in text for f in FEATURES)
