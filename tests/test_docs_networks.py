"""The page of the networks says what the code builds."""

from docs.networks import PAGE, page
from policy.architecture import PROFILES, ModelConfig, profile
from policy.model import initialise


def test_the_networks_page_is_what_is_built():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m docs.networks`"


def test_every_size_and_every_tensor_stands_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in ModelConfig.model_fields if name != "profile")
    for name, tensor in initialise(profile("default"), 1).weights.items():
        assert f"| `{name}` | {' x '.join(map(str, tensor.shape))} |" in text
    counts = [f"{sum(p.numel() for p in initialise(a, 1).parameters()):,}" for a in PROFILES.values()]
    assert f"| parameters | {' | '.join(counts)} |" in text


def test_every_size_has_a_sentence_of_its_own():
    assert all((field.description or "").strip() for field in ModelConfig.model_fields.values())
