"""What a served token costs: from measured rates and a price of a GPU-hour, rented or owned.

Nothing is assumed that is not a field: each scenario lists its assumptions (:meth:`Rental.assumptions`,
:meth:`Ownership.assumptions`), and every command prints them beside its result.

Costs are linear in a price or in a tariff, so that where two systems change places has a closed form
(:func:`break_even_usd_per_gpu_hour`, :func:`crossing`); :func:`bisected` finds the same point without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

HOURS_PER_YEAR = 8760
"""365 days."""
SECONDS_PER_HOUR = 3600
USUAL_USD_PER_KWH = (0.02, 0.40)
"""From hydropower on long contracts to retail prices in dear countries: the range that is called usual here."""


class BadScenario(ValueError):
    """An assumption or a figure that cannot be; the message holds its name, the value and the rule."""


def _demand(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise BadScenario(f"{name} = {value}: {rule}")


def _positive(name: str, value: float) -> None:
    _demand(math.isfinite(value) and value > 0, name, value, "must be finite and above 0")


def _not_negative(name: str, value: float) -> None:
    _demand(math.isfinite(value) and value >= 0, name, value, "must be finite and not negative")


@dataclass(frozen=True)
class Served:
    """What a system was measured to do.

    Raises:
        BadScenario: a rate is not above 0, or a count of GPUs is not a whole number above 0.
    """

    product: str
    gpus: int
    per_stream_tok_s: float
    """Of one stream where it is alone, or as the source has it."""
    aggregate_tok_s: float
    """Output tokens of all streams together, at the best concurrency."""
    usd_per_gpu_hour: float
    prefill_tok_s: float | None = None
    """Prompt tokens of the whole system, cold; None where it was not measured."""
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        for name in ("gpus", "gpus_per_node"):
            count = getattr(self, name)
            _demand(
                isinstance(count, int) and count > 0, f"{self.product}: {name}", count, "must be a whole number above 0"
            )
        for name in ("per_stream_tok_s", "aggregate_tok_s", "usd_per_gpu_hour"):
            _positive(f"{self.product}: {name}", getattr(self, name))
        if self.prefill_tok_s is not None:
            _positive(f"{self.product}: prefill_tok_s", self.prefill_tok_s)

    @property
    def tok_s_per_gpu(self) -> float:
        """Output tokens per second of one GPU's share."""
        return self.aggregate_tok_s / self.gpus

    @property
    def nodes(self) -> float:
        """Of ``gpus_per_node`` GPUs; a part of one is not rounded up."""
        return self.gpus / self.gpus_per_node

    @property
    def tok_s_per_node(self) -> float:
        """Output tokens per second of one node's share."""
        return self.aggregate_tok_s / self.nodes

    @property
    def usd_per_hour(self) -> float:
        """Of the whole system."""
        return self.gpus * self.usd_per_gpu_hour

    @property
    def tok_s_per_usd_hour(self) -> float:
        """Output tokens per second for each dollar an hour: (tok/s per GPU) / ($/GPU-hour)."""
        return self.aggregate_tok_s / self.usd_per_hour

    @property
    def usd_per_million_output_tokens(self) -> float:
        """With every hour that is paid spent at the measured rate."""
        return usd_per_million(self.usd_per_hour, self.aggregate_tok_s)

    def priced(self, usd_per_gpu_hour: float) -> Served:
        """The same rates at another price."""
        return replace(self, usd_per_gpu_hour=usd_per_gpu_hour)


def usd_per_million(usd_per_hour: float, tok_s: float) -> float:
    """Dollars per million tokens of a system that costs so much and makes so many."""
    _positive("tok_s", tok_s)
    return usd_per_hour * 1e6 / (SECONDS_PER_HOUR * tok_s)


