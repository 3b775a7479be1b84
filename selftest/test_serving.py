"""Serving measurements without a server: plans, prompts, logs, figures, refusals, resuming, pages."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from waveproof.perf.serving_figures import NoFigures, disturbance, figures, flat, peak, percentiles, prefill
from waveproof.perf.serving_log import BadLog, requests_of
from waveproof.perf.serving_plan import (
    BadPlan,
    Plan,
    Point,
    Prompts,
    Shape,
    Target,
    differences,
    mixed_plan,
    plan_from_json,
    plan_json,
    prefill_plan,
    sweep_plan,
)
from waveproof.perf.serving_prompts import prompts_of
from waveproof.perf.serving_refusals import failure, refusals, warnings
from waveproof.selftest.mutants.serving import PLANTED
from waveproof.selftest.planted import Planted
from waveproof.selftest.serving_records import (
    OUTPUT,
    PROMPT,
    TARGET,
    Record,
    changed_events,
    failed,
    record,
    records,
    requests,
    sent,
    small_plan,
)

# Plans --------------------------------------------------------------------------------------------------------------


def test_default_sweep_is_the_published_case() -> None:
    plan = sweep_plan(TARGET)
    assert [point.concurrency for point in plan.points] == [1, 2, 4, 8, 16, 32, 64]
    assert {shape for point in plan.points for shape in point.shapes} == {Shape(1024, 400)}
    assert all(len(point.shapes) == 4 * point.concurrency for point in plan.points)


@pytest.mark.parametrize(
    "plan",
    [
        small_plan((1, 4), seed=3, extra=(("ignore_eos", True), ("top_k", 4))),
        prefill_plan(TARGET, (100, 1000)),
        mixed_plan(TARGET, Shape(16, 8), Shape(256, 2)),
    ],
    ids=lambda plan: plan.kind,
)
def test_plan_is_read_as_it_was_written(plan: Plan) -> None:
    assert plan_from_json(plan_json(plan)) == plan
    assert differences(plan, plan) == ()


def test_differences_name_what_differs_with_both_values() -> None:
    begun = small_plan((1, 2))
    assert differences(replace(begun, seed=5), begun) == ("seed was 0, is 5",)
    longer = sweep_plan(TARGET, (1, 2), PROMPT, OUTPUT + 1, 3, prompts=begun.prompts)
    assert f"was {PROMPT} in, {OUTPUT} out, is {PROMPT} in, {OUTPUT + 1} out" in differences(longer, begun)[0]
    assert any("points (number) was 2, is 1" in one for one in differences(small_plan((1,)), begun))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Target("localhost:1", "m"), "neither http"),
        (lambda: Target("http://joe:secret@h/v1", "m"), "^a base URL has no user, password or query: it is written"),
        (lambda: small_plan((1,), extra=(("max_tokens", 2),)), "max_tokens: not to be put into requests"),
        (
            lambda: prompts_of(replace(small_plan((1,)), prompts=Prompts((0, 10))), "concurrency-0001", 2),
            "begun 2 times before",
        ),
        (lambda: Shape(0, 1), "0 tokens in"),
        (lambda: Point("p", 3, (Shape(1, 1),)), "1 requests cannot keep 3 streams busy"),
        (lambda: Point("../p", 1, (Shape(1, 1),)), "letters, digits and hyphens"),
        (lambda: small_plan(()), "a plan has points"),
        (lambda: sweep_plan(Target("http://h", "m", "chat"), (1,)), "need a tokenizer"),
        (lambda: sweep_plan(TARGET, (64,), prompts=Prompts((0, 100))), "258 prompts that begin with different tokens"),
        (lambda: mixed_plan(TARGET, Shape(64, 2), Shape(64, 2)), "no longer than"),
        (lambda: plan_from_json("{}"), "no plan"),
        (lambda: plan_from_json('{"schema": 2}'), "another schema"),
    ],
)
def test_plan_that_cannot_be_one_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        wrong()


def test_no_two_prompts_of_a_plan_begin_with_one_token() -> None:
    plan = small_plan((1, 2, 4))
    prompts = [prompt for point in plan.points for prompt in prompts_of(plan, point.name)]
    assert len({prompt.content[0] for prompt in prompts}) == len(prompts) == 26
    assert {prompt.tokens for prompt in prompts} == {PROMPT}
    assert all(1024 <= one < 4096 for prompt in prompts for one in prompt.content if isinstance(one, int))
    assert prompts_of(plan, "concurrency-0002") == prompts_of(plan, "concurrency-0002")
    other = replace(plan, seed=1)
    assert prompts_of(plan, "concurrency-0002") != prompts_of(other, "concurrency-0002")


def test_prompts_of_another_attempt_begin_with_tokens_that_were_never_sent() -> None:
    plan = small_plan((1, 2))
    names = [point.name for point in plan.points]
    made = [prompt.content for attempt in range(3) for name in names for prompt in prompts_of(plan, name, attempt)]
    assert len({content[0] for content in made}) == len(made) == 3 * 12


def test_mixed_traffic_has_its_long_prompts_between_short_ones() -> None:
    alone, beside = mixed_plan(TARGET, Shape(16, 8), Shape(256, 2), concurrency=2, longs=2, per_stream=4).points
    assert (alone.concurrency, beside.concurrency) == (2, 3)
    assert sum(shape.kind == "short" for shape in beside.shapes) == len(alone.shapes) == 8
    assert [place for place, shape in enumerate(beside.shapes) if shape.kind == "long"] == [2, 7]


# Figures ------------------------------------------------------------------------------------------------------------


def test_figures_of_streams_that_are_known() -> None:
    plan = small_plan((2,))
    found = figures(requests(plan.points[0], gap=0.01, ttft=0.1), 2)
    assert found.requests == 6
    assert found.per_stream_tok_s == pytest.approx(100.0)
    assert found.ttft.p50 == pytest.approx(0.1)
    assert found.itl is not None
    assert found.itl.count == 6 * (OUTPUT - 1)
    assert found.itl.p99 == pytest.approx(0.01, rel=1e-6)
    seconds = 2 * 0.18 + 0.17 + 1e-4
    assert found.seconds == pytest.approx(seconds)
    assert found.aggregate_tok_s == pytest.approx(6 * OUTPUT / seconds)
    # While both are busy: two answers in 0.18 s.
    assert found.full_load_tok_s == pytest.approx(2 * OUTPUT / 0.18, rel=0.01)


def test_chunks_of_several_tokens_do_not_make_a_stream_faster_or_slower() -> None:
    point = small_plan((1,)).points[0]

    def bundled(_: int, one: Record) -> Record:
        # Half of the chunks, and the same tokens; the first has one.
        return {**one, "responses": [one["responses"][0], *one["responses"][1:-1:2], one["responses"][-1]]}

    found = requests(point, spoil=bundled)
    assert found[0].stream_rate == pytest.approx(100.0, rel=1e-6)
    assert "fewer chunks than tokens (15 for 24)" in warnings(found, small_plan())[0]
    assert not refusals(found, point, small_plan((1,)))


def test_running_counts_of_tokens_are_used_where_told() -> None:
    point = small_plan((1,)).points[0]
    running = itertools.cycle(range(3, 3 + OUTPUT))

    def count(body: dict[str, Any]) -> None:
        if body["choices"][0].get("text"):
            body["usage"] = {"completion_tokens": next(running), "prompt_tokens": PROMPT}

    (first, *_) = requests(point, spoil=lambda _, one: changed_events(one, count))
    assert first.chunk_tokens == (3, *[1] * (OUTPUT - 1))


def test_intervals_come_with_enough_requests() -> None:
    assert percentiles((1.0, 2.0, 3.0), interval=True).interval is None
    low, high = percentiles(tuple(float(one) for one in range(1, 22)), interval=True).interval or (0.0, 0.0)
    assert 5 < low < 11 < high < 17


def test_failed_requests_are_never_averaged() -> None:
    point = small_plan((1,)).points[0]
    with pytest.raises(NoFigures, match="3 requests, of which some were not answered"):
        figures(requests(point, spoil=lambda number, one: failed(one) if number == 2 else one), 1)
    with pytest.raises(NoFigures):
        figures((), 1)


@pytest.mark.parametrize(
    ("totals", "where", "said"),
    [
        ({1: 10.0, 2: 20.0, 4: 15.0}, 2, "it lies between 1 and 4"),
        ({1: 10.0, 2: 20.0, 4: 35.0}, 4, "the end of the sweep"),
        ({1: 30.0, 2: 20.0, 4: 15.0}, 1, "the start of the sweep"),
        ({2: 30.0}, 2, "the only point"),
    ],
)
def test_peak_says_where_it_lies(totals: dict[int, float], where: int, said: str) -> None:
    some = figures(requests(small_plan((1,)).points[0]), 1)
    points = [replace(some, concurrency=many, aggregate_tok_s=total) for many, total in totals.items()]
    found = peak(points, withheld=[8])
    assert found is not None
    assert found.concurrency == where
    assert said in found.statement
    assert "refused: 8" in found.statement


def test_steady_prefill_leaves_fixed_costs_out() -> None:
    points = [_prefilled(length, 0.5 + length / 13_000) for length in (1000, 13_000, 172_000)]
    found = prefill(points)
    assert found.steady_tok_s == pytest.approx(13_000)
    assert found.fixed_seconds == pytest.approx(0.5)
    assert found.marginal == pytest.approx((13_000, 13_000))
    assert found.rates[0] == pytest.approx(1000 / (0.5 + 1 / 13))
    assert found.warnings == ()


def test_prefill_that_slows_down_with_length_is_told() -> None:
    slowing = (1000, 0.1), (6000, 0.6), (11_000, 1.1), (16_000, 1.6), (21_000, 4.1)
    found = prefill([_prefilled(length, seconds) for length, seconds in slowing])
    assert "10,000 tok/s between lengths falls to 2,000" in found.warnings[0]
    # Of three lengths the interval of the slope holds both speeds.
    assert prefill([_prefilled(length, seconds) for length, seconds in slowing[2:]]).warnings == ()


def test_prefill_that_does_not_grow_is_called_implausible() -> None:
    found = prefill([_prefilled(length, 0.2) for length in (1000, 13_000)])
    assert found.steady_tok_s is None
    assert "13.0 times as long take 1.00 times as long" in found.warnings[0]
    assert "does not grow" in found.warnings[1]
    assert not flat((1000, 3000), (0.2, 0.2))
    assert "one length" in prefill([_prefilled(1000, 0.2)]).warnings[0]


def _prefilled(length: int, seconds: float) -> Any:
    return requests(Point("p", 1, (Shape(length, 2),) * 2), ttft=seconds)


def test_long_prefills_disturb_short_answers() -> None:
    short, long = Shape(16, 8, "short"), Shape(256, 2, "long")
    alone = requests(Point("alone", 2, (short,) * 4))
    point = Point("beside", 3, (short, short, long))
    # While the long prompt is read, from 0.02 to 0.42 s, tokens come 0.05 s apart.
    lines = [record(0, 0.0, short, 0.1, 0.05), record(1, 0.0, short, 0.1, 0.05), record(2, 0.02, long, 0.4)]
    found = disturbance(alone, requests_of(lines, point, sent(point)))
    assert found.beside_itl.p50 / found.alone_itl.p50 == pytest.approx(5.0)
    assert found.beside_ttft.count == 2
    assert found.clear_itl is None
    assert found.long_ttft.p50 == pytest.approx(0.4)
    with pytest.raises(NoFigures, match="0 long prompts"):
        disturbance(alone, alone)


# Logs and refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.name)
def test_planted_fault_breaks_the_rule_that_is_there_for_it(planted: Planted) -> None:
    broken = planted.broken()
    assert planted.due in broken if planted.due else not broken


def test_server_that_answers_few_at_a_time_is_told() -> None:
    """Eight wait, one after the other is answered: each stream is as fast as one alone."""
    point = Point("p", 8, (Shape(PROMPT, OUTPUT),) * 8)
    lines = [record(number, 0.0, shape, ttft=0.1 * (number + 1)) for number, shape in enumerate(point.shapes)]
    (told,) = warnings(requests_of(lines, point, sent(point)), small_plan())
    assert "at most 1 of 8 requests at once were being answered" in told
    assert warnings(requests(point), small_plan()) == ()


def test_chunks_that_came_together_are_told_and_so_is_another_model() -> None:
    point = small_plan((1,)).points[0]

    def in_pairs(_: int, one: Record) -> Record:
        events = one["responses"]
        return {**one, "responses": [{**event, "perf_ns": events[place | 1 if place < 8 else 8]["perf_ns"]}
                                     for place, event in enumerate(events)]}  # fmt: skip

    (told,) = warnings(requests(point, spoil=in_pairs), small_plan())
    assert "12 of 21 gaps between chunks are below 0.1 ms" in told
    other = replace(small_plan(), target=replace(TARGET, model="large"))
    assert warnings(requests(point), other) == ("large was asked and tiny answered, by their own name",)


def test_where_a_server_began_to_fail_is_told() -> None:
    point = small_plan((2,)).points[0]
    found = failure(requests(point, spoil=lambda number, one: failed(one) if number >= 3 else one), point)
    assert found is not None
    assert (found.first, found.count, found.later, found.planned) == (4, 3, 3, 6)
    assert found.at == pytest.approx(0.18 + 1e-4)
    assert "fails from request 4 of 6 at 0.18 s, all that were sent from then on: 500" in str(found)
    once = failure(requests(point, spoil=lambda number, one: failed(one) if number == 3 else one), point)
    assert "1 of 3 since" in str(once)


def test_requests_are_in_the_order_in_which_they_were_sent() -> None:
    """aiperf writes them in the order in which they ended."""
    point = small_plan((2,)).points[0]
    lines = records(point, spoil=lambda number, one: failed(one) if number == 3 else one)
    found = requests_of(reversed(lines), point, sent(point))
    assert [request.number for request in found] == list(range(6))
    told = failure(found, point)
    assert told is not None
    assert told.first == 4


@pytest.mark.parametrize("line", [{"metadata": {}}, {"metadata": {"conversation_id": "99"}, "start_perf_ns": 1}])
def test_record_of_no_planned_request_is_refused(line: Record) -> None:
    point = small_plan((1,)).points[0]
    with pytest.raises(BadLog, match=r"record 1 is none of concurrency-0001"):
        requests_of([line], point, sent(point))
