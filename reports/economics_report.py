"""What the economics commands print: sections of tables, from :mod:`waveproof.perf.economics` and its neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations

from waveproof.fixtures.products import PRODUCTS
from waveproof.perf import claims
from waveproof.perf.economics import (
    RANKINGS,
    USUAL_USD_PER_KWH,
    Ownership,
    Rental,
    Served,
    bisected,
    break_even_usd_per_gpu_hour,
    crossing,
    over_tariff,
    over_watts,
    phase_costs,
    ranked,
    usd_per_million,
)
from waveproof.perf.memory_fit import GB, GIB, Demand, Fit, Model
from waveproof.perf.printed import show_interval
from waveproof.perf.published_columns import FORMULAS, RATIO_OF, ROLES
from waveproof.perf.published_results import Checked
from waveproof.reports.sections import Section, Table


@dataclass(frozen=True)
class Power:
    """How power is billed on top of a rental price."""

    watts: Mapping[str, float]
    """Of a GPU with its share of the host, by product; of those whose watts are known."""
    words: str
    """Where the watts are from."""
    pue: float
    usd_per_kwh: tuple[float, ...]


def power_of(
    systems: Sequence[Served], measured: Mapping[str, float], host_watts: float, pue: float, tariffs: Sequence[float]
) -> Power:
    """What was measured, or the board power of a product that is known, with the host's share."""
    rated = {one.name: one.watts for one in PRODUCTS}
    watts = {one.product: measured.get(one.product, rated.get(one.product, 0.0)) for one in systems}
    known = {name: value for name, value in watts.items() if value}
    each = ", ".join(
        f"{name} {value:g} W ({'measured' if name in measured else 'rated'})" for name, value in known.items()
    )
    words = f"{each}; host's share {host_watts:g} W; busy and idle alike"
    return Power({name: value + host_watts for name, value in known.items()}, words, pue, tuple(tariffs))


def rates_section(systems: Sequence[Served], title: str = "What a GPU, a dollar and a node give") -> Section:
    """Derived figures, and who leads by which."""
    rows = tuple(
        (
            one.product, str(one.gpus), f"{one.per_stream_tok_s:g}", f"{one.aggregate_tok_s:,g}",
            f"{one.usd_per_gpu_hour:.2f}", f"{one.tok_s_per_gpu:.2f}", f"{one.tok_s_per_usd_hour:.2f}",
            f"{one.tok_s_per_node:,.1f}", f"{one.usd_per_hour:.2f}", f"{one.usd_per_million_output_tokens:.3f}",
        )
        for one in systems
    )  # fmt: skip
    columns = ("system", "GPUs", "tok/s per stream", "tok/s aggregate", "$/GPU-hour", "tok/s per GPU", "tok/s per $/h",
               "tok/s per node", "$/h", "$/M output tok")  # fmt: skip
    node = ", ".join(sorted({str(one.gpus_per_node) for one in systems}))
    rates = Table(
        "", columns, rows,
        f"tok/s per $/h: tok/s per GPU over $/GPU-hour. A node has {node} GPUs. $/M: every paid hour at the aggregate "
        "rate; if that was measured over whole requests, it pays for their prefill too.",
        tuple(range(1, len(columns))),
    )  # fmt: skip
    return Section(title, tables=(rates, _rankings(systems)))


def _rankings(systems: Sequence[Served]) -> Table:
    rows = []
    for name, figure in RANKINGS.items():
        order = ranked(systems, name)
        best = figure(order[0])
        rows.append((name, " > ".join(one.product for one in order),
                     ", ".join(f"{figure(one) / best:.2f}" for one in order)))  # fmt: skip
    return Table("Rankings", ("by", "order", "of the best"), tuple(rows))


def break_even_section(systems: Sequence[Served]) -> Section:
    """For each pair, the price at which one overtakes the other per dollar."""
    rows = []
    for one, rival in permutations(systems, 2):
        price = break_even_usd_per_gpu_hour(one, rival)
        # The bisection compares tokens per dollar, and knows nothing of the closed form.
        found = bisected(partial(_lead, one, rival), price / 1000, price * 1000)
        leads = one.tok_s_per_usd_hour > rival.tok_s_per_usd_hour
        change = price / one.usd_per_gpu_hour - 1
        words = f"leads until its price rises {change:+.0%}" if leads else f"overtakes if its price falls {change:+.0%}"
        rows.append((one.product, rival.product, f"{rival.usd_per_gpu_hour:.2f}", f"{one.usd_per_gpu_hour:.2f}",
                     f"{price:.4f}", f"{found:.4f}", words))  # fmt: skip
    columns = (
        "system",
        "rival",
        "rival's $/GPU-hour",
        "its $/GPU-hour",
        "break-even $/GPU-hour",
        "by bisection",
        "so it",
    )
    return Section(
        "The price at which one overtakes another",
        "Below its break-even a system makes more tokens for a dollar than the rival at the rival's price.",
        (Table("", columns, tuple(rows), "Break-even: rival's price x ratio of tok/s per GPU.", (2, 3, 4, 5)),),
    )


