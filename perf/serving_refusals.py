"""When the figures of a point are not reported at all.

A mean over requests of which some were refused, cut short or answered out of a cache is a figure of nothing. So each
rule here, once broken, withholds all figures of its point and says by how many requests it is broken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from waveproof.perf.serving_log import Request
from waveproof.perf.serving_plan import Plan, Point

ANSWERED = "every request was answered"
ON_RECORD = "every request is on record"
STREAMED = "answers came as streams"
COUNTED = "the server counts tokens"
CONSISTENT = "counts of client and server agree"
WHOLE_PROMPT = "no prompt was cut"
WHOLE_OUTPUT = "no answer was cut"
COLD = "no prompt came from a cache"
DISTINCT = "no prompt was sent twice"
SAME_SERVER = "one server answered"
AT_ONCE = "as many requests at once as planned"
WARMED = "the warm-up was answered"
RULES = (
    ANSWERED, ON_RECORD, STREAMED, COUNTED, CONSISTENT, WHOLE_PROMPT, WHOLE_OUTPUT, COLD, DISTINCT, SAME_SERVER,
    AT_ONCE, WARMED,
)  # fmt: skip

_FASTEST = 10_000.0
"""Tokens per second of one stream: more is none, but an answer that somebody held back and sent at once."""
_SHORTEST = 8
"""Tokens of an answer from which on its speed shows that."""
_AT_ONE_TIME = 1e-4
"""Seconds between chunks that came together."""
_BEGIN_TOKENS = 1
"""That a server may put before token ids: a BOS."""


@dataclass(frozen=True)
class Refusal:
    """One broken rule."""

    rule: str
    count: int
    """Requests that break it."""
    of: int
    detail: str
    """The first of them, or what is wrong with all."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.count} of {self.of} break this; {self.detail}"


@dataclass(frozen=True)
class Failure:
    """From where on a server failed."""

    first: int
    """Request, from 1, as planned."""
    at: float
    """Seconds after the first request was sent."""
    count: int
    """Failed requests."""
    later: int
    """Requests that were sent after the first that failed, itself included."""
    planned: int
    error: str

    def __str__(self) -> str:
        rest = "all that were sent from then on" if self.count == self.later else f"{self.count} of {self.later} since"
        return f"fails from request {self.first} of {self.planned} at {self.at:.2f} s, {rest}: {self.error}"


def failure(requests: Sequence[Request], point: Point) -> Failure | None:
    """Where the server began to fail, None where it did not.

    Args:
        requests: in the order in which they were sent.
        point: what was planned.
    """
    places = [place for place, request in enumerate(requests) if request.failed]
    if not places:
        return None
    first = requests[places[0]]
    error = first.error or f"status {first.status}"
    return Failure(
        first.number + 1, first.start, len(places), len(requests) - places[0], len(point.shapes), error[:300]
    )


def rejected(requests: Sequence[Request]) -> bool:
    """Whether the server calls every request a bad one, in its status or in an event of its answer."""
    return bool(requests) and all(one.status == 400 or '"code": 400' in one.error for one in requests)


def refusals(
    requests: Sequence[Request], point: Point, plan: Plan, servers: Sequence[Sequence[str]] = ()
) -> tuple[Refusal, ...]:
    """The rules that a point's requests break.

    Args:
        requests: of the log.
        point: what was planned.
        plan: what is allowed.
        servers: names of models and builds that the server told at several times, each time sorted; they must not
            change.
    """
    whole = [request for request in requests if not request.failed]
    found = [
        _broken(ANSWERED, requests, lambda one: one.failed, lambda one: one.error or f"status {one.status}"),
        _missing(requests, point),
        _broken(STREAMED, whole, lambda one: bool(_not_streamed(one)), _not_streamed),
        _broken(
            COUNTED,
            whole,
            lambda one: one.prompt_tokens is None or one.output_tokens is None,
            lambda one: "no usage in the answer: how many tokens these were is unknown",
        ),
        _broken(CONSISTENT, whole, lambda one: bool(_inconsistent(one, plan)), lambda one: _inconsistent(one, plan)),
        _broken(
            WHOLE_PROMPT,
            whole,
            lambda one: one.prompt_tokens is not None and one.prompt_tokens < one.asked_prompt,
            lambda one: f"{one.asked_prompt} tokens were sent and {one.prompt_tokens} read",
        ),
        _broken(
            WHOLE_OUTPUT,
            whole,
            lambda one: one.output_tokens is not None and one.output_tokens < one.asked_output,
            lambda one: f"{one.output_tokens} of {one.asked_output} tokens, finish reason {one.finish or 'not told'}",
        ),
        _cold(whole, plan),
        _twice(requests),
        _same(requests, servers),
        _at_once(requests, point),
    ]
    return tuple(refusal for refusal in found if refusal)


