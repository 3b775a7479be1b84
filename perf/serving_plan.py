"""What a serving measurement asks of a server: points, each some requests at one concurrency.

A plan is data. It is written beside its results, and a run is resumed only under the very plan that it was begun with.
The case of the case study is the default: 1,024 tokens in, 400 out, concurrencies 1, 2, 4 ... 64.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
PROMPT_TOKENS, OUTPUT_TOKENS = 1024, 400
"""Of the published sweep."""
PREFILL_LENGTHS = (1024, 4096, 13_000, 32_768, 65_536, 131_072, 172_000)
"""Tokens; 172,000 is the published cold prefill."""

Kind = Literal["sweep", "prefill", "mixed"]
OF_THE_PLAN = (
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "n", "best_of",
    "echo",
)  # fmt: skip
"""Fields of a request's body that say what is asked, or how often it is answered."""
SHORT, LONG = "short", "long"
"""Kinds of requests in mixed traffic."""


class BadPlan(ValueError):
    """A plan that cannot be one; the message holds the value and the rule."""


@dataclass(frozen=True)
class Target:
    """A server that speaks OpenAI's API."""

    base_url: str
    """With or without a closing ``/v1``."""
    model: str
    """As the server calls it."""
    endpoint: Literal["completions", "chat"] = "completions"
    """``completions`` gets token ids; ``chat`` gets text, and puts its template around it."""
    api_key_env: str = ""
    """Environment variable that holds the key; the key itself is written nowhere."""
    label: str = ""
    """What serves: ``8x MI355X, sglang 0.5.23``. Part of the key under which figures are compared."""

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise BadPlan(f"base URL {self.base_url!r} begins with neither http:// nor https://")
        parts = urlsplit(self.base_url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            # Not repeated here: it may be a password.
            raise BadPlan("a base URL has no user, password or query: it is written down; a key is in --api-key-env")

    @property
    def root(self) -> str:
        """The URL without ``/v1``."""
        return self.base_url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True)
class Shape:
    """Of one request: tokens in, tokens out."""

    prompt: int
    output: int
    kind: str = ""
    """``short`` or ``long`` in mixed traffic."""

    def __post_init__(self) -> None:
        if self.prompt < 1 or self.output < 1:
            raise BadPlan(f"{self.prompt} tokens in, {self.output} out: a request has at least one of each")


