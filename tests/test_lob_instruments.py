"""Laws of the instrument registry, of symbols, and of the user's instruments file. The table below is typed by hand, not derived."""

import datetime as dt
from dataclasses import replace
from fractions import Fraction

import pytest

from lob.calendar import sessions
from lob.errors import BadInput, NotFound
from lob.instruments import EQUITY, REGISTRY, Instrument, front_contract, resolve
from store.toml_instruments import read_instruments

# root: tick in 1e-9 of a price, micro-dollars a tick of one lot -- from the exchange's contract specifications, typed a second time.
CONTRACT_TERMS = {
    "ES": (250_000_000, 12_500_000), "MES": (250_000_000, 1_250_000),
    "NQ": (250_000_000, 5_000_000), "MNQ": (250_000_000, 500_000),
    "RTY": (100_000_000, 5_000_000), "M2K": (100_000_000, 500_000),
    "YM": (1_000_000_000, 5_000_000), "MYM": (1_000_000_000, 500_000),
    "CL": (10_000_000, 10_000_000), "MCL": (10_000_000, 1_000_000),
    "GC": (100_000_000, 10_000_000), "MGC": (100_000_000, 1_000_000),
    "ZN": (15_625_000, 15_625_000), "ZB": (31_250_000, 31_250_000),
    "ZF": (7_812_500, 7_812_500), "ZT": (3_906_250, 7_812_500),
    "6E": (50_000, 6_250_000), "M6E": (100_000, 1_250_000),
    "EQUITY": (10_000_000, 10_000),
}  # fmt: skip


def test_every_tick_and_tick_value_is_the_exchanges() -> None:
    assert {root: (i.tick_price_e9, i.tick_value_usd_micros) for root, i in REGISTRY.items()} == CONTRACT_TERMS


def test_es_is_fifty_dollars_a_point_with_the_stated_fee_and_margin() -> None:
    es = REGISTRY["ES"]
    assert (es.multiplier, es.fee_usd_micros, es.margin_usd_micros, es.currency) == (50, 2_250_000, 17_900_000_000, "USD")


@pytest.mark.parametrize(
    ("symbol", "root"),
    [
        ("ES", "ES"), ("ESH4", "ES"), ("ESH24", "ES"), ("ES.FUT", "ES"), ("ES.c.0", "ES"), ("ES.v.0", "ES"), ("ES.n.1", "ES"),
        ("MESM5", "MES"), ("MESZ3", "MES"), ("6EH4", "6E"), ("M6EH4", "M6E"), ("M2KZ3", "M2K"), ("MNQU5", "MNQ"), ("NQU5", "NQ"),
        ("CLF6", "CL"), ("MCLF6", "MCL"), ("ZTU4", "ZT"), ("EQUITY", "EQUITY"),
    ],
)  # fmt: skip
def test_a_contract_symbol_resolves_to_its_root(symbol: str, root: str) -> None:
    assert resolve(symbol) is REGISTRY[root]


@pytest.mark.parametrize(
    "symbol",
    [
        "UD:1V: VT 2821913",
        "ESH4-ESM4",
        "ESH4 P4700",
        "ESH4 C5000",
        "AAPL",
        "",
        "H4",
        "es",
        "ESA4",
        "ESH",
        "ESH124",
        "ES.OPT",
        "ES.c.",
        "ESH4 ",
        "ESH٤",
    ],
)
def test_a_spread_an_option_or_an_unknown_symbol_never_resolves_silently(symbol: str) -> None:
    with pytest.raises(NotFound) as caught:
        resolve(symbol)
    message = str(caught.value)
    assert repr(symbol) in message and "instruments file" in message and "\n" not in message


def test_a_share_has_equity_terms_only_when_asked() -> None:
    apple = resolve("AAPL", equity=True)
    assert apple.root == "AAPL" and apple.tick_value_usd_micros == 10_000 and apple.calendar == "us_equity_extended"
    with pytest.raises(NotFound):
        resolve("ESH4-ESM4", equity=True)