def _lead(one: Served, rival: Served, usd_per_gpu_hour: float) -> float:
    """Tokens per dollar of one at that price, less those of the rival at its own."""
    return one.priced(usd_per_gpu_hour).tok_s_per_usd_hour - rival.tok_s_per_usd_hour


def power_section(systems: Sequence[Served], power: Power) -> Section:
    """What power adds at each tariff, and where rankings flip."""
    low, high = USUAL_USD_PER_KWH
    strange = tuple(
        f"{one.product}: its watts are not known, so power is left out; give --watts {one.product}=W"
        for one in systems
        if one.product not in power.watts
    )
    systems = [one for one in systems if one.product in power.watts]
    rows = []
    for one in systems:
        line = over_tariff(one, power.watts[one.product], power.pue)
        rows.append((one.product, f"{power.watts[one.product] * power.pue:,.0f}", f"{line.slope:.2f}",
                     f"{line.at(0):.3f}", *(f"{line.at(tariff):.3f}" for tariff in power.usd_per_kwh)))  # fmt: skip
    columns = ("system", "W per GPU at the meter", "kWh/M output tok", "$/M, power in the price",
               *(f"$/M at {tariff:g} $/kWh" for tariff in power.usd_per_kwh))  # fmt: skip
    flips = [_flip(one, other, power) for one, other in combinations(systems, 2)]
    tariff = power.usd_per_kwh[-1] if power.usd_per_kwh else high
    return Section(
        "What power changes",
        "A rental price includes power, cooling, host, network, staff and margin, so that power changes nothing in the "
        "table above. Here it is billed on top, as in colocation: the same prices, and watts x PUE x tariff besides. "
        f"Watts: {power.words}. PUE {power.pue:g}.",
        (
            Table("", columns, tuple(rows), numeric=tuple(range(1, len(columns)))),
            Table(
                "Where the ranking per dollar flips",
                ("pair", "by tariff", f"by power, at {tariff:g} $/kWh"),
                tuple(flips),
                f"Usual tariffs here: {low:g} to {high:g} $/kWh.",
            ),
        ),
        warnings=strange,
    )  # fmt: skip


def _flip(one: Served, other: Served, power: Power) -> tuple[str, str, str]:
    first, second = (over_tariff(each, power.watts[each.product], power.pue) for each in (one, other))
    high = USUAL_USD_PER_KWH[1]
    cheap, dear = sorted((first, second), key=lambda line: line.at(0))
    at = crossing(first, second)
    if at is None:
        by_tariff = f"never: {cheap.product} is cheaper at every tariff"
    elif at > high:
        by_tariff = f"{at:.3f} $/kWh, beyond usual tariffs: {cheap.product} is cheaper below"
    else:
        by_tariff = f"{at:.3f} $/kWh: {cheap.product} is cheaper below, {dear.product} above"
    tariff = power.usd_per_kwh[-1] if power.usd_per_kwh else high
    leading, behind = (one, other) if first.at(tariff) < second.at(tariff) else (other, one)
    line = over_watts(leading, power.pue, tariff)
    target = over_tariff(behind, power.watts[behind.product], power.pue).at(tariff)
    if not line.slope:
        return f"{one.product}, {other.product}", by_tariff, "power is free"
    watts = (target - line.at_zero) / line.slope
    own = power.watts[leading.product]
    by_power = f"{leading.product} leads until it draws {watts:,.0f} W a GPU, {watts / own:.1f} times what is assumed"
    return f"{one.product}, {other.product}", by_tariff, by_power