@dataclass(frozen=True)
class Point:
    """Requests in the order in which they are sent, so many of them at once."""

    name: str
    """Of its folder: ``concurrency-0004``."""
    concurrency: int
    shapes: tuple[Shape, ...]
    warmup: tuple[Shape, ...] = ()
    """Sent before and not counted."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w-]+", self.name, re.ASCII):
            raise BadPlan(f"point {self.name!r}: the name of a folder has letters, digits and hyphens")
        if not 1 <= self.concurrency <= len(self.shapes):
            raise BadPlan(f"{self.name}: {len(self.shapes)} requests cannot keep {self.concurrency} streams busy")


@dataclass(frozen=True)
class Prompts:
    """Where the tokens of the prompts come from. No two prompts of a plan begin with the same token."""

    vocabulary: tuple[int, int] = (1024, 32_000)
    """First token id and the one after the last; special tokens lie at either end of a vocabulary."""
    tokenizer: str = ""
    """Folder, hub name or GGUF file. Needed for ``text`` and for the endpoint ``chat``."""
    text: str = ""
    """File with text to take prompts from: speculation accepts more of a text than of random tokens."""


@dataclass(frozen=True)
class Plan:
    """Of one run against one server."""

    kind: Kind
    target: Target
    points: tuple[Point, ...]
    seed: int = 0
    prompts: Prompts = field(default_factory=Prompts)
    cold: bool = True
    """No token of a prompt may come from a prefix cache."""
    allow_cached: int = 0
    """Tokens of each prompt that may: a BOS or a chat template's head, which all prompts share."""
    request_seconds: float = 600.0
    """Patience for one request."""
    extra: tuple[tuple[str, Any], ...] = (("ignore_eos", True), ("temperature", 0.0))
    """Put into the body of every request; ``ignore_eos`` is known to sglang, vLLM and llama.cpp, not to OpenAI."""
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Of the command that made it, so that it goes on without them; the plan is what the other fields say."""

    def __post_init__(self) -> None:
        names = [point.name for point in self.points]
        if not names or len(set(names)) != len(names):
            raise BadPlan(f"a plan has points, each of another name: {', '.join(names) or 'none'}")
        if (self.prompts.text or self.target.endpoint == "chat") and not self.prompts.tokenizer:
            raise BadPlan("prompts from text, and the endpoint chat, need a tokenizer")
        if taken := [name for name, _ in self.extra if name in OF_THE_PLAN]:
            raise BadPlan(f"{', '.join(taken)}: not to be put into requests, since the plan itself says it")
        first, end = self.prompts.vocabulary
        asked = sum(len(point.shapes) + len(point.warmup) for point in self.points)
        if end - first < asked:
            raise BadPlan(f"{asked} prompts that begin with different tokens need as many ids, not {first}..{end - 1}")


def sweep_plan(
    target: Target,
    concurrencies: Sequence[int] = CONCURRENCIES,
    prompt: int = PROMPT_TOKENS,
    output: int = OUTPUT_TOKENS,
    per_stream: int = 4,
    **options: Any,
) -> Plan:
    """A point for each concurrency.

    Args:
        target: the server.
        concurrencies: streams at once.
        prompt: tokens in.
        output: tokens out.
        per_stream: requests one after the other in each stream, so that start and end weigh little.
        options: of :class:`Plan`.

    Raises:
        BadPlan: it cannot be one.
    """
    shape = Shape(prompt, output)
    points = tuple(
        Point(f"concurrency-{many:04}", many, (shape,) * (many * per_stream), (shape,) * min(many, 2))
        for many in sorted(set(concurrencies))
    )
    return Plan("sweep", target, points, **options)


def prefill_plan(
    target: Target, lengths: Sequence[int] = PREFILL_LENGTHS, repeats: int = 3, output: int = 2, **options: Any
) -> Plan:
    """A point for each length, its requests one after the other. Arguments as in :func:`sweep_plan`."""
    ordered = sorted(set(lengths))
    points = tuple(
        Point(f"prefill-{length:07}", 1, (Shape(length, output),) * repeats, (Shape(min(length, ordered[0]), output),))
        for length in ordered
    )
    return Plan("prefill", target, points, **options)


def mixed_plan(
    target: Target,
    short: Shape,
    long: Shape,
    concurrency: int = 4,
    longs: int = 3,
    per_stream: int = 6,
    **options: Any,
) -> Plan:
    """Short requests alone, and the same beside long ones: as many short streams, and one more for the long.

    Args:
        target: the server.
        short: requests whose times are judged.
        long: requests that disturb them, spread evenly.
        concurrency: streams of short requests.
        longs: number of long requests.
        per_stream: short requests one after the other in each stream.
        options: of :class:`Plan`.

    Raises:
        BadPlan: it cannot be one.
    """
    if long.prompt <= short.prompt:
        raise BadPlan(f"long prompts of {long.prompt} tokens are no longer than short ones of {short.prompt}")
    few = Shape(short.prompt, short.output, SHORT)
    many = concurrency * per_stream
    rest, step = [few] * many, max(1, many // longs)
    beside: list[Shape] = []
    for number in range(longs):
        # After some short ones, so that they have begun to be answered.
        beside += rest[:step] if number else rest[: min(step, concurrency)]
        del rest[: step if number else min(step, concurrency)]
        beside.append(Shape(long.prompt, long.output, LONG))
    warm = (few,) * min(concurrency, 2)
    points = (
        Point("short-alone", concurrency, (few,) * many, warm),
        Point("short-beside-long", concurrency + 1, (*beside, *rest), warm),
    )
    return Plan("mixed", target, points, **options)


def plan_json(plan: Plan) -> str:
    """A document that :func:`plan_from_json` reads; equal plans give equal documents, up to their options."""
    return json.dumps({"schema": 1, **asdict(plan)}, indent=1, sort_keys=True) + "\n"


def plan_from_json(text: str) -> Plan:
    """Read what :func:`plan_json` wrote.

    Raises:
        BadPlan: it is something else.
    """
    try:
        read = json.loads(text)
        if read.pop("schema") != 1:
            raise BadPlan("a plan of another schema than 1")
        prompts = {**read.pop("prompts")}
        return Plan(
            **{
                **read,
                "target": Target(**read["target"]),
                "points": tuple(_point(point) for point in read["points"]),
                "prompts": Prompts(**{**prompts, "vocabulary": tuple(prompts["vocabulary"])}),
                "extra": tuple((name, value) for name, value in read["extra"]),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, BadPlan) else BadPlan(f"no plan: {error!r}") from None


def _point(read: Mapping[str, Any]) -> Point:
    shapes, warmup = (tuple(Shape(**shape) for shape in read[name]) for name in ("shapes", "warmup"))
    return Point(read["name"], read["concurrency"], shapes, warmup)


def differences(asked: Plan, begun: Plan) -> tuple[str, ...]:
    """What of a plan is not as in the one that a run was begun with, each with both values."""
    ours, theirs = (_flat("", json.loads(plan_json(replace(plan, options={})))) for plan in (asked, begun))
    names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    return tuple(f"{name} was {theirs.get(name, 'absent')}, is {ours.get(name, 'absent')}" for name in names)


def first_few(changed: Sequence[str], most: int = 3) -> str:
    """Differences in one line, and how many are left out."""
    rest = f"; and {len(changed) - most} more" if len(changed) > most else ""
    return "; ".join(changed[:most]) + rest


def _flat(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        if {"prompt", "output"} <= set(value):
            return {name: f"{value['prompt']} in, {value['output']} out"}
        return {
            key: one for part, below in value.items() for key, one in _flat(f"{name}.{part}".strip("."), below).items()
        }
    if name.endswith(("points", "shapes", "warmup")) and isinstance(value, list):
        parts = {f"{name} (number)": len(value)}
        for number, below in enumerate(value):
            key = below["name"] if "name" in below else str(number)
            parts.update(_flat(f"{name}[{key}]", below))
        return parts
    return {name: json.dumps(value)}