@dataclass(frozen=True)
class Rental:
    """A GPU-hour is bought. Its price holds host, network, power, cooling, staff and margin, unless power is on top.

    Raises:
        BadScenario: by the field's name.
    """

    usd_per_gpu_hour: float
    utilisation: float = 1.0
    """Share of the paid hours in which the system serves at the measured rate."""
    watts_on_top: float = 0.0
    """Of a GPU with its share of the host, billed besides the price (colocation); 0 where the price holds the power."""
    pue: float = 1.0
    """Power of the building over power of the machines (power usage effectiveness)."""
    usd_per_kwh: float = 0.0

    def __post_init__(self) -> None:
        _positive("usd_per_gpu_hour", self.usd_per_gpu_hour)
        _shared_rules(self.utilisation, self.pue, self.usd_per_kwh)
        _not_negative("watts_on_top", self.watts_on_top)

    @property
    def energy_usd_per_gpu_hour(self) -> float:
        """Of power that is billed on top, all hours: an idle GPU is billed as a busy one."""
        return self.watts_on_top / 1000 * self.pue * self.usd_per_kwh

    @property
    def usd_per_busy_gpu_hour(self) -> float:
        """Each hour of serving also pays for those without."""
        return (self.usd_per_gpu_hour + self.energy_usd_per_gpu_hour) / self.utilisation

    def assumptions(self) -> tuple[tuple[str, str], ...]:
        """Name and value of every one."""
        power = (
            (
                ("watts on top, per GPU with its share of the host", f"{self.watts_on_top:g} W, busy or idle"),
                ("PUE", f"{self.pue:g}"),
                ("tariff", f"${self.usd_per_kwh:g} per kWh"),
            )
            if self.watts_on_top
            else (("power", "within the rental price, with host, cooling, staff and margin"),)
        )
        return (
            ("scenario", "rental"),
            ("price", f"${self.usd_per_gpu_hour:g} per GPU-hour"),
            ("utilisation", f"{self.utilisation:.0%} of the paid hours at the measured rate"),
            *power,
        )


@dataclass(frozen=True)
class Ownership:
    """A GPU is bought with its share of host and network, and pays its own power.

    Raises:
        BadScenario: by the field's name.
    """

    usd_per_gpu: float
    """Capital: of a node, divide by its GPUs."""
    years: float
    watts_per_gpu: float
    """Measured at the load, or the board's rated power."""
    usd_per_kwh: float
    pue: float
    utilisation: float
    """Share of all hours in which the system serves at the measured rate."""
    residual_share: float = 0.0
    """Of the capital, what it is sold for after ``years``."""
    cost_of_capital_per_year: float = 0.0
    """0.08 is 8 % a year: the capital is then paid off in equal yearly sums."""
    host_watts_per_gpu: float = 0.0
    idle_power_share: float = 1.0
    """Power while it does not serve, as a share of that while it does; 1 overstates, and is the default."""
    operations_usd_per_gpu_hour: float = 0.0
    """Space, staff, repair, network."""
    watts_are: str = "rated"
    """``rated`` or ``measured``; for the reader."""

    def __post_init__(self) -> None:
        for name in ("usd_per_gpu", "years", "watts_per_gpu"):
            _positive(name, getattr(self, name))
        for name in ("cost_of_capital_per_year", "host_watts_per_gpu", "operations_usd_per_gpu_hour"):
            _not_negative(name, getattr(self, name))
        for name in ("residual_share", "idle_power_share"):
            _demand(0 <= getattr(self, name) <= 1, name, getattr(self, name), "must be a share, from 0 to 1")
        _shared_rules(self.utilisation, self.pue, self.usd_per_kwh)

    @property
    def capital_usd_per_gpu_hour(self) -> float:
        """Straight over the years, or as an annuity where capital costs something."""
        residual, rate = self.usd_per_gpu * self.residual_share, self.cost_of_capital_per_year
        if rate == 0:
            return (self.usd_per_gpu - residual) / (self.years * HOURS_PER_YEAR)
        # 1 - (1 + rate) ** -years, without its cancellation at small rates.
        discount = -math.expm1(-self.years * math.log1p(rate))
        return (self.usd_per_gpu - residual * (1 - discount)) * rate / discount / HOURS_PER_YEAR

    @property
    def kwh_per_gpu_hour(self) -> float:
        """At the meter of the building, mean of busy and idle hours."""
        busy = (self.watts_per_gpu + self.host_watts_per_gpu) / 1000 * self.pue
        return busy * (self.utilisation + self.idle_power_share * (1 - self.utilisation))

    @property
    def energy_usd_per_gpu_hour(self) -> float:
        """Of the mean hour."""
        return self.kwh_per_gpu_hour * self.usd_per_kwh

    @property
    def usd_per_gpu_hour(self) -> float:
        """Of the mean hour: capital, energy, operations."""
        return self.capital_usd_per_gpu_hour + self.energy_usd_per_gpu_hour + self.operations_usd_per_gpu_hour

    @property
    def usd_per_busy_gpu_hour(self) -> float:
        """Each hour of serving also pays for those without."""
        return self.usd_per_gpu_hour / self.utilisation

    def assumptions(self) -> tuple[tuple[str, str], ...]:
        """Name and value of every one."""
        return (
            ("scenario", "ownership"),
            ("capital", f"${self.usd_per_gpu:,.0f} per GPU with its share of host and network"),
            ("years", f"{self.years:g}"),
            ("residual value", f"{self.residual_share:.0%} of the capital"),
            ("cost of capital", f"{self.cost_of_capital_per_year:.1%} a year"),
            ("power of a GPU", f"{self.watts_per_gpu:g} W ({self.watts_are})"),
            ("power of its share of the host", f"{self.host_watts_per_gpu:g} W"),
            ("power while idle", f"{self.idle_power_share:.0%} of that while busy"),
            ("PUE", f"{self.pue:g}"),
            ("tariff", f"${self.usd_per_kwh:g} per kWh"),
            ("operations", f"${self.operations_usd_per_gpu_hour:g} per GPU-hour"),
            ("utilisation", f"{self.utilisation:.0%} of all hours at the measured rate"),
        )