def phases_section(systems: Sequence[Served], input_tokens: int, output_tokens: int) -> Section | None:
    """Costs by phase of the systems whose prefill was measured; None where none was."""
    rows = []
    for one in systems:
        if one.prefill_tok_s is None:
            continue
        costs = phase_costs(one.usd_per_hour, one.prefill_tok_s, one.aggregate_tok_s, input_tokens, output_tokens)
        rows.append((one.product, f"{one.prefill_tok_s:,g}", f"{costs.prefill_usd_per_million:.4f}",
                     f"{costs.decode_usd_per_million:.4f}", f"{costs.blended_usd_per_million:.4f}",
                     f"{costs.usd_per_million_output:.4f}", f"{costs.usd_per_request:.6f}"))  # fmt: skip
    if not rows:
        return None
    columns = ("system", "prefill tok/s", "$/M prompt tok", "$/M output tok", "$/M blended",
               "$/M output with its prompt", "$ per request")  # fmt: skip
    return Section(
        "By phase",
        f"A request of {input_tokens:,} prompt and {output_tokens:,} output tokens; the system prefills and decodes in "
        "turns. An aggregate rate that was measured over whole requests holds their prefill already: then the last "
        "three columns count it twice, and are upper bounds.",
        (Table("", columns, tuple(rows), numeric=tuple(range(1, len(columns)))),),
    )


def scenario_section(systems: Sequence[Served], scenarios: Sequence[Rental | Ownership]) -> Section:
    """Each system under its scenario, every assumption beside the result."""
    rows, tables = [], []
    paid = [one.priced(scenario.usd_per_busy_gpu_hour) for one, scenario in zip(systems, scenarios, strict=True)]
    best = max(paid, key=lambda one: one.tok_s_per_usd_hour)
    for one, scenario in zip(paid, scenarios, strict=True):
        busy = scenario.usd_per_busy_gpu_hour
        energy = scenario.energy_usd_per_gpu_hour
        rows.append((one.product, scenario.assumptions()[0][1], f"{scenario.usd_per_gpu_hour:.4f}", f"{energy:.4f}",
                     f"{busy:.4f}", f"{one.tok_s_per_gpu / busy:.3f}",
                     f"{usd_per_million(one.gpus * busy, one.aggregate_tok_s):.4f}",
                     "the cheapest" if one is best else f"{break_even_usd_per_gpu_hour(one, best):.4f}"))  # fmt: skip
        tables.append(Table(f"Assumptions: {one.product}", ("assumption", "value"), scenario.assumptions()))
    columns = ("system", "scenario", "$/GPU-hour", "energy, $/GPU-hour", "$ per busy GPU-hour", "tok/s per $/h",
               "$/M output tok", "the cheapest below, $ per busy GPU-hour")  # fmt: skip
    note = "$/GPU-hour of ownership holds capital, energy and operations; of rental what is paid, power on top apart."
    return Section(
        "Under declared scenarios", tables=(Table("", columns, tuple(rows), note, (2, 3, 4, 5, 6, 7)), *tables)
    )


def fits_section(model: Model, demands: Mapping[str, Demand], fits: Sequence[tuple[str, Fit]]) -> Section:
    """Memory of one GPU, by what fills it."""
    first = next(iter(demands.values()))
    rows = []
    for label, fit in fits:
        rows.append((
            label, *(f"{part / GB:.1f}" for part in (fit.memory, fit.weights, fit.pool, fit.state, fit.reserve)),
            f"{fit.margin / GB:+.1f}", fit.verdict,
            f"{fit.largest_pool_tokens:,}", f"{fit.static_fraction:.3f}",
        ))  # fmt: skip
    columns = ("GPUs", "memory", "weights", "KV pool", "state", "reserve", "margin", "verdict", "largest pool",
               "static fraction")  # fmt: skip
    served = model.served
    per_token = model.kv_bytes_per_token(first.kv_dtype)
    weights = (
        f"{first.weight_bytes / 1e12:g} TB given, split evenly"
        if first.weight_bytes
        else f"from its widths (one copy {model.weight_bytes_per_gpu(1) / 1e12:.3f} TB)"
    )
    spread = (
        "each GPU of a TP group holds the whole pool, since all heads share one latent"
        if first.pool_shards == 1
        else f"a pool is spread over {first.pool_shards} GPUs (context parallelism; or DP attention, which also "
        "puts the attention's weights on each of them: not counted here)"
    )
    lead = (
        f"{served.name}: weights {weights}. KV pool of {first.pool_tokens:,} tokens x {served.mla_layers} MLA "
        f"layers x {served.dimensions.latent} x {first.kv_dtype} = {per_token:,} B a token, "
        f"{per_token * first.pool_tokens / GB:.1f} GB a copy; {spread}."
    )
    if served.linear_layers:
        lead += (
            f" {served.linear_layers} linear layers hold {model.state_bytes_per_request() / 1e6:.0f} MB a request, "
            f"split by heads, for {first.requests} requests."
        )
    reserve = fits[0][1].reserve / GIB
    lead += (
        f" Reserve {reserve:.1f} GiB, given."
        if first.reserve_bytes is not None
        else f" Reserve {reserve:.1f} GiB: sglang's rule for chunks of 4,096; for its default of 16,384 on GPUs from "
        "160 GiB it is 25.5, captured graphs besides."
    )
    note = (
        "In GB of 10^9 bytes: AMD's 192 and 288 GB are GiB, NVIDIA's 180 and 288 are GB. State: of linear layers. "
        "Largest pool: in tokens. Static fraction: weights, pool and state over memory, what --mem-fraction-static "
        "would have to be."
    )
    numeric = (1, 2, 3, 4, 5, 6, 8, 9)
    return Section("Does it fit", lead, (Table("", columns, tuple(rows), note, numeric),))


