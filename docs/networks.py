"""Writes docs/networks.md from `policy.architecture` and `policy.model`: `python -m docs.networks`. A test holds the page to them."""

from pathlib import Path

from lob.layout import BUS_SLOTS, STATE_DIM
from policy.architecture import PROFILES, Architecture, ModelConfig
from policy.blocks import GROUPS, STREAMS
from policy.heads import CHOICES
from policy.model import HISTORY_SLOTS, layout, parameters
from policy.temporal import FLOW_SLOTS

PAGE = Path(__file__).resolve().parent / "networks.md"

_DEFAULT = PROFILES["default"]
_EACH = _DEFAULT.atoms + _DEFAULT.quantiles

_INTRO = f"""# Networks

Written by `python -m docs.networks` from `policy/architecture.py` and `policy/model.py`.

A network reads an observation ({STATE_DIM} slots, [observation.md](observation.md)), the market slots of the last rows (`window`
times {HISTORY_SLOTS}, zeros before the start of a window of the tape) and the signal bus ({BUS_SLOTS} numbers,
[controllers.md](controllers.md)). Of each of the {CHOICES} choices it says two value distributions: C51 ({_DEFAULT.atoms} atoms) and IQN
({_DEFAULT.quantiles} quantiles). An auxiliary output predicts the next bar's return. In the order of the data:

- **Variable selection.** The {len(GROUPS)} groups of the observation are weighed by a softmax of the whole observation (Lim et al. 2021):
  {", ".join(GROUPS)}. It starts even.
- **Temporal encoder.** Each past row is embedded, and beside it its order flow ({len(FLOW_SLOTS)} slots to {_DEFAULT.flow}). A selective
  state-space block (Gu and Dao 2023; Dao and Gu 2024) and an attention block (Vaswani et al. 2017) read the rows side by side, both from
  the present row. Rows before the start are masked. It sees the market alone: where weights stand still, every row of a tape is encoded
  once (`Actor.encode_tape`).
- **Trunk.** Gated residual networks (Lim et al. 2021) or rectified linear layers. The bus enters the first one.
- **Mixture of experts.** A softmax gate that sees the whole observation mixes all experts. It starts even, and can learn at once.
- **Heads.** Per branch a value and its choices' advantages (Wang et al. 2016; Tavakoli et al. 2018), {STREAMS} streams of {_EACH} numbers.
  For picking and learning they are folded into one matrix of {CHOICES} times {_EACH} rows, since dueling is linear.

Weights start uniform within 1 over the root of a layer's inputs, each tensor from a generator of its own: equal seeds give equal bytes. A
checkpoint states the sizes, and is refused where names, shapes or order of its tensors differ from what this build makes of them. Products
in bfloat16 are a matter of the run, not of the network: weights are float32.

## Sizes

`sim policy init --profile NAME`; in a training config the section `model`, with `profile` and any size that is to differ from it. 0 leaves
a part out.

"""


def _sizes() -> list[str]:
    rows = [f"| size | {' | '.join(PROFILES)} | what |", "|---" * (len(PROFILES) + 2) + "|"]
    for name in Architecture().document():
        values = (str(a.document()[name]).lower() for a in PROFILES.values())
        rows.append(f"| `{name}` | {' | '.join(values)} | {ModelConfig.model_fields[name].description} |")
    rows.append(f"| parameters | {' | '.join(f'{parameters(a):,}' for a in PROFILES.values())} | |")
    return rows


def _tensors() -> list[str]:
    rows = ["| tensor | shape | numbers | first values |", "|---|---|---|---|"]
    for spec in layout(_DEFAULT):
        first = f"{spec.centre:g}" if not spec.spread else f"{spec.centre:.3g} ± {spec.spread:.3g}"
        rows.append(f"| `{spec.name}` | {' x '.join(map(str, spec.shape))} | {spec.size:,} | {first} |")
    return rows


def page() -> str:
    """The whole page as Markdown."""
    tensors = ["", "## Tensors of `default`", "", "In the order of the layout, which is that of the flat buffer that holds them.", ""]
    return _INTRO + "\n".join([*_sizes(), *tensors, *_tensors()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