def _shared_rules(utilisation: float, pue: float, usd_per_kwh: float) -> None:
    _demand(0 < utilisation <= 1, "utilisation", utilisation, "must be a share above 0 and up to 1")
    _demand(math.isfinite(pue) and pue >= 1, "pue", pue, "must be 1 or more: the building takes what its machines take")
    _not_negative("usd_per_kwh", usd_per_kwh)


@dataclass(frozen=True)
class PhaseCosts:
    """Dollars per million tokens of prompt and of output, and of a request's mixture."""

    prefill_usd_per_million: float
    decode_usd_per_million: float
    input_tokens: int
    output_tokens: int

    @property
    def usd_per_request(self) -> float:
        """Prompt and output, one after the other on the whole system."""
        prompt = self.input_tokens * self.prefill_usd_per_million
        return (prompt + self.output_tokens * self.decode_usd_per_million) / 1e6

    @property
    def blended_usd_per_million(self) -> float:
        """Per million tokens, prompt and output counted alike."""
        return self.usd_per_request * 1e6 / (self.input_tokens + self.output_tokens)

    @property
    def usd_per_million_output(self) -> float:
        """Per million tokens of output, each paying for its share of the prompt."""
        return self.usd_per_request * 1e6 / self.output_tokens


def phase_costs(
    usd_per_hour: float, prefill_tok_s: float, decode_tok_s: float, input_tokens: int, output_tokens: int
) -> PhaseCosts:
    """Costs by phase of a system that prefills and decodes in turns.

    Args:
        usd_per_hour: of the whole system, while it serves.
        prefill_tok_s: prompt tokens a second while it only prefills.
        decode_tok_s: output tokens a second while it only decodes. A rate measured over whole requests holds their
            prefill already, and would count it twice.
        input_tokens: of a request; not 0 without output.
        output_tokens: of a request, above 0.

    Raises:
        BadScenario: by the name of what cannot be.
    """
    _positive("usd_per_hour", usd_per_hour)
    _positive("prefill_tok_s", prefill_tok_s)
    _positive("decode_tok_s", decode_tok_s)
    _not_negative("input_tokens", input_tokens)
    _positive("output_tokens", output_tokens)
    prefill, decode = (usd_per_million(usd_per_hour, tok_s) for tok_s in (prefill_tok_s, decode_tok_s))
    return PhaseCosts(prefill, decode, input_tokens, output_tokens)


