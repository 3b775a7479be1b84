"""Published tables with wrong cells, wrong arithmetic of costs, memory and claims; and right ones that look odd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any
from unittest.mock import patch

from waveproof.fixtures.products import product_named
from waveproof.perf import claims, economics, memory_fit, printed, published_expected
from waveproof.perf.published_results import case_study, check_text
from waveproof.selftest.planted import Planted

HEADING = (
    "system,GPUs,tok/s per stream,aggregate tok/s,$/GPU-hour,"
    "tok/s per GPU,tok/s per $,$ per M tokens,per node,per dollar vs"
)
TABLE = (
    ("MI355X", "8", "118", "952", "2.50", "119", "47.6", "5.84", "952", "1.00x"),
    ("B200", "16", "90", "498", "4.25", "31.1", "7.32", "37.9", "249", "0.15x"),
    ("B300", "8", "172", '"1,568"', "6.00", "196", "32.7", "8.50", '"1,568"', "-31%"),
)
"""The published comparison with its derived columns, rounded as people do."""

PLACES = {
    "gpus": 1,
    "aggregate": 3,
    "price": 4,
    "per GPU": 5,
    "per dollar": 6,
    "per million": 7,
    "per node": 8,
    "ratio": 9,
}


def table(heading: str = HEADING, **cells: str) -> str:
    """The table with cells replaced: ``B200_per_GPU="62.3"``."""
    rows = {row[0]: list(row) for row in TABLE}
    for name, text in cells.items():
        product, _, place = name.partition("_")
        rows[product][PLACES[place.replace("_", " ")]] = text
    return "\n".join([heading, *(",".join(row) for row in rows.values())])


def bad(text: str) -> list[str]:
    """Roles of cells that are inconsistent or unreadable."""
    return [one.role for one in check_text(text).findings if one.bad]


def cells(**replaced: str) -> Callable[[], Sequence[str]]:
    """Checks the table with cells replaced."""
    return lambda: bad(table(**replaced))


ONE_CHANGED = (
    "GPU,GPUs,aggregate tok/s,$/GPU/hr,tok/s per GPU,tok/s per $,Cost per 1M\n"
    'MI300X,8,"3,600",1.48,450,304,0.914\n'
    'MI325X,8,"{}",1.48,450,304,0.914\n'
)
"""Two systems of one price; what follows in the second row follows from 3,600 too."""


def _near(value: float, due: float) -> bool:
    return abs(value - due) <= 1e-6 * abs(due)


def _figures() -> bool:
    """By hand: 952 / 8, 952 / 20, 1e6 x 20 / (3600 x 952); 498 / 2."""
    one, two, _ = case_study()
    million = _near(one.usd_per_million_output_tokens, 5.835667600) and _near(two.tok_s_per_node, 249)
    return _near(one.tok_s_per_gpu, 119) and _near(one.tok_s_per_usd_hour, 47.6) and million


def _break_even() -> bool:
    """At 196 / 47.6 dollars the B300 makes as many tokens for a dollar as the MI355X."""
    one, _, other = case_study()
    price = economics.break_even_usd_per_gpu_hour(other, one)
    return _near(price, 4.117647059) and _near(other.priced(price).tok_s_per_usd_hour, one.tok_s_per_usd_hour)


def _tariff() -> bool:
    """(2.5 + 1.82 t) / 119 = (6 + 1.82 t) / 196 at t = 224 / 140.14."""
    one, _, other = case_study()
    first, second = (economics.over_tariff(each, 1400, 1.3) for each in (one, other))
    at = economics.crossing(first, second)
    return at is not None and _near(at, 1.598401598) and economics.crossing(first, second, 0, 0.4) is None


def _ownership() -> bool:
    """(35040 - 7008) / 35040 h + 1.5 kW x 1.2 x 0.1 $ + 0.02 $, over a half."""
    owned = economics.Ownership(
        35040, 4, 1300, 0.1, 1.2, 0.5, 0.2, host_watts_per_gpu=200, operations_usd_per_gpu_hour=0.02
    )
    return _near(owned.usd_per_busy_gpu_hour, 2 * (0.8 + 0.18 + 0.02))


def _annuity() -> bool:
    """10 % over two years pays 35040 off in two sums of 20189.71."""
    owned = economics.Ownership(35040, 2, 1, 0, 1, 1, cost_of_capital_per_year=0.1)
    return _near(owned.capital_usd_per_gpu_hour * 8760, 35040 * 1.21 * 0.1 / 0.21)


def _pool() -> bool:
    """24 layers x 576 x 2 bytes x 1e6 on each GPU, whatever TP."""
    model = memory_fit.model_named("Kimi-K3")
    sizes = {
        memory_fit.fit(model, product_named("B300"), memory_fit.Demand(tp, 10**6, weight_bytes=15 * 10**11)).pool
        for tp in (8, 16)
    }  # fmt: skip
    return sizes == {27_648_000_000}


def _state() -> bool:
    """69 layers x (96 x 128 x 128 x 4 + 3 x 3 x 12288 x 2) bytes a request, an eighth on each of 8."""
    model = memory_fit.model_named("Kimi-K3")
    held = memory_fit.fit(model, product_named("B300"), memory_fit.Demand(8, 0, requests=8, weight_bytes=8))
    return held.state == 69 * (96 * 128 * 128 * 4 + 3 * 3 * 12288 * 2)


def _gib() -> bool:
    """1.5 TB and 1M tokens: 206.2 - 187.5 - 27.6 GB is negative before any reserve, and 309.2 is enough."""
    model = memory_fit.model_named("Kimi-K3")
    demand = memory_fit.Demand(8, 10**6, reserve_bytes=0, weight_bytes=15 * 10**11)
    small, large = (memory_fit.fit(model, product_named(name), demand) for name in ("MI300X", "MI355X"))
    least = (192 << 30) - 187_500_000_000
    return not small.fits and large.fits and small.largest_pool_tokens == least // 27648


def _rounding() -> bool:
    """The comparison as people round it has no wrong cell, and a last digit that is one off is one."""
    return not bad(table()) and bad(table(MI355X_per_GPU="118")) == ["tok_s_per_gpu"]


def _explained() -> bool:
    """One changed given cell is blamed for the three that follow from it; a wrong cell by itself blames nobody."""
    reasons = [one.reason for one in check_text(ONE_CHANGED.format("3,400")).findings if one.bad]
    named = [reason.endswith("; all three agree if aggregate_tok_s is 3,600") for reason in reasons]
    itself = [one.reason for one in check_text(table(MI355X_per_million="5.48")).findings if one.bad]
    both = check_text(table(MI355X_per_million="5.48", MI355X_per_GPU="118")).findings
    return named == [True] * 3 and not any("agree if" in one for one in (*itself, *(one.reason for one in both)))


def _quotient() -> bool:
    """1 to 2 over 4 to 8 is 1/8 to 1/2."""
    found = printed.Interval(Fraction(1), Fraction(2)) / printed.Interval(Fraction(4), Fraction(8))
    return (found.low, found.high) == (Fraction(1, 8), Fraction(1, 2))


VERDICTS = {
    "average speed of the fallback": "disagree",
    "speed-up of the kernels": "agree",
    "ratio of the two times": "needs an assumption",
    "speed-up of the whole prompt": "disagree",
}


def _claim() -> bool:
    found = {one.relation.name: one.verdict for one in claims.judge_prefill()}
    return all(found[name] == verdict for name, verdict in VERDICTS.items())


def _reconciled() -> bool:
    """7,000 tok/s at first and 51 s in all: 26.43 s are quadratic, and the last chunk runs at 2,221 tok/s."""
    model = claims.falling_speed(7000, 172_000, 51)
    return _near(model.seconds(172_000), 51) and _near(model.speed(172_000), 2221.402214)


OWNED: dict[str, float] = {
    "usd_per_gpu": 1e4, "years": 4, "watts_per_gpu": 1e3, "usd_per_kwh": 0.1, "pue": 1.2, "utilisation": 0.5
}  # fmt: skip
IMPOSSIBLE = (
    ("utilisation", 1.2),
    ("utilisation", 0.0),
    ("pue", 0.9),
    ("years", 0.0),
    ("usd_per_kwh", -1.0),
    ("usd_per_gpu", float("nan")),
    ("residual_share", 2.0),
)


def _refused(name: str, attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except economics.BadScenario as error:
        return name in str(error)
    return False


def _refusals() -> bool:
    """By the field's name."""

    def owned(name: str, value: float) -> Callable[[], object]:
        fields: dict[str, Any] = {**OWNED, name: value}
        return lambda: economics.Ownership(**fields)

    refused = all(_refused(name, owned(name, value)) for name, value in IMPOSSIBLE)
    return refused and _refused("gpus", lambda: economics.Served("one", 0, 1, 1, 1))