def unwarmed(warmup: Sequence[Request]) -> tuple[Refusal, ...]:
    """The rule that a warm-up breaks: after one that failed, the first requests pay for what it is there for."""
    broken = _broken(WARMED, warmup, lambda one: one.failed, lambda one: one.error or f"status {one.status}")
    return (replace(broken, detail=f"the first: {broken.detail.partition(': ')[2]}"),) if broken else ()


def warnings(requests: Sequence[Request], plan: Plan) -> tuple[str, ...]:
    """What a reader must know of a point that is reported."""
    told = []
    unknown = sum(request.cached_tokens is None for request in requests)
    if plan.cold and unknown:
        told.append(
            f"{unknown} of {len(requests)} answers do not tell how much of the prompt came from a cache: that they "
            "were cold rests on prompts that begin with different tokens"
        )
    if bundled := [request for request in requests if not request.each_token_seen]:
        chunks = sum(len(request.chunks) for request in bundled)
        tokens = sum(request.output_tokens or 0 for request in bundled)
        told.append(
            f"{len(bundled)} of {len(requests)} answers came in fewer chunks than tokens ({chunks} for {tokens}): "
            "inter-token percentiles are of gaps between chunks"
        )
    gaps = [gap for request in requests for gap in request.gaps]
    together = sum(gap < _AT_ONE_TIME for gap in gaps)
    if 4 * together > len(gaps):
        told.append(
            f"{together} of {len(gaps)} gaps between chunks are below {_AT_ONE_TIME * 1e3:g} ms: chunks came together, "
            "and inter-token percentiles tell of that, not of tokens"
        )
    return (*told, *_queued(requests), *_other_name(requests, plan))


def _queued(requests: Sequence[Request]) -> tuple[str, ...]:
    """Where the server answers few at a time, a stream is as fast as with few, however many wait."""
    asked = most_at_once([(one.start, one.start + one.end) for one in requests])
    answered = most_at_once([(one.start + one.chunks[0], one.start + one.chunks[-1]) for one in requests if one.gaps])
    if not 0 < 2 * answered <= asked:
        return ()
    return (
        f"at most {answered} of {asked} requests at once were being answered, the others waited for their first token: "
        f"the speed of a stream is one of {answered} at once",
    )