RANKINGS: dict[str, Callable[[Served], float]] = {
    "per stream": lambda one: one.per_stream_tok_s,
    "per GPU": lambda one: one.tok_s_per_gpu,
    "per dollar": lambda one: one.tok_s_per_usd_hour,
    "per node": lambda one: one.tok_s_per_node,
}
"""By name, the figure; more is better."""


def ranked(systems: Sequence[Served], by: str) -> tuple[Served, ...]:
    """Best first; equal ones in the order given.

    Raises:
        BadScenario: there is no such ranking.
    """
    _demand(by in RANKINGS, "ranking", by, f"must be one of {', '.join(RANKINGS)}")
    return tuple(sorted(systems, key=RANKINGS[by], reverse=True))


def break_even_usd_per_gpu_hour(system: Served, rival: Served) -> float:
    """The price below which ``system`` makes more tokens for a dollar than ``rival`` does at its price.

    In dollars per GPU-hour; tok/s per GPU over price is equal there, so it is the rival's price times the ratio of
    tok/s per GPU.
    """
    return rival.usd_per_gpu_hour * system.tok_s_per_gpu / rival.tok_s_per_gpu


@dataclass(frozen=True)
class CostLine:
    """Dollars per million output tokens over something in which they are linear."""

    product: str
    at_zero: float
    slope: float

    def at(self, value: float) -> float:
        """Dollars per million there."""
        return self.at_zero + self.slope * value


def over_price(system: Served) -> CostLine:
    """Over the price of its GPU-hour, in dollars."""
    return CostLine(system.product, 0.0, usd_per_million(system.gpus, system.aggregate_tok_s))


def over_tariff(system: Served, watts_per_gpu: float, pue: float) -> CostLine:
    """Over the tariff in dollars per kWh, where power is billed on top of the price of a GPU-hour.

    Args:
        system: with its price without power.
        watts_per_gpu: with its share of the host.
        pue: of the building.
    """
    _not_negative("watts_per_gpu", watts_per_gpu)
    _shared_rules(1.0, pue, 0.0)
    kilowatts = system.gpus * watts_per_gpu / 1000 * pue
    slope = usd_per_million(kilowatts, system.aggregate_tok_s)
    return CostLine(system.product, system.usd_per_million_output_tokens, slope)


def over_watts(system: Served, pue: float, usd_per_kwh: float) -> CostLine:
    """Over the watts of each of its GPUs, where power is billed on top."""
    _shared_rules(1.0, pue, usd_per_kwh)
    slope = usd_per_million(system.gpus * pue * usd_per_kwh / 1000, system.aggregate_tok_s)
    return CostLine(system.product, system.usd_per_million_output_tokens, slope)


def crossing(one: CostLine, other: CostLine, low: float = 0.0, high: float = math.inf) -> float | None:
    """Where two lines meet between ``low`` and ``high``, or None: then the cheaper one stays so in all of the range."""
    if one.slope == other.slope:
        return None
    at = (other.at_zero - one.at_zero) / (one.slope - other.slope)
    return at if low <= at <= high else None


def bisected(difference: Callable[[float], float], low: float, high: float) -> float:
    """Where a function changes its sign, by halving: a check of a closed form that shares nothing with it.

    Raises:
        BadScenario: it has one sign at both ends.
    """
    from scipy import optimize

    changes = difference(low) * difference(high) <= 0
    _demand(changes, "range", f"{low:g} to {high:g}", "the difference has one sign at both ends")
    return float(optimize.bisect(difference, low, high))
