"""Costs of tokens and published tables: against figures by hand, and each check against what it must find."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from waveproof.perf.economics import (
    BadScenario,
    Ownership,
    Rental,
    Served,
    bisected,
    break_even_usd_per_gpu_hour,
    crossing,
    over_price,
    over_tariff,
    over_watts,
    phase_costs,
    ranked,
)
from waveproof.perf.printed import Interval, Unreadable, read_printed, show
from waveproof.perf.published_columns import FORMULAS, ROLES, BadTable, Formula, normalised, role_of
from waveproof.perf.published_results import case_study, check_text
from waveproof.reports.cli_economics import app
from waveproof.selftest.mutants.economics import GERMAN, PLANTED, TRIALS, bad, table, trial
from waveproof.selftest.planted import Planted

MI355X, B200, B300 = case_study()
RUN = CliRunner()


@pytest.mark.parametrize("entry", PLANTED, ids=lambda one: one.name)
def test_planted(entry: Planted) -> None:
    broken = entry.broken()
    assert entry.due in broken if entry.due else not broken


@pytest.mark.parametrize("rule", TRIALS)
def test_by_hand(rule: str) -> None:
    assert trial(rule) == []


def test_rankings_of_the_case_study() -> None:
    def order(by: str) -> str:
        return " ".join(one.product for one in ranked(case_study(), by))

    assert order("per dollar") == "MI355X B300 B200"
    assert order("per stream") == order("per GPU") == order("per node") == "B300 MI355X B200"
    with pytest.raises(BadScenario, match="ranking = colour"):
        ranked(case_study(), "colour")


def _zero(line: Callable[[float], float], due: float, high: float) -> float:
    return bisected(lambda value: line(value) - due, 0, high)


def test_closed_forms_agree_with_bisection() -> None:
    draw = random.Random(7)
    for _ in range(20):
        one, other = (
            Served(name, draw.randint(1, 72), 1, draw.uniform(10, 1e4), draw.uniform(0.5, 10)) for name in "ab"
        )
        price, line = break_even_usd_per_gpu_hour(one, other), over_price(one)
        assert _zero(line.at, other.usd_per_million_output_tokens, 1e6) == pytest.approx(price)
        lines = [over_tariff(each, draw.uniform(300, 2000), 1.2) for each in (one, other)]
        at = crossing(lines[0], lines[1])
        if at is None:
            dearer = {lines[0].at(tariff) > lines[1].at(tariff) for tariff in (0.0, 1.0, 1e3, 1e9)}
            assert len(dearer) == 1
        else:
            first, second = lines
            apart = replace(first, at_zero=first.at_zero - second.at_zero, slope=first.slope - second.slope)
            assert _zero(apart.at, 0.0, 4 * at + 1) == pytest.approx(at)


def test_equal_slopes_never_cross() -> None:
    line = over_tariff(MI355X, 1000, 1.0)
    assert crossing(line, replace(line, at_zero=line.at_zero + 1)) is None
    with pytest.raises(BadScenario, match="one sign"):
        bisected(lambda _: 1.0, 0, 1)


def test_power_lines() -> None:
    # 8 x 1.4 kW x 1.3 over 952 x 3600 / 1e6 million tokens an hour.
    assert over_tariff(MI355X, 1400, 1.3).slope == pytest.approx(14.56 / 3.4272)
    assert over_watts(MI355X, 1.3, 0.1).at(1400) == pytest.approx(over_tariff(MI355X, 1400, 1.3).at(0.1))


def test_rental_with_power_on_top() -> None:
    rented = Rental(2.0, 0.5, 1000, 1.5, 0.2)
    assert rented.usd_per_busy_gpu_hour == pytest.approx((2.0 + 0.3) / 0.5)
    assert Rental(2.0).usd_per_busy_gpu_hour == 2.0
    assert dict(Rental(2.0).assumptions())["power"].startswith("within the rental price")


def test_every_field_of_ownership_is_told() -> None:
    owned = Ownership(12345, 3.5, 1111, 0.123, 1.17, 0.61, 0.07, 0.09, 222, 0.31, 0.041, "measured")
    told = " ".join(value for _, value in owned.assumptions())
    for value in ("12,345", "3.5", "1111", "0.123", "1.17", "61%", "7%", "9.0%", "222", "31%", "0.041", "measured"):
        assert value in told
    assert owned.kwh_per_gpu_hour == pytest.approx(1.333 * 1.17 * (0.61 + 0.31 * 0.39))


def test_phases_and_their_blend() -> None:
    costs = phase_costs(36.0, 10_000, 1_000, 3_000, 1_000)
    assert (costs.prefill_usd_per_million, costs.decode_usd_per_million) == (1.0, 10.0)
    assert costs.usd_per_request == pytest.approx(0.013)
    assert costs.blended_usd_per_million == pytest.approx(3.25)
    assert costs.usd_per_million_output == pytest.approx(13.0)
    with pytest.raises(BadScenario, match="output_tokens = 0"):
        phase_costs(1, 1, 1, 1, 0)


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [
        ("1,568", 1568, 0.5), ("$2.50", 2.5, 0.005), ("172k", 172_000, 500), ("1.5", 1.5, 0.05),
        ("-31%", -0.31, 0.005), ("1.65x", 1.65, 0.005), ("584¢", 5.84, 0.005), ("~118 tok/s", 118, 0.5),
        (".5", 0.5, 0.05),
        ("1\u202f568", 1568, 0.5), ("US$ 6.00/GPU-hr", 6, 0.005), ("8×", 8, 0.5),
    ],
)  # fmt: skip
def test_prints(text: str, value: float, half: float) -> None:
    found = read_printed(text)
    assert (float(found.value), float(found.half_unit)) == (pytest.approx(value), pytest.approx(half))


@pytest.mark.parametrize("text", ["", "%", "¢", "1,56", "12,34,567", "4-7k", "<5", "€3", "five", "1.2.3", "0x8", "1e3"])
def test_no_numbers(text: str) -> None:
    with pytest.raises(Unreadable):
        read_printed(text)


def test_decimal_commas() -> None:
    assert read_printed("1.568,5", ",").value == Fraction(15685, 10)
    assert check_text(GERMAN).notes == ("decimals are separated by ','",)


def test_intervals_hold_what_they_should() -> None:
    draw = random.Random(3)
    for _ in range(50):
        ends = [sorted((Fraction(draw.randint(1, 99)), Fraction(draw.randint(1, 99)))) for _ in range(3)]
        a, b, c = (Interval(low, high) for low, high in ends)
        x, y, z = (low + (high - low) * Fraction(draw.randint(0, 9), 9) for low, high in ends)
        found = a * b / c + a - b
        assert found.low <= x * y / z + x - y <= found.high


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda one: one.text)
def test_formulas_give_the_case_study(formula: Formula) -> None:
    row = {"gpus": 8, "gpus_per_node": 8, "nodes": 1, "aggregate_tok_s": 952, "usd_per_gpu_hour": 2.5,
           "watts_per_gpu": 1400, "tok_s_per_gpu": 119}  # fmt: skip
    due = {"nodes": 1, "usd_per_hour": 20, "tok_s_per_gpu": 119, "tok_s_per_usd_hour": 47.6, "tokens_per_usd": 171_360,
           "tok_s_per_node": 952, "usd_per_million_tokens": 5.8356676, "kwh_per_million_tokens": 3.2679739}  # fmt: skip
    known = {name: Interval(Fraction(str(value)), Fraction(str(value))) for name, value in row.items()}
    assert float(formula.compute(known).middle) == pytest.approx(due[formula.gives])
    assert set(formula.needs) <= set(row)


@pytest.mark.parametrize(
    ("heading", "role"),
    [
        ("$ / GPU-hr", "usd_per_gpu_hour"), ("Price (USD per GPU hour)", "usd_per_gpu_hour"),
        ("tok/s/GPU", "tok_s_per_gpu"),
        ("tokens/second per GPU", "tok_s_per_gpu"), ("$/M tokens", "usd_per_million_tokens"), ("# GPUs", "gpus"),
        ("tok/s per $", "tok_s_per_usd_hour"), ("$/GPU/hr", "usd_per_gpu_hour"), ("USD / (GPU·h)", "usd_per_gpu_hour"),
        ("Cost per 1M tokens", "usd_per_million_tokens"), ("Relative perf/$", "per_usd_ratio"), ("vs H200", None),
        ("(tok/s) / ($/GPU-hour)", "tok_s_per_usd_hour"), ("Remarks", None),
    ],
)  # fmt: skip
def test_headings(heading: str, role: str | None) -> None:
    found, scale = role_of(heading)
    assert (found.name if found else None, scale) == (role, 1)


def test_no_heading_is_of_two_columns() -> None:
    seen: dict[str, str] = {}
    for role in ROLES:
        for heading in {normalised(role.name), *map(normalised, role.headings)}:
            assert seen.setdefault(heading, role.name) == role.name


def _reason(role: str, **cells: str) -> str:
    (found,) = (one for one in check_text(table(**cells)).findings if one.bad and one.role == role)
    return found.reason


def test_reasons_say_what_may_have_happened() -> None:
    assert "fits with 8 GPUs" in _reason("tok_s_per_gpu", B200_per_GPU="62.3")
    assert "cents for dollars" in _reason("usd_per_million_tokens", B300_per_million="850")
    (swapped, _) = (one for one in check_text(table(MI355X_per_GPU="196", B300_per_GPU="119")).findings if one.bad)
    assert "rows may be swapped" in swapped.reason
    assert "31.125, with all rounding 31.094 to 31.156" in _reason("tok_s_per_gpu", B200_per_GPU="33.1")


def _written(value: float, draw: random.Random) -> str:
    """Rounded to some digits, with or without separators of thousands."""
    decimals = draw.choice((0, 1, 2, 3)) if value >= 10 else draw.choice((2, 3))
    return f"{value:,.{decimals}f}" if draw.random() < 0.5 else f"{value:.{decimals}f}"


def _random_table(draw: random.Random, wrong: float = 1.0) -> str:
    """A row that somebody rounded, with $ per million off by a factor."""
    one = Served("X", draw.choice((1, 4, 8, 16, 72)), 1, draw.uniform(100, 90_000), draw.uniform(1, 12))
    rounded = replace(one, aggregate_tok_s=float(f"{one.aggregate_tok_s:.1f}"), usd_per_gpu_hour=one.usd_per_gpu_hour)
    figures = (one.tok_s_per_gpu, one.tok_s_per_usd_hour, one.usd_per_million_output_tokens * wrong, one.tok_s_per_node)
    cells = [f"{rounded.aggregate_tok_s}", f"{one.usd_per_gpu_hour:.2f}", *(_written(each, draw) for each in figures)]
    heading = "product;gpus;aggregate;price;tok/s per GPU;tok/s per $;$/M tokens;per node"
    return f"{heading}\nX;{one.gpus};{';'.join(cells)}\n"


def test_no_rounding_is_taken_for_an_error_and_errors_above_rounding_are_found() -> None:
    draw = random.Random(11)
    for _ in range(40):
        text = _random_table(draw)
        assert bad(text) == [], text
    found = sum("usd_per_million_tokens" in bad(_random_table(draw, 1.05)) for _ in range(40))
    # A price of a dollar and a figure of $0.05 with two decimals hide 5 %; most tables do not.
    assert found >= 30


def test_what_is_not_checked_is_named() -> None:
    found = check_text("product,tok/s per GPU,colour\nMI355X,119,red\n")
    (one,) = found.findings
    assert (one.verdict, one.reason) == ("not checked", "needs aggregate_tok_s, gpus")
    assert found.unknown == ("colour",)
    assert found.nothing
    assert found.hint == "name it: --column colour=ROLE (waveproof economics columns lists the roles)"
    with pytest.raises(BadTable, match="no heading color; headings are product, tok/s per GPU, colour"):
        check_text("product,tok/s per GPU,colour\nMI355X,119,red\n", columns={"color": "gpus"})


def test_given_cells_that_explain_a_row() -> None:
    def reasons(gpus: str, tok_s: str, rest: str) -> set[str]:
        text = f"gpus,tok/s,price,per GPU,per node,$/M tok\n{gpus},{tok_s},2.50,{rest}\n"
        return {one.reason.rpartition("; ")[2] for one in check_text(text).findings if one.bad}

    assert reasons("16", "952", "119,952,5.84") == {"all three agree if gpus is 8 or if aggregate_tok_s is 1,904"}
    assert reasons("8", "900", "119,952,5.84") == {"all three agree if aggregate_tok_s is 952"}
    assert all("agree" not in one for one in reasons("8", "900", "119,999,5.84"))


def test_derived_columns_serve_where_nothing_else_does() -> None:
    text = "product,price,tok/s per GPU,$/M tokens\nMI355X,$2.50,119,{}\n"
    assert bad(text.format("5.84")) == []
    assert bad(text.format("5.48")) == ["usd_per_million_tokens"]


def test_list_prices_may_be_exact() -> None:
    text = table(B300_per_dollar="32.6")
    assert bad(text) == []
    (found,) = (one for one in check_text(text, exact=("usd_per_gpu_hour", "aggregate_tok_s")).findings if one.bad)
    assert found.role == "tok_s_per_usd_hour"
    assert "it fits if digits were cut off" in found.reason
    with pytest.raises(BadTable, match="--exact colour"):
        check_text(text, exact=("colour",))


def test_full_zeros_are_coarse_and_not_wrong() -> None:
    (found,) = (one for one in check_text(table(B300_per_GPU="200")).findings if one.verdict == "coarse")
    assert found.reason == "only if rounded to 100s: aggregate / gpus is 196"
    assert read_printed("2.50").coarse == read_printed("2.50").interval
    assert read_printed("100%").coarse == read_printed("100%").interval


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus\n", "1 lines hold something"),
        ("colour,shape\nred,round\n", "no column is known among 'colour', 'shape'"),
        ("gpus,# GPUs\n8,8\n", "'gpus' and '# GPUs' both are gpus"),
        ("gpus,price\n8,1,568\n", ":2: 3 cells under 2 headings: '568'"),
    ],
)
def test_no_tables(text: str, message: str) -> None:
    with pytest.raises(BadTable, match=message):
        check_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("product,gpus,per stream\nMI355X,8,118\n", "columns aggregate_tok_s, usd_per_gpu_hour are missing"),
        ("product,gpus,per stream,tok/s,rental price\nX,8,118,952,2\n", "column usd_per_gpu_hour is missing; heading "
         "'rental price' is not known, name it: --column 'rental price=usd_per_gpu_hour' ("),
        ("product,gpus,per stream,tok/s,price\nX,8,118,,-\n", "(X): aggregate_tok_s, usd_per_gpu_hour are missing"),
        ("product,gpus,per stream,tok/s,price\nX,8,118,,abc\n", "line 2 (X): usd_per_gpu_hour: 'abc': no plain number"),
        ("product,gpus,per stream,tok/s,price\nX,0,118,9,1\n", "line 2 (X): gpus: '0': must be a whole number above 0"),
    ],
)  # fmt: skip
def test_a_row_that_lacks_something_serves_nothing(text: str, message: str) -> None:
    with pytest.raises(BadTable, match=re.escape(message)):
        check_text(text).served()


def test_numbers_for_people() -> None:
    assert [show(value) for value in (0, 31.125, 171_360, 952)] == ["0", "31.125", "171,360", "952"]
    assert float(show(0.00001234)) == pytest.approx(0.00001234)


def test_check_ends_red_on_a_wrong_cell_only(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    file.write_text(table(), encoding="utf-8-sig")
    assert RUN.invoke(app, ["check", str(file)]).exit_code == 0
    file.write_text(table(B200_per_GPU="62.3"))
    result = RUN.invoke(app, ["check", str(file)])
    assert result.exit_code == 1
    assert "it fits with 8 GPUs" in " ".join(result.output.split())
    file.write_text("product,gpus,tok/s\nA,8,952\n")
    assert RUN.invoke(app, ["check", str(file)]).exit_code == 3, "nothing was recomputed, which is not well"


def test_points_before_threes_separate_thousands_where_nothing_else_fits() -> None:
    checked = check_text("product;gpus;aggregate;price;tokens per $\nA;8;1.568;6;117.600\nB;8;952.381;1;428.571.450\n")
    assert [one.verdict for one in checked.findings] == ["consistent", "consistent"]


def test_capital_that_costs_next_to_nothing() -> None:
    owned = Ownership(30_000, 4, 1000, 0.1, 1.2, 0.6, residual_share=0.1)
    for rate in (1e-17, 1e-12, 1e-9):
        cheap = replace(owned, cost_of_capital_per_year=rate)
        assert cheap.capital_usd_per_gpu_hour == pytest.approx(owned.capital_usd_per_gpu_hour, rel=1e-6)


def test_commands_print_what_they_must_show() -> None:
    told = RUN.invoke(app, ["case-study"])
    assert told.exit_code == 0
    for figure in ("47.60", "5.836", "4.1176", "1.598", "27,648", "3,884,738", "weights alone do not fit"):
        assert figure in told.output
    claim = RUN.invoke(app, ["claim"])
    assert (claim.exit_code, "3,373" in claim.output, "needs an assumption" in claim.output) == (1, True, True)
    owned = RUN.invoke(app, ["price", "--capex", "MI355X=30000", "--prefill", "MI355X=13000", "--utilisation", "0.6"])
    assert owned.exit_code == 0
    assert "$30,000 per GPU" in owned.output
    assert RUN.invoke(app, ["fits", "--gpu", "MI300X"]).exit_code == 1
    assert RUN.invoke(app, ["fits", "--gpu", "MI355X"]).exit_code == 0
    assert "usd_per_million_tokens" in RUN.invoke(app, ["columns"]).output
    assert "DeepSeek-V3\n" in RUN.invoke(app, ["fits", "--model", "list"]).output


def test_headings_are_named_for_prices_too(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    file.write_text("product,gpus,per stream,tok/s,daily\nX1,8,50,400,1.00\n")
    told = RUN.invoke(app, ["price", str(file), "--column", "daily=usd_per_gpu_hour"])
    assert (told.exit_code, "5.556" in told.output) == (0, True)
    assert isinstance(RUN.invoke(app, ["price", "--column", "daily=usd_per_gpu_hour"]).exception, ValueError)


def test_systems_that_are_not_known_by_name(tmp_path: Path) -> None:
    file = tmp_path / "results.csv"
    file.write_text(
        "product,gpus,per stream,aggregate,price\nMI355X,8,118,952,2.50\nX1,8,50,400,1.00\nX1,8,60,500,1.50\n"
    )
    told = RUN.invoke(app, ["price", str(file)])
    assert told.exit_code == 0
    assert "give --watts X1=W" in told.output
    assert "$1.5 per GPU-hour" in told.output
    with pytest.raises(ValueError, match="X1: its watts are not known"):
        RUN.invoke(app, ["price", str(file), "--capex", "X1=9000"], catch_exceptions=False)


@pytest.mark.slow
def test_pictures_and_page(tmp_path: Path) -> None:
    picture, page = tmp_path / "cost.png", tmp_path / "page.html"
    told = RUN.invoke(app, ["case-study", "--picture", str(picture), "--page", str(page)])
    assert "B300 overtakes MI355X below $4.12." in told.output
    assert "change places at $1.60 per kWh" in told.output
    assert {file.name for file in tmp_path.iterdir()} == {"cost.png", "cost-memory.png", "page.html"}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert page.read_text().count("<img") == 2


def test_options_that_cannot_be() -> None:
    for options in (["--capex", "H100=1"], ["--capex", "MI355X"], ["--watts", "MI355X=hot"], ["--utilisation", "1.5"]):
        result = RUN.invoke(app, ["price", *options])
        assert isinstance(result.exception, ValueError)
        assert options[-1].split("=")[0] in str(result.exception)
