"""Faults of servers and of logs, planted in what a load generator wrote: which rule withholds a point's figures.

Right ones look odd and must be reported: tokens that share a chunk, a BOS that the server puts before, a slow stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from waveproof.perf.serving_figures import NoFigures, figures, flat
from waveproof.perf.serving_log import BadLog, requests_of
from waveproof.perf.serving_plan import Plan
from waveproof.perf.serving_refusals import (
    ANSWERED,
    AT_ONCE,
    COLD,
    CONSISTENT,
    COUNTED,
    DISTINCT,
    ON_RECORD,
    SAME_SERVER,
    STREAMED,
    WARMED,
    WHOLE_OUTPUT,
    WHOLE_PROMPT,
    refusals,
    unwarmed,
)
from waveproof.selftest.planted import Planted
from waveproof.selftest.serving_records import (
    OUTPUT,
    PROMPT,
    Record,
    Spoil,
    changed_events,
    failed,
    records,
    requests,
    sent,
    small_plan,
)

PLAN = small_plan((2,))
POINT = PLAN.points[0]
READABLE, NOT_AVERAGED, GROWS = "log is of the plan", "failed requests are not averaged", "prefill grows with length"
Body = dict[str, Any]


def broken(spoil: Spoil | None = None, plan: Plan = PLAN, servers: Sequence[Sequence[str]] = ()) -> Sequence[str]:
    """The rules that a log breaks, in which requests are spoiled."""
    return [one.rule for one in refusals(requests(plan.points[0], spoil=spoil), plan.points[0], plan, servers)]


def spoils(spoil: Spoil, plan: Plan = PLAN) -> Callable[[], Sequence[str]]:
    """Inspects a log in which requests are spoiled."""
    return lambda: broken(spoil, plan)


def usage(only: int | None = None, plan: Plan = PLAN, **changes: Any) -> Callable[[], Sequence[str]]:
    """Changes what the server counts: of one request, or of all."""

    def change(body: Body) -> None:
        if "usage" in body:
            body["usage"].update(changes)

    return spoils(lambda number, one: changed_events(one, change) if only in (None, number) else one, plan)


def cached(tokens: int | str, only: int | None = None, plan: Plan = PLAN) -> Callable[[], Sequence[str]]:
    """The server says that so much of the prompt came out of a cache."""
    return usage(only, plan, prompt_tokens_details={"cached_tokens": tokens})


def by_llama_cpp() -> Sequence[str]:
    """The count stands in llama.cpp's timings alone."""

    def change(body: Body) -> None:
        if "usage" in body:
            del body["usage"]["prompt_tokens_details"]
            body["timings"] = {"cache_n": PROMPT - 1}

    return broken(lambda _, one: changed_events(one, change))


def without_usage(_: int, one: Record) -> Record:
    """Nobody counts tokens."""
    return changed_events(one, lambda body: body.pop("usage", None))


def ended_early(number: int, one: Record) -> Record:
    """The model ends the third answer by itself."""
    if number != 2:
        return one
    kept = {**one, "responses": [*one["responses"][:3], one["responses"][-1]]}

    def change(body: Body) -> None:
        if "usage" in body:
            body["usage"]["completion_tokens"] = 3
            body["choices"][0]["finish_reason"] = "stop"

    return changed_events(kept, change)


def in_one_chunk(_: int, one: Record) -> Record:
    """A gateway holds the stream back: everything comes at once."""
    return {**one, "responses": [one["responses"][-2], one["responses"][-1]]}


def silent(number: int, one: Record) -> Record:
    """A stream without a token."""
    return {**one, "responses": one["responses"][-1:]} if number == 1 else one


def error_inside(number: int, one: Record) -> Record:
    """Status 200, and an error as the last event."""
    event = {
        "perf_ns": one["start_perf_ns"] + 5,
        "packets": [{"name": "data", "value": '{"error": {"message": "OOM"}}'}],
    }
    return {**one, "responses": [*one["responses"][:2], event]} if number == 3 else one


def another_model(number: int, one: Record) -> Record:
    """After the third request somebody else answers."""
    return changed_events(one, lambda body: body.update(model="smaller")) if number >= 3 else one


def another_build(number: int, one: Record) -> Record:
    """The server was restarted with another build."""
    return changed_events(one, lambda body: body.update(system_fingerprint="b1" if number < 3 else "b2"))


def twice(number: int, one: Record) -> Record:
    """Two requests have one prompt."""
    return {**one, "payload": {"prompt": [7] * PROMPT}} if number in (1, 4) else one


def not_of_the_plan() -> Sequence[str]:
    """The log of another run."""
    lines = records(POINT)
    lines[-1]["metadata"]["conversation_id"] = "000099"
    try:
        requests_of(lines, POINT, sent(POINT))
    except BadLog:
        return [READABLE]
    return []


