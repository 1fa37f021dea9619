"""Laws of an instrument's terms where the store holds the exchange's own definition of it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lob.errors import BadInput, NotFound
from lob.instruments import REGISTRY, resolve
from lob.records import RECORDS, RTYPE
from lob.units import UNDEFINED_PRICE, UNDEFINED_TIMESTAMP
from sim.ingest import ingest
from sim.registry import contradictions, registry_of
from sim.run_data import RunData
from sim.verify import verify_tables
from sim.verify_types import FAILED, OK
from store.dbn import write_dbn
from store.definitions import definition_of
from tests.market_files import T0
from tests.oracle.as_run import market, run_data
from tests.oracle.simulate import random_run

E9 = 10**9


def define(tmp_path, symbol="ESH4", asset=b"ES", tick=25 * E9 // 100, size=50 * E9, amount=125_000_000, factor=10_000_000, at=T0, **more):
    """A store with one definition; by default CME's own numbers for ES (a tick of 12.50 is said as 0.125 in units of 0.01)."""
    record = np.zeros(1, RECORDS["definition"])
    record["length"], record["rtype"], record["instrument_id"] = 130, RTYPE["definition"], 7
    record["ts_recv"] = record["ts_event"] = at
    record["expiration"], record["activation"] = UNDEFINED_TIMESTAMP, UNDEFINED_TIMESTAMP
    record["raw_symbol"], record["asset"], record["currency"] = symbol.encode(), asset, b"USD"
    record["min_price_increment"], record["unit_of_measure_qty"] = tick, size
    record["min_price_increment_amount"], record["display_factor"], record["contract_multiplier"] = amount, factor, 2**31 - 1
    for name, value in more.items():
        record[name] = value
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / f"{symbol}.{at}.dbn"
    write_dbn(path, record, "definition", symbol, 7, "GLBX.MDP3", at, at + 1)
    ingest(path, tmp_path / "S")
    return tmp_path / "S"