def test_the_longest_root_wins_and_an_entry_of_the_very_name_before_it() -> None:
    registry = {**REGISTRY, "E": EQUITY, "ESH4": EQUITY}
    assert resolve("ESH4", registry) is EQUITY
    assert resolve("ESM4", registry) is REGISTRY["ES"]


@pytest.mark.parametrize(
    ("tick", "multiplier", "fee", "margin", "calendar", "currency"),
    [
        (Fraction(0), Fraction(50), 0, 1, "always", "USD"),
        (Fraction(1, 3), Fraction(50), 0, 1, "always", "USD"),  # no multiple of 1e-9
        (Fraction(1, 1000), Fraction(1, 1000), 0, 1, "always", "USD"),  # tick value odd: 1 micro-dollar
        (Fraction(1, 4), Fraction(-50), 0, 1, "always", "USD"),
        (Fraction(1, 4), Fraction(50), -1, 1, "always", "USD"),
        (Fraction(1, 4), Fraction(50), 0, 0, "always", "USD"),
        (Fraction(1, 4), Fraction(50), 0, 10**16, "always", "USD"),
        (Fraction(1, 4), Fraction(50), 0, 1, "lunar", "USD"),
        (Fraction(1, 4), Fraction(50), 0, 1, "always", "EUR"),
    ],
)
def test_terms_that_cannot_be_accounted_exactly_are_refused(tick, multiplier, fee, margin, calendar, currency) -> None:
    with pytest.raises(BadInput, match="instrument X"):
        Instrument("X", tick, multiplier, fee, margin, calendar, currency)


@pytest.mark.parametrize(
    ("root", "date", "symbol"),
    [
        ("ES", "2024-03-05", "ESH4"), ("ES", "2024-03-18", "ESM4"), ("MNQ", "2023-12-26", "MNQH4"), ("6E", "2029-12-20", "6EH0"),
        ("CL", "2024-03-05", "CLJ4"), ("CL", "2024-12-19", "CLG5"), ("GC", "2024-03-05", "GCJ4"), ("GC", "2024-12-30", "GCG5"),
        ("ZN", "2024-03-05", "ZNM4"), ("ZN", "2024-02-10", "ZNH4"), ("EQUITY", "2024-03-05", "EQUITY"),
    ],
)  # fmt: skip
def test_the_front_contract_is_the_one_traded_most(root: str, date: str, symbol: str) -> None:
    assert front_contract(REGISTRY[root], dt.date.fromisoformat(date)) == symbol
    assert resolve(symbol) is REGISTRY[root]


def test_an_entry_that_is_a_contract_itself_is_its_own_front() -> None:
    for root in ("ESH4", "ESH4-ESM4"):
        assert front_contract(replace(REGISTRY["ES"], root=root), dt.date(2024, 3, 5)) == root


def test_an_instruments_file_overrides_and_adds(tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[ES]\nfee_usd = 1.95\n\n[AAPL]\nlike = "EQUITY"\nmargin_usd = 95\n\n'
        '["ZW"]\ntick = "1/4"\nmultiplier = 50\nfee_usd = "2.4"\nmargin_usd = 2200\ncalendar = "cme_globex"\n',
        encoding="utf-8-sig",
    )
    mine = read_instruments(file)
    assert mine["ES"].fee_usd_micros == 1_950_000 and mine["ES"].tick == REGISTRY["ES"].tick
    assert REGISTRY["ES"].fee_usd_micros == 2_250_000  # the built-in one is untouched
    assert mine["AAPL"].root == "AAPL" and mine["AAPL"].margin_usd_micros == 95_000_000 and mine["AAPL"].tick == Fraction(1, 100)
    assert mine["ZW"].tick_value_usd_micros == 12_500_000
    assert resolve("ZWH4", mine) is mine["ZW"] and resolve("ESH4", mine).fee_usd_micros == 1_950_000
    assert set(mine) == set(REGISTRY) | {"AAPL", "ZW"}


