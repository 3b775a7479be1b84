"""Whether published figures agree with each other: what some imply for another, as intervals of what was printed.

A figure is a number or a range (``4-7k``), each with the rounding of its print. A relation computes one from others:

- **agree**: what the figures as printed imply lies within what is claimed, its rounding included, or is a range around
  the single number that is claimed;
- **disagree**: no numbers behind the prints could fulfil it;
- **needs an assumption**: they meet in part only, or the relation holds under a condition that nobody stated.

What would reconcile a disagreement is another matter: :func:`falling_speed` and :func:`fixed_cost` are two models of a
prefill whose short-context speed and long-context time are both right.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

from waveproof.perf.printed import Interval, Unreadable, exactly, read_printed, show_interval

Verdict = Literal["agree", "disagree", "needs an assumption"]
PREFILL = Path(__file__).parent / "baselines" / "published" / "kimi_k3_prefill.csv"


class BadClaim(ValueError):
    """Figures from which nothing can be computed; the message holds the name and the rule."""


@dataclass(frozen=True)
class Figure:
    """A figure as it was published."""

    name: str
    printed: str
    unit: str
    what: str
    nominal: Interval
    """As printed: a single number, or from the first to the last of a range."""
    widest: Interval
    """With the rounding of both ends."""


_RANGE = re.compile(r"^(?P<low>[\d.,]+)\s*(?P<low_size>[kKmM]?)\s*(?:-|–|to)\s*(?P<high>.+)$")


def figure(name: str, printed: str, unit: str = "1", what: str = "") -> Figure:
    """Read a number or a range; in ``4-7k`` the ``k`` belongs to both.

    Raises:
        BadClaim: it is neither.
    """
    try:
        found = _RANGE.match(printed.strip())
        if found is None:
            one = read_printed(printed)
            return Figure(name, printed, unit, what, exactly(one.value), one.interval)
        size = re.search(r"[kKmM]?\s*(?=[x×]?\s*$)", found["high"])
        low = read_printed(found["low"] + (found["low_size"] or (size.group().strip() if size else "")))
        high = read_printed(found["high"])
        widest = Interval(low.interval.low, high.interval.high)
        return Figure(name, printed, unit, what, Interval(low.value, high.value), widest)
    except Unreadable as error:
        raise BadClaim(f"{name}: {error}") from None


def read_figures(path: Path) -> dict[str, Figure]:
    """Of a CSV file with name, printed, unit and what; lines that begin with ``#`` are comments.

    Raises:
        BadClaim: a column or a figure is missing, a name stands twice.
    """
    lines = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line and not line.startswith("#")]
    found: dict[str, Figure] = {}
    for row in csv.DictReader(lines):
        if missing := [name for name in ("name", "printed") if not row.get(name)]:
            raise BadClaim(f"{path.name}: {missing[0]} is missing in {row}")
        if row["name"] in found:
            raise BadClaim(f"{path.name}: {row['name']} stands twice")
        found[row["name"]] = figure(row["name"], row["printed"], row.get("unit") or "1", row.get("what") or "")
    return found


Values = Mapping[str, Interval]


@dataclass(frozen=True)
class Relation:
    """Something that figures imply for another."""

    name: str
    needs: tuple[str, ...]
    text: str
    """The computation, for people, with figures by name: ``{prompt} / {time}``."""
    compute: Callable[[Values], Interval]
    """Each figure stands once in it."""
    claimed: str
    """The figure that it is held against."""
    unit: str = "1"
    assumption: str = ""
    """What has to hold besides for the comparison to mean anything; empty where nothing."""


@dataclass(frozen=True)
class Ruling:
    """What a relation came to."""

    relation: Relation
    implied: Interval
    """By the figures as printed."""
    widest: Interval
    """With their rounding."""
    claimed: Figure
    verdict: Verdict
    reason: str

    def computation(self, figures: Mapping[str, Figure]) -> str:
        """With figures as they were printed."""
        printed = {
            name: f"({one.printed})" if one.nominal.low != one.nominal.high else one.printed
            for name, one in figures.items()
        }
        return self.relation.text.format(**printed)


def judge(relation: Relation, figures: Mapping[str, Figure]) -> Ruling:
    """Hold what figures imply against what is claimed.

    Raises:
        BadClaim: a figure is missing.
    """
    if missing := [name for name in (*relation.needs, relation.claimed) if name not in figures]:
        raise BadClaim(f"{relation.name}: needs {', '.join(missing)}")
    implied = relation.compute({name: figures[name].nominal for name in relation.needs})
    widest = relation.compute({name: figures[name].widest for name in relation.needs})
    claim = figures[relation.claimed]
    said = f"{show_interval(implied, 3)} {relation.unit}".removesuffix(" 1")
    single = claim.nominal.low == claim.nominal.high
    verdict: Verdict
    if not widest.meets(claim.widest):
        away = widest.low / claim.widest.high if widest.low > claim.widest.high else claim.widest.low / widest.high
        verdict, reason = "disagree", f"{said}: not {claim.printed}, {float(away - 1):.1%} apart even with all rounding"
    elif claim.widest.holds(implied) or (single and implied.holds(claim.nominal)):
        where = "within" if claim.widest.holds(implied) else "around"
        verdict = "needs an assumption" if relation.assumption else "agree"
        reason = f"{said}: {where} {claim.printed}"
    else:
        verdict, reason = "needs an assumption", f"{said}: only in part within {claim.printed}"
    if relation.assumption:
        reason += f"; {'assumes' if verdict != 'disagree' else 'assumed'} {relation.assumption}"
    return Ruling(relation, implied, widest, claim, verdict, reason)


def _over(above: str, below: str) -> Callable[[Values], Interval]:
    return lambda of: of[above] / of[below]


PREFILL_RELATIONS = (
    Relation(
        "average speed of the fallback",
        ("prompt", "fallback_time"),
        "{prompt} / {fallback_time}",
        _over("prompt", "fallback_time"),
        "fallback_speed",
        "tok/s",
    ),
    Relation(
        "time of the fallback at its speed",
        ("prompt", "fallback_speed"),
        "{prompt} / {fallback_speed}",
        _over("prompt", "fallback_speed"),
        "fallback_time",
        "s",
    ),
    Relation(
        "speed-up of the kernels",
        ("fast_speed", "fallback_speed"),
        "{fast_speed} / {fallback_speed}",
        _over("fast_speed", "fallback_speed"),
        "speed_up",
    ),
    Relation(
        "ratio of the two times",
        ("fallback_time", "rival_time"),
        "{fallback_time} / {rival_time}",
        _over("fallback_time", "rival_time"),
        "speed_up",
        assumption="that another machine's time (B300) stands for the fast kernel's on the MI355X",
    ),
    Relation(
        "time of the fast kernel by the speed-up",
        ("fallback_time", "speed_up"),
        "{fallback_time} / {speed_up}",
        _over("fallback_time", "speed_up"),
        "rival_time",
        "s",
        "that after the repair the MI355X is as fast as the B300",
    ),
    Relation(
        "time of the fast kernel at its speed",
        ("prompt", "fast_speed"),
        "{prompt} / {fast_speed}",
        _over("prompt", "fast_speed"),
        "rival_time",
        "s",
        "that the B300's time is what the fast kernel was said to reach",
    ),
    Relation(
        "speed-up of the whole prompt",
        ("fallback_time", "fast_speed", "prompt"),
        "{fallback_time} x {fast_speed} / {prompt}",
        lambda of: of["fallback_time"] * of["fast_speed"] / of["prompt"],
        "speed_up",
        assumption="that the fast kernel keeps its speed over the whole prompt",
    ),
    Relation(
        "speed of the B300",
        ("prompt", "rival_time"),
        "{prompt} / {rival_time}",
        _over("prompt", "rival_time"),
        "fast_speed",
        "tok/s",
        "that the fast kernel's speed is an average over the prompt, of either machine",
    ),
)
"""What the published prefill figures imply for each other."""


def judge_prefill(figures: Mapping[str, Figure] | None = None) -> tuple[Ruling, ...]:
    """The published prefill claim, or the same relations between other figures."""
    return tuple(judge(relation, figures or read_figures(PREFILL)) for relation in PREFILL_RELATIONS)


@dataclass(frozen=True)
class FallingSpeed:
    """A prefill that takes ``linear * n + quadratic * n**2`` seconds for n tokens: each token attends to all before."""

    linear: float
    """Seconds a token."""
    quadratic: float
    """Seconds a token and token."""

    def seconds(self, tokens: float) -> float:
        """Of a prompt."""
        return self.linear * tokens + self.quadratic * tokens * tokens

    def speed(self, tokens: float) -> float:
        """Tokens a second of a chunk that begins after so many."""
        return 1 / (self.linear + 2 * self.quadratic * tokens)

    def reaches(self, speed: float) -> float:
        """After how many tokens the speed has fallen to this; infinite if it never does.

        Raises:
            BadClaim: the speed is not below that at the start.
        """
        if speed <= 0 or 1 / speed < self.linear:
            raise BadClaim(f"speed = {speed:g} tok/s: it begins at {1 / self.linear:g}")
        return math.inf if self.quadratic == 0 else (1 / speed - self.linear) / (2 * self.quadratic)


def falling_speed(first_speed: float, tokens: float, seconds: float) -> FallingSpeed:
    """The model that begins at ``first_speed`` tok/s and takes ``seconds`` for ``tokens``.

    Raises:
        BadClaim: at the first speed the prompt would take longer than it did, so that no speed has to fall.
    """
    for name, value in (("first_speed", first_speed), ("tokens", tokens), ("seconds", seconds)):
        if not (math.isfinite(value) and value > 0):
            raise BadClaim(f"{name} = {value}: is finite and above 0")
    rest = seconds - tokens / first_speed
    if rest < 0:
        raise BadClaim(
            f"{tokens:g} tokens at {first_speed:g} tok/s take {tokens / first_speed:.3g} s, above {seconds:g} s"
        )
    return FallingSpeed(1 / first_speed, rest / tokens**2)


def fixed_cost(speed: float, tokens: float, seconds: float) -> float:
    """Seconds that something besides prefill takes, if the speed is the same at every length.

    Raises:
        BadClaim: there is no time left for it.
    """
    return falling_speed(speed, tokens, seconds).quadratic * tokens**2


@dataclass(frozen=True)
class Reconciled:
    """What has to be so for a short-context speed and a long-context time to be both right."""

    what: str
    first_speed: float
    seconds: float
    tokens: float
    model: FallingSpeed
    fixed_seconds: float

    @property
    def last_speed(self) -> float:
        """Of the last chunk."""
        return self.model.speed(self.tokens)

    @property
    def quadratic_share(self) -> float:
        """Of the time, what attention to the tokens before takes."""
        return self.model.quadratic * self.tokens**2 / self.seconds


def reconcile(
    figures: Mapping[str, Figure], cases: Sequence[tuple[str, str, str]] | None = None
) -> tuple[Reconciled, ...]:
    """For each end of each speed, the models that give the published time.

    Args:
        figures: with a ``prompt``.
        cases: words, the name of a speed, and that of a time.
    """
    chosen = cases or (
        ("fallback", "fallback_speed", "fallback_time"),
        ("fast kernel, if as fast as the B300", "fast_speed", "rival_time"),
    )
    tokens = float(figures["prompt"].nominal.middle)
    found = []
    for what, speed, time in chosen:
        span, seconds = figures[speed].nominal, float(figures[time].nominal.middle)
        # Below the average speed nothing has to fall: such an end contradicts the time, and no model mends that.
        ends = [end for end in dict.fromkeys((span.low, span.high)) if tokens / float(end) <= seconds]
        for end in ends:
            model = falling_speed(float(end), tokens, seconds)
            found.append(Reconciled(what, float(end), seconds, tokens, model, fixed_cost(float(end), tokens, seconds)))
    return tuple(found)


def with_binary_prompt(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """The figures with the prompt's ``k`` taken as 1024, for whoever means that.

    Raises:
        BadClaim: there is no prompt.
    """
    if "prompt" not in figures:
        raise BadClaim("needs prompt")
    prompt = figures["prompt"]
    more = exactly(Fraction(1024, 1000))
    swapped = Figure(
        prompt.name, f"{prompt.printed} of 1,024", prompt.unit, prompt.what, prompt.nominal * more, prompt.widest * more
    )
    return {**figures, "prompt": swapped}