def averaged(count: int) -> Callable[[], Sequence[str]]:
    """Figures are asked for although requests failed."""

    def inspected() -> Sequence[str]:
        try:
            figures(requests(POINT, spoil=lambda number, one: failed(one) if number < count else one), 2)
        except NoFigures:
            return [NOT_AVERAGED]
        return []

    return inspected


def lengths(*seconds: float) -> Callable[[], Sequence[str]]:
    """Cold prompts of 1,000, 13,000 and 172,000 tokens that take so long to the first token."""
    return lambda: [GROWS] if flat((1_000, 13_000, 172_000)[: len(seconds)], seconds) else []


def servers(*told: Sequence[str]) -> Callable[[], Sequence[str]]:
    """The lists of models at several times."""
    return lambda: broken(servers=told)


def several_in_a_chunk(_: int, one: Record) -> Record:
    """Speculation: accepted tokens come together."""
    return {**one, "responses": [one["responses"][0], *one["responses"][1:-1:2], one["responses"][-1]]}


def role_first(_: int, one: Record) -> Record:
    """A chat begins with a chunk that has a role and no text."""
    opening = {"choices": [{"delta": {"role": "assistant", "content": ""}}], "model": "tiny"}
    event = {"perf_ns": one["start_perf_ns"] + 1, "packets": [{"name": "data", "value": json.dumps(opening)}]}
    return {**one, "responses": [event, *one["responses"]]}


def disconnected(number: int, one: Record) -> Record:
    """The connection breaks before there is a status."""
    broken_off = {
        **one,
        "responses": [],
        "error": {"type": "ServerDisconnectedError", "message": "Server disconnected"},
    }
    broken_off.pop("status")
    return broken_off if number == 5 else one


def garbled(number: int, one: Record) -> Record:
    """An event in the middle of a stream is half a JSON document."""
    event = {"perf_ns": one["start_perf_ns"] + 5, "packets": [{"name": "data", "value": '{"choices": [tru'}]}
    return {**one, "responses": [*one["responses"][:2], event]} if number == 3 else one


def in_one_burst(every_ns: int) -> Spoil:
    """A gateway keeps the answer back; then its chunks come so many nanoseconds apart."""

    def spoil(_: int, one: Record) -> Record:
        events = [one_.copy() for one_ in one["responses"]]
        last = events[-1]["perf_ns"]
        for place, event in enumerate(reversed(events)):
            event["perf_ns"] = last - every_ns * place
        return {**one, "responses": events}

    return spoil


def stopped_and_counted_whole(number: int, one: Record) -> Record:
    """The model ended the third answer after three tokens, and the server counts all that were asked for."""
    if number != 2:
        return one
    kept = {**one, "responses": [*one["responses"][:3], one["responses"][-1]]}
    return changed_events(
        kept, lambda body: body["choices"][0].update(finish_reason="stop") if "usage" in body else None
    )


def backward(number: int, one: Record) -> Record:
    """A chunk came before its request was sent."""
    return {**one, "start_perf_ns": one["start_perf_ns"] + 10**9} if number == 2 else one


def whole_count_in_each_chunk(_: int, one: Record) -> Record:
    """Every chunk has the count of the whole answer, as if it were a running one."""
    return changed_events(
        one, lambda body: body.setdefault("usage", {"prompt_tokens": PROMPT, "completion_tokens": OUTPUT})
    )


def one_after_the_other() -> Sequence[str]:
    """A load generator that never had two requests under way, or a plan that was edited afterwards."""
    return [one.rule for one in refusals(requests(replace(POINT, concurrency=1)), POINT, PLAN)]


def warmed(status: int) -> Callable[[], Sequence[str]]:
    """The second request of the warm-up has such a status."""

    def inspected() -> Sequence[str]:
        lines = [failed(one, status) if place == 1 else one for place, one in enumerate(records(POINT))]
        lines = lines if status != 200 else records(POINT)
        read = requests_of(lines, POINT, sent(POINT), warmup=True)
        return [one.rule for one in unwarmed(read)]

    return inspected


FAILS = spoils(lambda number, one: failed(one) if number >= 3 else one)
BUSY = spoils(lambda number, one: failed(one, 429) if number == 3 else one)
LOST = spoils(lambda number, one: None if number == 3 else one)
SHARED = replace(PLAN, allow_cached=1)

