"""The page of the controllers says what the code declares."""

from docs.controllers import PAGE, page
from policy.bands import BANDS
from policy.diag_columns import REWARD_TERMS
from policy.health import ControlConfig
from policy.health_kernels import PARTS
from policy.rewards import RewardConfig
from policy.signals import IN_USE, SLOTS


def test_the_controllers_page_is_what_is_declared():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m docs.controllers`"


def test_every_signal_part_setting_term_and_band_stands_on_the_page():
    text = PAGE.read_text()
    assert all(f"| {i} | `{SLOTS[i].name}` |" in text for i in IN_USE)
    names = [*PARTS, *ControlConfig.model_fields, *RewardConfig.model_fields, *REWARD_TERMS, *BANDS]
    assert all(f"| `{name}` |" in text for name in names)


def test_every_setting_has_a_sentence_of_its_own():
    for config in (ControlConfig, RewardConfig):
        assert all((field.description or "").strip() for field in config.model_fields.values())
