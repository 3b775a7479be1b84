"""Prompts that no prefix cache can know: no two of a plan begin with the same token.

A prefix cache (sglang's radix tree, vLLM's hashed blocks, a slot of llama.cpp) reuses a prompt up to the first token
that differs. So distinct first tokens defeat it between all requests of a run, whatever follows them, and a seed that
differs from run to run makes what an earlier run left there unlikely to begin so, which the server's own count of
cached tokens then confirms or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from waveproof.perf.serving_plan import BadPlan, Plan, Point, Shape


@dataclass(frozen=True)
class Prompt:
    """What is sent in one request."""

    content: str | tuple[int, ...]
    """Text for ``chat``, token ids for ``completions``."""
    tokens: int
    """Of the content, without what a server puts around it."""
    shape: Shape


def prompts_of(plan: Plan, name: str, attempt: int = 0) -> tuple[Prompt, ...]:
    """Prompts of a point's warm-up, then of its requests, in the order in which they are sent.

    They depend on plan and attempt alone. Another attempt has other prompts: the server may have in its cache what it
    was sent before the run was interrupted.

    Args:
        plan: the whole plan: no two of its prompts begin alike.
        name: of the point.
        attempt: how often the point was begun before.

    Raises:
        BadPlan: there is no such point, the text is too short, the tokenizer gives too few tokens, or the attempts
            have used up all first tokens.
    """
    numbers = [number for number, point in enumerate(plan.points) if point.name == name]
    if not numbers:
        raise BadPlan(f"the plan has no point {name!r}")
    first, end = plan.prompts.vocabulary
    asked = sum(len(_shapes(point)) for point in plan.points)
    if end - first < asked * (attempt + 1):
        raise BadPlan(f"{name}: begun {attempt} times before, and no first tokens are left for it; begin another run")
    before = asked * attempt + sum(len(_shapes(point)) for point in plan.points[: numbers[0]])
    shapes = _shapes(plan.points[numbers[0]])
    starts = np.random.default_rng(plan.seed).permutation(np.arange(first, end))[before : before + len(shapes)]
    draws = np.random.default_rng([plan.seed, numbers[0], attempt])
    corpus = _corpus(plan.prompts.text, plan.prompts.tokenizer) if plan.prompts.text else None
    made = []
    for start, shape in zip(starts.tolist(), shapes, strict=True):
        body = _body(shape.prompt - 1, plan.prompts.vocabulary, corpus, draws)
        ids = (int(start), *body)
        made.append(_prompt(ids, shape, plan))
    return tuple(made)


def request_body(plan: Plan, prompt: Prompt) -> dict[str, Any]:
    """The JSON of a request that streams, and has exactly so many tokens out as far as the server knows how."""
    content: dict[str, Any] = (
        {"messages": [{"role": "user", "content": prompt.content}]}
        if plan.target.endpoint == "chat"
        else {"prompt": list(prompt.content)}
    )
    return {
        "model": plan.target.model,
        **content,
        "max_tokens": prompt.shape.output,
        "stream": True,
        "stream_options": {"include_usage": True},
        **dict(plan.extra),
    }


def _shapes(point: Point) -> tuple[Shape, ...]:
    return (*point.warmup, *point.shapes)


def _body(
    many: int, vocabulary: tuple[int, int], corpus: Sequence[int] | None, draws: np.random.Generator
) -> list[int]:
    if corpus is None:
        return [int(one) for one in draws.integers(*vocabulary, size=many)]
    begin = int(draws.integers(len(corpus)))
    # Round and round where the text is shorter than the prompt.
    return [corpus[(begin + place) % len(corpus)] for place in range(many)]


def _prompt(ids: tuple[int, ...], shape: Shape, plan: Plan) -> Prompt:
    if plan.target.endpoint == "completions":
        return Prompt(ids, len(ids), shape)
    tokenizer = load_tokenizer(plan.prompts.tokenizer)
    text = tokenizer.decode(list(ids))
    # Decoded tokens are not always read as the same tokens again.
    return Prompt(text, len(tokenizer.encode(text, add_special_tokens=False)), shape)


@lru_cache(maxsize=2)
def load_tokenizer(name: str) -> Any:
    """A tokenizer of ``transformers`` from a folder, a name on the hub or a GGUF file."""
    from transformers import AutoTokenizer

    if name.endswith(".gguf"):
        return AutoTokenizer.from_pretrained(str(Path(name).parent), gguf_file=Path(name).name)
    return AutoTokenizer.from_pretrained(name)


@lru_cache(maxsize=2)
def _corpus(text: str, tokenizer: str) -> tuple[int, ...]:
    ids = load_tokenizer(tokenizer).encode(Path(text).read_text(encoding="utf-8"), add_special_tokens=False)
    if len(ids) < 256:
        raise BadPlan(f"{Path(text).name} has {len(ids)} tokens: prompts are taken from 256 or more")
    return tuple(ids)