PLANTED: tuple[Planted, ...] = (
    Planted("fails-mid-run", "500 from the fourth request on", ANSWERED, FAILS),
    Planted("rejected", "one request is answered with 429", ANSWERED, BUSY),
    Planted("disconnected", "the last connection breaks", ANSWERED, spoils(disconnected)),
    Planted("error-in-stream", "status 200, and an error within the stream", ANSWERED, spoils(error_inside)),
    Planted("lost-record", "one request is not in the log", ON_RECORD, LOST),
    Planted("held-back", "all tokens come in one chunk", STREAMED, spoils(in_one_chunk)),
    Planted("empty-stream", "a stream without a token", STREAMED, spoils(silent)),
    Planted("no-usage", "the server counts no tokens", COUNTED, spoils(without_usage)),
    Planted("too-long", "more tokens out than were asked for", CONSISTENT, usage(2, completion_tokens=OUTPUT + 1)),
    Planted("fewer-than-chunks", "fewer tokens than chunks with text", CONSISTENT,
            usage(completion_tokens=OUTPUT - 1)),
    Planted("prompt-grew", "40 tokens more were read than sent", CONSISTENT, usage(prompt_tokens=PROMPT + 40)),
    Planted("prompt-cut", "half of one prompt was read", WHOLE_PROMPT, usage(1, prompt_tokens=PROMPT // 2)),
    Planted("ended-early", "one answer ends with an EOS", WHOLE_OUTPUT, spoils(ended_early)),
    Planted("cached", "prompts came out of a prefix cache", COLD, cached(PROMPT - 1)),
    Planted("one-cached", "one prompt of six did", COLD, cached(PROMPT - 1, only=4)),
    Planted("cached-by-llama-cpp", "only llama.cpp's own timings say so", COLD, by_llama_cpp),
    Planted("more-than-shared", "one token is shared by all prompts, two came from a cache", COLD,
            cached(2, plan=SHARED)),
    Planted("same-prompt", "one prompt was sent twice", DISTINCT, spoils(twice)),
    Planted("another-model", "answers name another model from the fourth on", SAME_SERVER, spoils(another_model)),
    Planted("another-build", "another build from the fourth on", SAME_SERVER, spoils(another_build)),
    Planted("restarted", "the list of models changed while the point ran", SAME_SERVER,
            servers(["tiny of a"], ["tiny of a"], ["tiny of b"])),
    Planted("died", "no list of models at the end", SAME_SERVER, servers(["tiny of a"], ["tiny of a"], [])),
    Planted("log-of-another-run", "a request that was not planned", READABLE, not_of_the_plan),
    Planted("averaged", "figures of the five that went well", NOT_AVERAGED, averaged(1)),
    Planted("flat-prefill", "13,000 tokens take as long as 1,000", GROWS, lengths(0.2, 0.21)),
    Planted("garbled", "an event of one stream is no JSON", ANSWERED, spoils(garbled)),
    Planted("burst", "the chunks of an answer come 10 microseconds apart, after all of it is there", STREAMED,
            spoils(in_one_burst(10_000))),
    Planted("one-moment", "the chunks of an answer come at one time", STREAMED, spoils(in_one_burst(0))),
    Planted("count-is-text", "the server counts in words", COUNTED, usage(completion_tokens="many")),
    Planted("count-is-negative", "the server counts -1 tokens", COUNTED, usage(prompt_tokens=-1)),
    Planted("cached-as-text", "the count of cached tokens is written as text", COLD, cached(str(PROMPT - 1))),
    Planted("stopped", "three chunks and finish reason stop, and all tokens are counted", CONSISTENT,
            spoils(stopped_and_counted_whole)),
    Planted("backward", "a chunk came before its request was sent", CONSISTENT, spoils(backward)),
    Planted("not-at-once", "two requests at once are planned, and one was under way", AT_ONCE, one_after_the_other),
    Planted("not-warmed", "503 in the warm-up", WARMED, warmed(503)),
    Planted("warmed", "the warm-up was answered", "", warmed(200)),
    Planted("plain", "nothing is odd", "", broken),
    Planted("whole-count-in-chunks", "each chunk tells the count of the whole answer", "",
            spoils(whole_count_in_each_chunk)),
    Planted("nothing-cached-as-text", "no cached tokens, written as text", "", cached("0")),
    Planted("fast-stream", "tokens come 0.2 ms apart", "", spoils(in_one_burst(200_000))),
    Planted("one-server", "one list of models at all times", "", servers(["tiny of a"], ["tiny of a"])),
    Planted("chunks-of-two", "accepted draft tokens come together", "", spoils(several_in_a_chunk)),
    Planted("role-first", "a chat's first chunk has no text", "", spoils(role_first)),
    Planted("bos-before", "the server put a BOS before the ids", "", usage(prompt_tokens=PROMPT + 1)),
    Planted("shared-bos", "a BOS came from a cache, as was declared", "", cached(1, plan=SHARED)),
    Planted("cached-and-not-cold", "a cache may answer where nothing cold is asked", "",
            cached(PROMPT - 1, plan=replace(PLAN, cold=False))),
    Planted("no-count-of-cached", "the server does not tell what was cached", "",
            usage(prompt_tokens_details=None)),
    Planted("whole", "figures where all went well", "", averaged(0)),
    Planted("growing-prefill", "time grows with length", "", lengths(0.2, 1.2, 14.0)),
)  # fmt: skip