TRIALS: dict[str, Callable[[], bool]] = {
    "case study by hand": _figures,
    "break-even price": _break_even,
    "tariff of the flip": _tariff,
    "ownership by hand": _ownership,
    "annuity by hand": _annuity,
    "each rank holds the pool": _pool,
    "linear state by hand": _state,
    "GiB and GB": _gib,
    "rounding explains what it may": _rounding,
    "one given cell explains a row": _explained,
    "quotient of intervals": _quotient,
    "prefill claim": _claim,
    "reconciled speeds": _reconciled,
    "refusals by name": _refusals,
}
"""By rule, whether it holds of the code as it is."""


def trial(*rules: str) -> list[str]:
    """Rules that do not hold; of all where none is named."""
    return [rule for rule in rules or TRIALS if not TRIALS[rule]()]


def wrong(target: object, name: str, stand_in: object, rule: str) -> Callable[[], Sequence[str]]:
    """Tries a rule with a part of the code replaced."""

    def tried() -> Sequence[str]:
        with patch.object(target, name, stand_in):
            return trial(rule)

    return tried


def _swapped(self: printed.Interval, other: printed.Interval) -> printed.Interval:
    ends = sorted((self.low / other.low, self.high / other.high))
    return printed.Interval(ends[0], ends[1])


