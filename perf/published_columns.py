"""What columns of a published table of serving results may hold, and how one follows from others.

A column is known by its heading, through :data:`ROLES`; how headings are compared says :func:`normalised`. What
follows from what says :data:`FORMULAS`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from waveproof.perf.economics import SECONDS_PER_HOUR
from waveproof.perf.printed import Interval, exactly


class BadTable(ValueError):
    """A file is no table that can be checked; the message holds the place, what stands there and the rule."""


@dataclass(frozen=True)
class Role:
    """What a column holds."""

    name: str
    unit: str
    headings: tuple[str, ...]
    """Normalised ones by which it goes, besides its own name."""
    kind: Literal["text", "count", "measured", "derived", "ratio"] = "measured"


ROLES = (
    Role("product", "", ("system", "gpu", "gpu type", "accelerator", "machine", "hardware", "model", "name"), "text"),
    Role("gpus", "1", ("number gpus", "num gpus", "gpu count", "n gpus"), "count"),
    Role("gpus_per_node", "1", ("gpus node",), "count"),
    Role("nodes", "1", ("number nodes", "num nodes"), "derived"),
    Role("per_stream_tok_s", "tok/s", ("tok s per stream", "per stream", "stream", "tok s per user", "single stream",
                                       "single stream tok s", "tok s single stream", "decode tok s per stream")),
    Role("aggregate_tok_s", "tok/s", ("aggregate", "tok s", "throughput", "throughput tok s", "total tok s",
                                      "output tok s", "peak tok s", "aggregate throughput", "peak aggregate tok s")),
    Role("usd_per_gpu_hour", "$/GPU-hour", ("price", "gpu hour", "gpu hour usd", "price per gpu hour",
                                            "price usd per gpu hour", "rental", "usd gpu hour", "cost per gpu hour")),
    Role("watts_per_gpu", "W", ("watts", "w per gpu", "power w", "tdp", "tdp w", "power per gpu w")),
    Role("usd_per_hour", "$/h", ("usd per hour total", "total usd per hour", "system usd per hour", "cost per hour",
                                 "cost usd per hour"), "derived"),
    Role("tok_s_per_gpu", "tok/s", ("per gpu", "aggregate per gpu", "throughput per gpu", "gpu tok s"), "derived"),
    Role("tok_s_per_usd_hour", "tok/s per $/h", ("per usd", "tok s per usd", "tok s per gpu per usd",
                                                 "tok s per usd gpu hour",
                                                 "tok s per usd per gpu hour"), "derived"),
    Role("tokens_per_usd", "tok/$", ("tok per usd",), "derived"),
    Role("tok_s_per_node", "tok/s", ("per node", "aggregate per node", "node tok s"), "derived"),
    Role("usd_per_million_tokens", "$/M tok", ("usd per m tok", "usd per m", "usd per m output tok", "cost per m tok",
                                               "price per m tok", "cost usd per m tok", "usd m tok", "cost per m",
                                               "price per m"), "derived"),
    Role("kwh_per_million_tokens", "kWh/M tok", ("kwh per m tok", "kwh per m output tok"), "derived"),
    Role("per_stream_ratio", "1", ("relative per stream", "vs per stream", "per stream vs"), "ratio"),
    Role("per_gpu_ratio", "1", ("relative per gpu", "vs per gpu", "per gpu vs"), "ratio"),
    Role("per_usd_ratio", "1", ("relative per usd", "per usd ratio", "vs per usd", "per usd vs",
                                "relative perf per usd", "perf per usd vs"), "ratio"),
    Role("per_node_ratio", "1", ("relative per node", "per node vs"), "ratio"),
)  # fmt: skip
"""Every column that is known."""

RATIO_OF = {
    "per_stream_ratio": "per_stream_tok_s",
    "per_gpu_ratio": "tok_s_per_gpu",
    "per_usd_ratio": "tok_s_per_usd_hour",
    "per_node_ratio": "tok_s_per_node",
}
"""What each ratio compares with that of the base row."""

Known = Mapping[str, Interval]
_SECONDS, _MILLION, _THOUSAND = exactly(SECONDS_PER_HOUR), exactly(10**6), exactly(1000)


@dataclass(frozen=True)
class Formula:
    """How a column follows from others. Each of ``needs`` stands once, so that the interval is the exact range."""

    gives: str
    needs: tuple[str, ...]
    text: str
    compute: Callable[[Known], Interval]


FORMULAS = (
    Formula("nodes", ("gpus", "gpus_per_node"), "gpus / gpus per node", lambda of: of["gpus"] / of["gpus_per_node"]),
    Formula("usd_per_hour", ("gpus", "usd_per_gpu_hour"), "gpus x price",
            lambda of: of["gpus"] * of["usd_per_gpu_hour"]),
    Formula("tok_s_per_gpu", ("aggregate_tok_s", "gpus"), "aggregate / gpus",
            lambda of: of["aggregate_tok_s"] / of["gpus"]),
    Formula("tok_s_per_usd_hour", ("aggregate_tok_s", "gpus", "usd_per_gpu_hour"), "aggregate / (gpus x price)",
            lambda of: of["aggregate_tok_s"] / (of["gpus"] * of["usd_per_gpu_hour"])),
    Formula("tok_s_per_usd_hour", ("tok_s_per_gpu", "usd_per_gpu_hour"), "per GPU / price",
            lambda of: of["tok_s_per_gpu"] / of["usd_per_gpu_hour"]),
    Formula("tokens_per_usd", ("aggregate_tok_s", "gpus", "usd_per_gpu_hour"), "3600 x aggregate / (gpus x price)",
            lambda of: _SECONDS * of["aggregate_tok_s"] / (of["gpus"] * of["usd_per_gpu_hour"])),
    Formula("tokens_per_usd", ("tok_s_per_gpu", "usd_per_gpu_hour"), "3600 x per GPU / price",
            lambda of: _SECONDS * of["tok_s_per_gpu"] / of["usd_per_gpu_hour"]),
    Formula("tok_s_per_node", ("aggregate_tok_s", "gpus", "gpus_per_node"), "aggregate x gpus per node / gpus",
            lambda of: of["aggregate_tok_s"] * of["gpus_per_node"] / of["gpus"]),
    Formula("usd_per_million_tokens", ("aggregate_tok_s", "gpus", "usd_per_gpu_hour"),
            "1e6 x gpus x price / (3600 x aggregate)",
            lambda of: _MILLION * of["gpus"] * of["usd_per_gpu_hour"] / (_SECONDS * of["aggregate_tok_s"])),
    Formula("usd_per_million_tokens", ("tok_s_per_gpu", "usd_per_gpu_hour"), "1e6 x price / (3600 x per GPU)",
            lambda of: _MILLION * of["usd_per_gpu_hour"] / (_SECONDS * of["tok_s_per_gpu"])),
    Formula("kwh_per_million_tokens", ("aggregate_tok_s", "gpus", "watts_per_gpu"),
            "1e6 x gpus x watts / 1000 / (3600 x aggregate)",
            lambda of: _THOUSAND * of["gpus"] * of["watts_per_gpu"] / (_SECONDS * of["aggregate_tok_s"])),
)  # fmt: skip
"""In the order in which they are tried: from what was measured first."""

DERIVED = frozenset(formula.gives for formula in FORMULAS)
"""What can be recomputed."""
COUNTS = frozenset(role.name for role in ROLES if role.kind == "count")
"""Whole numbers, which nobody rounds."""


def normalised(heading: str) -> str:
    """The words by which a heading is compared: ``$ / GPU-hr`` and ``USD per GPU hour`` are both usd per gpu hour.

    Lower case; ``$`` is usd, ``/`` is per, ``#`` is number; tokens is tok, seconds is s, million is m; what stands in
    brackets counts too; ``output``, ``peak`` and the like count; anything else than letters and digits separates.
    """
    text = heading.strip("\ufeff \u00a0").lower()
    for old, new in (("us$", " usd "), ("$", " usd "), ("/", " per "), ("#", " number "), ("¢", " cents ")):
        text = text.replace(old, new)
    meant = {
        "tokens": "tok", "token": "tok", "toks": "tok", "t": "tok", "tps": "tok s", "seconds": "s", "second": "s",
        "sec": "s", "hr": "hour", "h": "hour", "hours": "hour", "hrs": "hour", "million": "m", "1m": "m",
        "mtok": "m tok", "dollars": "usd", "dollar": "usd", "users": "user", "streams": "stream", "mtokens": "m tok",
        "hourly": "hour", "gpuh": "gpu hour", "gpuhr": "gpu hour", "performance": "perf",
    }  # fmt: skip
    dropped = ("the", "of", "a", "in")
    split = [meant.get(word, word) for word in re.split(r"[^a-z0-9]+", text) if word and word not in dropped]
    # "tok per s" is the unit tok/s, written as "tok s"; $/GPU/hr is $/GPU-hr.
    words = re.sub(r"\btok per s\b", "tok s", " ".join(split))
    return re.sub(r"\bgpu per hour\b", "gpu hour", words)


def role_of(heading: str, given: Mapping[str, str] | None = None) -> tuple[Role | None, Fraction]:
    """What a column holds by its heading, and what its numbers are multiplied with (a hundredth, of cents).

    Args:
        heading: as it stands.
        given: roles by heading, where the reader says them.

    Raises:
        BadTable: ``given`` names no role.
    """
    if given and heading.strip() in given:
        name = given[heading.strip()]
        for role in ROLES:
            if role.name == name:
                return role, Fraction(1)
        raise BadTable(f"--column {heading.strip()}={name}: roles are {', '.join(role.name for role in ROLES)}")
    words = normalised(heading)
    cents = re.search(r"\bcents?\b", words)
    words = re.sub(r"\bcents?\b", "usd", words)
    for role in ROLES:
        if words in {normalised(role.name), *map(normalised, role.headings)}:
            return role, Fraction(1, 100) if cents else Fraction(1)
    return None, Fraction(1)


def way_out(unknown: Sequence[str], wanted: Sequence[str]) -> str:
    """How a reader names what unknown headings hold, with the most likely one as an example.

    Args:
        unknown: headings, one or more.
        wanted: names of the roles that they may have, one or more.
    """
    alike = (
        (_alike(heading, role), heading, role.name) for heading in unknown for role in ROLES if role.name in wanted
    )
    near, heading, name = max(alike, key=lambda one: one[0])
    if near < 1 / 2:
        # With less than half of the words in common, a guess would only mislead.
        heading = heading if len(unknown) == 1 else "HEADING"
        name = name if len(wanted) == 1 else "ROLE"
    them = "it" if len(unknown) == 1 else "them"
    return f"name {them}: --column {shlex.quote(f'{heading}={name}')} (waveproof economics columns lists the roles)"


def _alike(heading: str, role: Role) -> float:
    """The share of words that a heading has in common with the nearest one of a role."""
    words = set(normalised(heading).split()) - {"per"}
    theirs = [set(normalised(one).split()) - {"per"} for one in (role.name, *role.headings)]
    return max(len(words & one) / (len(words | one) or 1) for one in theirs)


def computed(role: str, known: Known) -> tuple[Formula | None, Interval | None]:
    """A column by the first formula that has what it needs."""
    for formula in FORMULAS:
        if formula.gives == role and set(formula.needs) <= set(known):
            return formula, formula.compute(known)
    return None, None