def test_the_real_definitions_have_the_terms_of_the_registry(shared_data, tmp_path):
    ingest(shared_data / "l1/esu4_nqu4_20240701.definition.dbn.zst", tmp_path / "S")
    for symbol in ("ESU4", "NQU4"):
        defined, known = definition_of(tmp_path / "S", symbol), resolve(symbol)
        assert (defined.tick, defined.multiplier, defined.currency) == (known.tick, known.multiplier, "USD")
        assert defined.expires_ns == 1726839000 * E9  # 2024-09-20 13:30 UTC
        assert registry_of(None, tmp_path / "S", symbol) == REGISTRY
    assert definition_of(tmp_path / "S", "ESZ4") is None


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"tick": E9 // 2, "amount": 250_000_000}, "tick 1/2, not 1/4 as ES has it here"),
        ({"size": 20 * E9, "amount": 50_000_000}, "multiplier 20, not 50 as ES has it here"),
        ({"currency": b"EUR"}, "currency EUR, not USD as ES has it here"),
    ],
)
def test_a_definition_that_contradicts_the_registry_is_refused_unless_the_user_states_the_terms(tmp_path, stated, said):
    store = define(tmp_path, **stated)
    with pytest.raises(BadInput, match="the store's definition of ESH4 .* says " + said) as caught:
        registry_of(None, store, "ESH4")
    assert "\n" not in str(caught.value) and "instruments file" in str(caught.value)
    (tmp_path / "own.toml").write_text("[ES]\nfee_usd = 1.95\n")
    notes = []
    assert registry_of(tmp_path / "own.toml", store, "ESH4", note=notes.append)["ES"].fee_usd_micros == 1_950_000
    assert len(notes) == 1 and "the instruments file's terms are used" in notes[0]


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({}, None),
        ({"tick": E9 // 2, "amount": 250_000_000}, "tick 1/2, not 1/4 as ES has it here"),
        ({"size": 20 * E9, "amount": 50_000_000}, "multiplier 20, not 50 as ES has it here"),
        ({"tick": UNDEFINED_PRICE, "size": UNDEFINED_PRICE}, None),
        ({"symbol": "ESH4-ESM4", "tick": E9 // 20}, None),
    ],
)
def test_an_ingest_says_in_one_line_where_a_definition_differs_from_the_registry(tmp_path, stated, said):
    store = define(tmp_path, **stated)
    path = next(tmp_path.glob("*.dbn"))
    lines = [line for line in ingest(path, store)["warnings"] if "definition" in line]
    assert len(lines) == (said is not None), "told again when the file is held already"
    if said is None:
        return
    assert lines[0].startswith(f"{path}: the definition of ESH4 says {said}: a replay of it is refused until") and "\n" not in lines[0]
    own = REGISTRY | {"ES": replace(REGISTRY["ES"], fee_usd_micros=1)}
    (line,) = (line for line in ingest(path, store, registry=own)["warnings"] if "definition" in line)
    assert line == f"{path}: the definition of ESH4 says {said.replace('as ES has it here', 'as the instruments file has it under ES')}"


def test_contracts_that_differ_alike_share_a_line(tmp_path):
    for i, (symbol, tick) in enumerate((("ESH4", E9), ("ESM4", E9), ("ESU4", E9 // 4), ("ESZ4", E9 // 2))):
        define(tmp_path, symbol, tick=tick, amount=UNDEFINED_PRICE, at=T0 + i)
    lines = contradictions(tmp_path / "S", ("ESH4", "ESM4", "ESU4", "ESZ4", "XAH4"), REGISTRY)
    assert [line.split(", not ")[0] for line in lines] == [
        "the definition of ESH4 (and of 1 more) says tick 1", "the definition of ESZ4 says tick 1/2",
    ]  # fmt: skip


def test_what_a_tick_is_worth_may_stand_in_for_a_size_that_is_no_multiplier(tmp_path):
    store = define(tmp_path, "ZNH4", b"ZN", tick=15_625_000, size=100_000 * E9, amount=15_625_000_000, factor=E9)
    assert definition_of(store, "ZNH4").multiplier is None, "the two ways of saying it disagree"
    assert registry_of(None, store, "ZNH4") == REGISTRY, "and one of them is the registry's"


def test_an_instrument_that_nobody_knows_takes_tick_and_multiplier_of_its_definition(tmp_path):
    store = define(tmp_path, "XAH4", b"XA", tick=E9, size=10 * E9, amount=10 * E9, factor=E9)
    with pytest.raises(NotFound, match=r'has tick 1 and multiplier 10: state only fee_usd, margin_usd and calendar .* \["XA"\]'):
        registry_of(None, store, "XAH4")
    file = tmp_path / "own.toml"
    file.write_text('[XA]\nfee_usd = 1\nmargin_usd = 500\ncalendar = "always"\n')
    found = resolve("XAH4", registry_of(file, store, "XAH4"))
    assert (found.tick, found.multiplier, found.margin_usd_micros) == (1, 10, 500_000_000)
    with pytest.raises(BadInput, match="a new instrument needs tick, multiplier too"):
        registry_of(file)


def test_an_unconfirmed_multiplier_is_never_taken_for_an_instrument_that_nobody_knows(tmp_path):
    store = define(tmp_path, "HEJ4", b"HE", tick=25_000_000, size=40_000 * E9, amount=10 * E9, factor=E9)
    (tmp_path / "own.toml").write_text('[HE]\nfee_usd = 1\nmargin_usd = 500\ncalendar = "always"\n')
    with pytest.raises(BadInput, match="a new instrument needs tick, multiplier too"):
        registry_of(tmp_path / "own.toml", store, "HEJ4")


def test_a_definition_is_of_the_contract_that_lives_in_the_range(tmp_path):
    """ESH4 of 2014 and of 2024 have one name."""
    store = define(tmp_path, size=10 * E9, amount=25_000_000, expiration=T0 - 10**15, activation=T0 - 10**17)
    define(tmp_path, at=T0 + 10, expiration=T0 + 10**15, activation=T0 - 10**14)
    define(tmp_path, at=T0 + 20, size=70 * E9, amount=175_000_000, activation=T0 + 10**16)
    assert definition_of(store, "ESH4", T0, T0 + 1).multiplier == 50
    assert definition_of(store, "ESH4", T0 - 10**16, T0 - 5 * 10**15).multiplier == 10
    assert definition_of(store, "ESH4").multiplier == 70
    notes = []
    registry_of(None, store, "ESH4", (T0, T0 + 10**15 + 1), notes.append)
    assert len(notes) == 1 and "expires at 2024-01-06T" in notes[0]


def test_undefined_terms_contradict_nothing(tmp_path):
    store = define(tmp_path, tick=UNDEFINED_PRICE, size=UNDEFINED_PRICE, amount=UNDEFINED_PRICE, factor=UNDEFINED_PRICE)
    assert definition_of(store, "ESH4").multiplier is None and registry_of(None, store, "ESH4") == REGISTRY


def test_verify_holds_the_terms_against_the_definition_and_names_it(tmp_path):
    oracle = random_run(5)
    data = run_data(oracle)
    terms = data.terms
    tick, value = terms.tick_price_e9, terms.tick_value_usd_micros
    size = value * 1000 * E9 // tick  # value / 1e6 dollars a tick / (tick / 1e9), in 1e-9
    numbers = {"tick": tick, "size": size, "amount": value * 1000, "factor": E9}
    right = definition_of(define(tmp_path / "right", terms.instrument, **numbers), terms.instrument)
    verdict = verify_tables(data, market(oracle), defined=right)
    assert verdict.ok and "the hand-typed table and the store's definition" in verdict.proof
    assert [check.status for check in verdict.checks if check.name == "definition"] == [OK]
    wrong = definition_of(
        define(tmp_path / "wrong", terms.instrument, **{**numbers, "size": 2 * size, "amount": value * 2000}), terms.instrument
    )
    verdict = verify_tables(data, market(oracle), defined=wrong)
    assert not verdict.ok and [check.status for check in verdict.checks if check.name == "definition"] == [FAILED]
    manifest = json.loads(json.dumps(data.manifest))
    manifest["identity"]["config"]["instrument"]["symbol"] = "XYZ"
    unlisted = RunData(**{**data.__dict__, "manifest": manifest, "summary": None, "finished": False})
    verdict = verify_tables(unlisted, market(oracle), defined=right)
    assert verdict.ok and "proved by the store's definition of" in verdict.proof