def test_an_instruments_file_may_state_hours_of_its_own(tmp_path) -> None:
    file = tmp_path / "mine.toml"
    hours = 'zone = "Europe/London"\nopen = "01:00"\nclose = "19:00"\ndays = ["mon", "tue"]\nclosed = [2024-12-24]\npre_open_minutes = 15\n'
    terms = 'tick = "1/2"\nmultiplier = 25\nfee_usd = 1\nmargin_usd = 9000\ncalendar = "lme"\n'
    file.write_text(f'[calendars.lme]\n{hours}early = {{ 2024-12-23 = "12:30" }}\n\n[CA]\n{terms}')
    calendar = read_instruments(file)["CA"].calendar
    utc = dt.datetime(2024, 12, 23, tzinfo=dt.UTC)
    hour_ns = 3600 * 10**9
    start = int(utc.timestamp()) * 10**9
    held = sessions(calendar, start, start + 3 * 24 * hour_ns)
    assert held.trade_date.tolist() == [20241223], "no session on the 24th, and none on Wednesdays"
    assert (held.open_ns[0] - start, 2 * (held.close_ns[0] - start)) == (hour_ns, 25 * hour_ns)
    assert held.open_ns[0] - held.pre_open_ns[0] == hour_ns // 4


def test_a_decimal_in_an_instruments_file_is_exact(tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[RTY]\ntick = 0.1\n")
    assert read_instruments(file)["RTY"].tick == Fraction(1, 10)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[ES\n", "not valid TOML"),
        ("fee_usd = 2\n", "outside a table"),
        ("[ES]\nfee = 2\n", "unknown key 'fee'"),
        ("[ZW]\ntick = 0.25\n", "needs multiplier, fee_usd, margin_usd, calendar"),
        ('[ZW]\nlike = "ZQ"\n', "names no instrument"),
        ("[ZW]\nlike = 5\n", "names no instrument"),
        ("[ES]\ntick = true\n", "tick = True is no number"),
        ('[ES]\ntick = "1/0"\n', "is no number"),
        ("[ES]\ntick = nan\n", "is no number"),
        ("[ES]\nmultiplier = [50]\n", "is no number"),
        ("[ES]\ntick = 0.3333333333\n", "no positive multiple of 1e-9"),
        ("[ES]\nfee_usd = 2.2500001\n", "at most six decimals"),
        ("[ES]\nfee_usd = inf\n", "no dollar amount"),
        ("[ES]\nfee_usd = 1979-05-27\n", "no dollar amount"),
        ("[ES]\nmargin_usd = -3\n", "margin > 0"),
        ("[ES]\nmargin_usd = 10000000000\n", "thousand million"),
        ("[ES]\ncalendar = 5\n", "is no text"),
        ('[ES]\ncalendar = "lunar"\n', "calendar 'lunar' is not known"),
        ('[ES]\ncurrency = "EUR"\n', "currency 'EUR'"),
        ("[ES.c.0]\nfee_usd = 2\n", "unknown key 'c'"),
        ("calendars = 3\n", "'calendars' holds calendars, each a table of its own"),
        ('[calendars.lme]\nzone = "Europe/London"\nopen = "01:00"\n', "[calendars.lme]: close is missing"),
        ('[calendars.lme]\nzone = "Europe/Lonely"\nopen = "01:00"\nclose = "19:00"\n', "zone = 'Europe/Lonely' cannot be used"),
        ('[calendars.lme]\nzone = "Europe/London close=1"\n', "leave out white space"),
        ('[calendars.always]\nzone = "UTC"\n', "is known already"),
        ('[ES]\ncalendar = "zone=UTC"\n', "open is missing"),
    ],
)
def test_each_fault_of_an_instruments_file_is_one_line_that_names_file_and_key(tmp_path, text: str, says: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_instruments(file)
    message = str(caught.value)
    assert message.startswith(str(file)) and says in message and "\n" not in message


def test_an_instruments_file_that_is_absent_a_folder_or_not_text_is_said_so(tmp_path) -> None:
    with pytest.raises(NotFound, match="no such instruments file"):
        read_instruments(tmp_path / "none.toml")
    with pytest.raises(BadInput, match="cannot be read"):
        read_instruments(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"[ES]\n# \xff\n")
    with pytest.raises(BadInput, match="not UTF-8 at byte 7"):
        read_instruments(tmp_path / "bytes.toml")
