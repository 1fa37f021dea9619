"""The fuzzer of what users write by hand: scripts of picks, instruments files, training settings, and the values of options.

It is read, or one line names the file (or the option) and what to write: at once, whatever the text nests, counts or repeats.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lob.errors import TapeproofError
from lob.units import parse_duration_ns, parse_time_ns, usd_to_micros
from policy.script import read_script
from sim.train_config import read_settings
from store.toml_instruments import read_instruments
from tests.fuzz.command import spoken
from tests.fuzz.mutate import CELLS, NAMES, bytes_changed, pick, text_changed

SCRIPT = b"step,lane,action,conviction_ppm,health_ppm,variance_scale_ppm\n0,0,72,1000000,5,0\n1,1,81,0,0,1000000\n10,0,3,1,1,1\n"
TOML = (
    b'[ES]\nfee_usd = 1.95\n\n[AAPL]\nlike = "EQUITY"\nmargin_usd = 95\n\n["ZW"]\ntick = "1/4"\nmultiplier = 50\nfee_usd = 2.40\n'
    b'margin_usd = 2200\ncalendar = "cme_globex"\ncurrency = "USD"\n'
)
TRAIN = b'[loop]\nsteps = 200\nlanes = 8\n\n[learner]\nlr = 3e-4\nbatch = 64\n\n[model]\nprofile = "small"\n'
VALUES = (
    "1e999999999", "-1e999999999", "1e-999999999", "0x7fffffffffffffffffff", "9" * 5000, "nan", "inf", "-inf", "true", '""',
    '"1/0"', '"1/3"',
    '"1e99999999"', "[" * 3000 + "]" * 3000, "[" * 60_000, "{a=" * 2000, "1979-05-27T07:32:00Z", "'''a\nb'''", '"\\u0000"',
    '"\\u2028"', "[]", "{}",
    '"' + "x" * 70_000 + '"', "-0.0", "1__0", "'é'", "0.1", "-1", "0", "1", "9223372036854775808",
)  # fmt: skip


def prepare(folder: Path) -> Callable[[np.random.Generator], str]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def play(rng: np.random.Generator) -> str:
        kind = pick(rng, ("script", "script", "instruments", "instruments", "train", "set", "units", "command"))
        path = folder / pick(rng, ("x.csv", "x.toml", "a b.txt", "é.csv"))
        try:
            return f"{kind} {_played(kind, path, rng)}"
        except TapeproofError as error:
            line = str(error)
            assert line.isprintable() and len(line) < 3000, line
            assert kind in ("set", "units") or str(path) in line, line
            return f"{kind} refused"

    return play


def _played(kind: str, path: Path, rng: np.random.Generator) -> str:
    if kind == "script":
        path.write_bytes(text_changed(SCRIPT, rng) if rng.random() < 0.8 else bytes_changed(SCRIPT, rng))
        script = read_script(path, lanes=2)
        assert script.rows >= 1 and (np.diff(script.step) >= 0).all() and script.values.min() >= 0
        assert set(script.lane.tolist()) <= {-1, 0, 1} and script.values[0].max() < 108
    elif kind == "instruments":
        path.write_bytes(_toml(TOML, rng))
        for instrument in read_instruments(path).values():
            assert instrument.tick_price_e9 > 0 and instrument.tick_value_usd_micros > 0
    elif kind == "train":
        path.write_bytes(_toml(TRAIN, rng))
        read_settings(path, [])
    elif kind == "set":
        name = pick(rng, ("learner.lr", "env.max_lots", "loop.steps", "x", "a.b.c", ".", "a.", "é.é"))
        read_settings(None, [f"{name}{pick(rng, ('=', '', ' = '))}{pick(rng, VALUES + CELLS)}"] * int(pick(rng, (1, 2))))
    elif kind == "units":
        pick(rng, (parse_duration_ns, parse_time_ns, usd_to_micros))(pick(rng, CELLS + VALUES))
    else:
        path.write_bytes(_toml(TOML, rng))
        odd = pick(rng, (*CELLS, *VALUES, *NAMES)).replace("\0", "")
        options = {
            "--start": "2024-03-05",
            "--end": "2024-03-06",
            "--clock": "1s",
            "--instrument": "ESH4",
            "--policy": "flat",
            "--store": path,
        }
        options |= {
            "--runs": path.parent / "runs",
            "--instruments": path,
            "--fees": "2",
            "--capital": "100000",
            "--seed": "1",
            "--lanes": "1",
        }
        options |= {"--latency": "1ms", "--level": "full", "--set": "env.max_lots=2"}
        name = pick(rng, list(options))
        chosen = options | {name: odd}
        return str(spoken(["replay", *[f"{option}={value}" for option, value in chosen.items()]]))
    return "read"


def _toml(text: bytes, rng: np.random.Generator) -> bytes:
    lines = text.split(b"\n")
    match rng.integers(0, 4):
        case 0:
            return bytes_changed(text, rng)
        case 1:
            return text_changed(text, rng, b" = ")
        case _:
            places = [i for i, line in enumerate(lines) if b" = " in line]
            for _ in range(int(pick(rng, (1, 1, 2)))):
                at = pick(rng, places)
                lines[at] = lines[at].partition(b" = ")[0] + b" = " + pick(rng, VALUES).encode()
            return b"\n".join(lines)