def _anything(relation: claims.Relation, figures: Any) -> claims.Ruling:
    nothing = printed.exactly(1)
    return claims.Ruling(relation, nothing, nothing, figures[relation.claimed], "agree", "")


def _pool_by_tp(self: memory_fit.Model, dtype: str = "bf16") -> int:
    return 24 * 576 * 2 // 8


GERMAN = (
    "\ufeffSystem;GPUs;Aggregate (tok/s);$ / GPU-hr;tok/s/GPU;$/M tok;per $\n"
    "MI355X;8x;952;$2,50;119;$5,84;47,6\n"
    "B300;8x;1.568;$6,00;196;$8,50;32,7\n"
)

PLANTED = (
    Planted("wrong-cell", "two digits of $ per million are exchanged: 5.48 for 5.84", "usd_per_million_tokens",
            cells(MI355X_per_million="5.48")),
    Planted("last-digit", "119 tok/s per GPU stand as 118", "tok_s_per_gpu", cells(MI355X_per_GPU="118")),
    Planted("wrong-hundreds", "196 tok/s per GPU were rounded to 300", "tok_s_per_gpu", cells(B300_per_GPU="300")),
    Planted("swapped-rows", "tok/s per GPU of two systems stand in each other's row", "tok_s_per_gpu",
            cells(MI355X_per_GPU="196", B300_per_GPU="119")),
    Planted("eight-for-sixteen", "B200's tok/s per GPU divides by 8 of its 16 GPUs", "tok_s_per_gpu",
            cells(B200_per_GPU="62.3")),
    Planted("one-node-for-two", "B200's two nodes count as one", "tok_s_per_node", cells(B200_per_node="498")),
    Planted("cents", "$ per million stand in cents", "usd_per_million_tokens", cells(B300_per_million="850")),
    Planted("another-price", "tok/s per dollar of the B300 at the B200's price", "tok_s_per_usd_hour",
            cells(B300_per_dollar="46.1")),
    Planted("thousands-as-decimals", "1.568 tok/s in a table that writes 2.50", "tok_s_per_gpu",
            cells(B300_aggregate="1.568")),
    Planted("sign-of-percent", "31 % less is written as 31 %", "per_usd_ratio", cells(B300_ratio="31%")),
    Planted("wrong-given-cell", "3,400 tok/s for 3,600, where all that follows from it is right", "tok_s_per_usd_hour",
            lambda: bad(ONE_CHANGED.format("3,400"))),
    Planted("blames-each-cell", "each cell that follows from a wrong one is explained by itself: rows may be swapped",
            "one given cell explains a row",
            wrong(published_expected.Figures, "explanation", lambda *_: "", "one given cell explains a row")),
    Planted("blames-an-end", "the given cell is said to be the least with which the others agree, 3,596",
            "one given cell explains a row",
            wrong(published_expected, "_roundest", lambda interval: interval.low, "one given cell explains a row")),
    Planted("blames-a-given-cell-anyway", "a given cell is blamed with which the others of the row do not agree",
            "one given cell explains a row",
            wrong(published_expected.Figures, "_fitting", lambda *_: "3,600", "one given cell explains a row")),
    Planted("no-gpus", "a system has 0 GPUs", "gpus", cells(B200_gpus="0")),
    Planted("half-a-gpu", "a system has 7.5 GPUs", "gpus", cells(B200_gpus="7.5")),
    Planted("negative-price", "a price is negative", "usd_per_gpu_hour", cells(B200_price="-4.25")),
    Planted("euros", "a price in euros in a column of dollars", "usd_per_gpu_hour", cells(B200_price="€4.25")),
    Planted("words", "a number is written in words", "aggregate_tok_s", cells(B200_aggregate="about five hundred")),
    Planted("without-rounding", "the check takes each print as exact, and rejects what was only rounded",
            "rounding explains what it may",
            wrong(printed.Printed, "interval", property(lambda one: printed.Interval(one.value, one.value)),
                  "rounding explains what it may")),
    Planted("any-interval-meets", "the check finds every cell consistent", "rounding explains what it may",
            wrong(printed.Interval, "meets", lambda one, other: True, "rounding explains what it may")),
    Planted("quotient-ends", "a quotient divides low by low and high by high", "quotient of intervals",
            wrong(printed.Interval, "__truediv__", _swapped, "quotient of intervals")),
    Planted("per-minute", "$ per million take a minute for an hour", "case study by hand",
            wrong(economics, "SECONDS_PER_HOUR", 60, "case study by hand")),
    Planted("nodes-rounded-down", "16 GPUs are one node", "case study by hand",
            wrong(economics.Served, "nodes", property(lambda one: 1), "case study by hand")),
    Planted("break-even-upside-down", "the ratio of tok/s per GPU is inverted", "break-even price",
            wrong(economics, "break_even_usd_per_gpu_hour",
                  lambda one, rival: rival.usd_per_gpu_hour * rival.tok_s_per_gpu / one.tok_s_per_gpu,
                  "break-even price")),
    Planted("power-per-system", "power of one GPU is taken for that of all", "tariff of the flip",
            wrong(economics, "over_tariff", lambda one, watts, pue: economics.CostLine(
                one.product, one.usd_per_million_output_tokens, economics.usd_per_million(watts, one.aggregate_tok_s)),
                "tariff of the flip")),
    Planted("no-range", "a flip beyond the range is reported as within", "tariff of the flip",
            wrong(economics, "crossing", lambda one, other, low=0, high=9: (other.at_zero - one.at_zero) / (
                one.slope - other.slope), "tariff of the flip")),
    Planted("no-residual", "the residual value is forgotten", "ownership by hand",
            wrong(economics.Ownership, "capital_usd_per_gpu_hour", property(lambda one: one.usd_per_gpu / (
                one.years * 8760)), "ownership by hand")),
    Planted("idle-is-free", "idle hours cost nothing", "ownership by hand",
            wrong(economics.Ownership, "usd_per_busy_gpu_hour", property(lambda one: one.usd_per_gpu_hour),
                  "ownership by hand")),
    Planted("no-interest", "the cost of capital is forgotten", "annuity by hand",
            wrong(economics.Ownership, "capital_usd_per_gpu_hour", property(lambda one: one.usd_per_gpu / (
                one.years * 8760)), "annuity by hand")),
    Planted("anything-goes", "assumptions are not looked at", "refusals by name",
            wrong(economics, "_demand", lambda *_: None, "refusals by name")),
    Planted("pool-split-by-tp", "the latent pool is divided by TP as a pool of heads would be",
            "each rank holds the pool",
            wrong(memory_fit.Model, "kv_bytes_per_token", _pool_by_tp, "each rank holds the pool")),
    Planted("state-in-bf16", "the state of linear layers is counted in bf16", "linear state by hand",
            wrong(memory_fit.LinearState, "bytes_per_request", property(lambda one: one.heads * one.head_dim**2 * 2),
                  "linear state by hand")),
    Planted("reserve-forgotten-sign", "what is missing is reported as left", "GiB and GB",
            wrong(memory_fit.Fit, "margin", property(lambda one: abs(one.memory - one.weights - one.pool)),
                  "GiB and GB")),
    Planted("always-agree", "every relation of the claim agrees", "prefill claim",
            wrong(claims, "judge", _anything, "prefill claim")),
    Planted("speed-does-not-fall", "the quadratic part is lost", "reconciled speeds",
            wrong(claims, "falling_speed", lambda speed, tokens, seconds: claims.FallingSpeed(1 / speed, 0.0),
                  "reconciled speeds")),
    Planted("headings-of-newcomers", "$/GPU/hr, Cost per 1M, two systems of one price and the same figures", "",
            lambda: bad(ONE_CHANGED.format("3,600"))),
    Planted("rounded-table", "31.125 stands as 31.1 and 37.93 as 37.9", "", cells()),
    Planted("coarse-table", "cells with two digits say little, and nothing wrong", "",
            cells(MI355X_per_million="5.8", B200_per_dollar="7.3", B300_per_GPU="200 tok/s", B200_per_million="40")),
    Planted("rounded-to-nothing", "0.000 for 0.00028, and nothing is computed from it", "",
            lambda: bad("gpus,aggregate,price,tok/s per GPU,tok/s per $,$/M tokens\n8,0.01,5,0.00,0.000,1111111\n")),
    Planted("empty-cells", "cells that say nothing, in the ways in which people write that", "",
            cells(MI355X_per_GPU="", B200_per_GPU="n/a", B300_per_GPU="-")),
    Planted("decimal-commas", "semicolons, decimal commas, points for thousands, a byte order mark, currency signs", "",
            lambda: bad("sep=;\n" + GERMAN)),
    Planted("cents-in-the-heading", "a column of cents that says so", "",
            lambda: bad("system,GPUs,aggregate tok/s,$/GPU-hour,cents per M tokens\nMI355X,8,952,$2.50,584\n")),
    Planted("signs-and-units", "dollar signs, spaces for thousands and units in cells", "",
            cells(B300_price="$6.00/GPU-hr", B300_aggregate="1 568 tok/s", B300_per_million="US$ 8.50")),
    Planted("as-it-is", "every rule of arithmetic, with the code as it is", "", trial),
)  # fmt: skip