def check_section(checked: Checked, everything: bool) -> Section:
    """Findings of a published table."""
    shown = [one for one in checked.findings if everything or one.verdict != "consistent"]
    rows = tuple(
        (str(one.line), one.product, one.heading, one.says, "" if one.should is None else show_interval(one.should),
         one.verdict, one.reason)
        for one in shown
    )  # fmt: skip
    count = {verdict: sum(one.verdict == verdict for one in checked.findings) for verdict in (
        "consistent", "coarse", "inconsistent", "unreadable", "not checked")}  # fmt: skip
    told = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
    lead = f"{len(checked.rows)} row{'s' * (len(checked.rows) != 1)}; derived cells: {told or 'none'}."
    if checked.unknown:
        unknown = ", ".join(map(repr, checked.unknown))
        lead += f" Not checked, since it is not known what they hold: {unknown}; {checked.hint}."
    if checked.nothing:
        lead += " Nothing could be recomputed: waveproof economics columns says what follows from which columns."
    columns = ("line", "system", "column", "says", "can be", "verdict", "why")
    tables = (Table("", columns, rows, numeric=(0, 3)),) if rows else ()
    return Section("Derived columns recomputed", lead, tables, warnings=checked.notes)


def columns_section() -> Section:
    """The columns that are known."""
    follows = {role.name: [one.text for one in FORMULAS if one.gives == role.name] for role in ROLES}
    rows = tuple(
        (role.name, role.unit, "; or ".join(follows[role.name]) or (
            f"{RATIO_OF[role.name]} over that of the base" if role.name in RATIO_OF else "given"),
         ", ".join(role.headings))
        for role in ROLES
    )  # fmt: skip
    note = "Headings are compared in lower case, by words: $ is usd, / is per, tokens is tok; cents is usd / 100."
    return Section("Columns", tables=(Table("", ("column", "unit", "follows from", "also goes by"), rows, note),))


def claim_section(figures: Mapping[str, claims.Figure], rulings: Sequence[claims.Ruling]) -> Section:
    """Figures, relations, and what would reconcile them."""
    told = tuple((one.name, one.printed, one.unit, show_interval(one.widest, 4), one.what) for one in figures.values())
    judged = tuple(
        (one.relation.name, one.computation(figures), f"{show_interval(one.implied, 4)} {one.relation.unit}"
         .removesuffix(" 1"),
         show_interval(one.widest, 4), one.claimed.printed, one.verdict, one.reason)
        for one in rulings
    )  # fmt: skip
    rows = []
    for one in claims.reconcile(figures):
        lowest = float(figures["fallback_speed"].nominal.low)
        falls = one.last_speed < lowest < one.first_speed
        below = f"; below {lowest:,.0f} after {one.model.reaches(lowest) / 1000:.0f}k tokens" if falls else ""
        rows.append((one.what, f"{one.first_speed:,.0f}", f"{one.last_speed:,.0f}", f"{one.quadratic_share:.0%}",
                     f"{one.fixed_seconds:.1f}", f"{one.tokens / one.seconds:,.0f}{below}"))  # fmt: skip
    return Section(
        "The prefill claim",
        "What each figure implies for the others, with the rounding of their prints.",
        (
            Table("Figures", ("name", "printed", "unit", "stands for", "what"), told),
            Table(
                "Relations",
                ("relation", "computed", "as printed", "with rounding", "claimed", "verdict", "why"),
                judged,
            ),
            Table(
                "What would reconcile a speed with a time",
                ("case", "first tok/s", "last tok/s", "time in b n^2", "or fixed seconds", "average tok/s"),
                tuple(rows),
                "Two ways to explain why the average is below the first speed. Either each token attends to all before "
                "it, so that the speed falls: n tokens take a n + b n^2 seconds. Or the speed stays, and something "
                "else takes so many seconds of each prompt.",
                (1, 2, 3, 4),
            ),
        ),
    )  # fmt: skip