def _other_name(requests: Sequence[Request], plan: Plan) -> tuple[str, ...]:
    names = sorted({name.split()[0] for request in requests for name in request.models})
    if not names or plan.target.model in names:
        return ()
    return (f"{plan.target.model} was asked and {', '.join(names)} answered, by their own name",)


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """How many spans of time overlap, at most; one that begins as another ends does not overlap it."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _at_once(requests: Sequence[Request], point: Point) -> Refusal | None:
    if len(requests) != len(point.shapes) or any(request.failed for request in requests):
        # Other rules say so, and requests that failed take no time.
        return None
    most = most_at_once([(one.start, one.start + one.end) for one in requests])
    if most == point.concurrency:
        return None
    return Refusal(
        AT_ONCE, len(requests), len(requests), f"{most} were under way at once, and {point.concurrency} are planned"
    )


def _broken(
    rule: str, requests: Sequence[Request], breaks: Callable[[Request], bool], detail: Callable[[Request], str]
) -> Refusal | None:
    bad = [request for request in requests if breaks(request)]
    if not bad:
        return None
    return Refusal(rule, len(bad), len(requests), f"first request {bad[0].number + 1}: {detail(bad[0])[:300]}")


def _missing(requests: Sequence[Request], point: Point) -> Refusal | None:
    planned = len(point.shapes)
    seen = {request.number for request in requests}
    if len(requests) == planned == len(seen):
        return None
    return Refusal(
        ON_RECORD, abs(planned - len(seen)) or len(requests) - len(seen), planned, f"the log has {len(requests)}"
    )


def _not_streamed(request: Request) -> str:
    if not request.chunks or (len(request.chunks) == 1 and request.asked_output > 2):
        return f"{len(request.chunks)} chunks for {request.asked_output} tokens"
    rate = request.stream_rate or 0.0
    if (request.output_tokens or 0) >= _SHORTEST and len(set(request.chunks)) == 1:
        return f"{len(request.chunks)} chunks for {request.output_tokens} tokens, all at one time"
    if (request.output_tokens or 0) >= _SHORTEST and rate > _FASTEST:
        return f"tokens of one stream come at {rate:,.0f} tok/s: held back, and sent together"
    return ""


def _inconsistent(request: Request, plan: Plan) -> str:
    if request.output_tokens is None or request.prompt_tokens is None:
        return ""
    times = (0.0, *request.chunks, request.end)
    if any(later < earlier for earlier, later in pairwise(times)):
        return f"times run backward: {', '.join(f'{one:.6f}' for one in times[:4])} s"
    if request.output_tokens > request.asked_output:
        return f"{request.output_tokens} tokens out where {request.asked_output} were asked for"
    ended = request.finish == "stop" and dict(plan.extra).get("ignore_eos")
    if ended and len(request.chunks) < request.output_tokens == request.asked_output:
        seen = f"{len(request.chunks)} chunks"
        return f"it ended by itself (finish reason stop) after {seen}, and counts all {request.asked_output} tokens"
    if len(request.chunks) > request.output_tokens:
        return f"{len(request.chunks)} chunks with text for {request.output_tokens} tokens"
    if plan.target.endpoint == "completions" and request.prompt_tokens > request.asked_prompt + _BEGIN_TOKENS:
        return f"{request.prompt_tokens} tokens read where {request.asked_prompt} were sent"
    return ""


def _cold(requests: Sequence[Request], plan: Plan) -> Refusal | None:
    if not plan.cold:
        return None
    cached = [request for request in requests if (request.cached_tokens or 0) > plan.allow_cached]
    if not cached:
        return None
    most = max(cached, key=lambda request: request.cached_tokens or 0)
    counts = {request.cached_tokens for request in requests}
    shared = ""
    if len(counts) == 1 and (most.cached_tokens or 0) < 64:
        shared = (
            f"; if that is a BOS or a template's head, which all prompts share: --allow-cached {most.cached_tokens}"
        )
    return Refusal(
        COLD, len(cached), len(requests), f"up to {most.cached_tokens} of {most.asked_prompt} tokens{shared}"
    )


def _twice(requests: Sequence[Request]) -> Refusal | None:
    counts = Counter(request.prompt_hash for request in requests if request.prompt_hash)
    more = sum(count - 1 for count in counts.values())
    return Refusal(DISTINCT, more, len(requests), "a prefix cache would answer the second") if more else None


def _same(requests: Sequence[Request], servers: Sequence[Sequence[str]]) -> Refusal | None:
    named = Counter(name for request in requests for name in request.models)
    lists = list(dict.fromkeys(tuple(one) for one in servers))
    if len(named) > 1:
        first = next(iter(named))
        others = sum(any(name != first for name in request.models) for request in requests)
        return Refusal(SAME_SERVER, others, len(requests), f"answers name {', '.join(sorted(named))}")
    if len(lists) > 1:
        told = " then ".join(", ".join(one) or "nothing" for one in lists)
        return Refusal(SAME_SERVER, len(requests), len(requests), f"its list of models is {told}")
    return None
