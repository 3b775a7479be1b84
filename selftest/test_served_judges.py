"""Judges of served answers: the law that a table tells, forks, repeats, two samples, acceptance, shapes of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from waveproof.fixtures.servers.answers import MalformedAnswer, steps_of
from waveproof.fixtures.servers.metrics import read_acceptance
from waveproof.golden.judges.acceptance import Acceptance, acceptance_falls
from waveproof.golden.judges.answers import Completion, ServedToken
from waveproof.golden.judges.served import FLAT, BadTable, Described, Verdict, described_by, known_law, table
from waveproof.golden.judges.served_checks import greedy_agreement, must_agree, must_differ, same_law
from waveproof.golden.judges.served_stream import Stream
from waveproof.selftest.servers.tiny_law import TEXTS, TinyLaw, draw, probabilities

RAW, PROCESSED = Described.RAW, Described.PROCESSED
LOGITS = np.random.default_rng(0).normal(size=12) * 1.5


def _table(temperature: float, count: int, logits: np.ndarray = LOGITS) -> dict[str, float]:
    values = np.log(probabilities(logits, temperature, 0))
    return {f"token_id:{one}": float(values[one]) for one in np.argsort(-values)[:count]}


def _law(logprobs: dict[str, float]) -> np.ndarray:
    law = np.zeros(len(LOGITS))
    for symbol, value in logprobs.items():
        law[int(symbol.removeprefix("token_id:"))] = math.exp(value)
    return law


@pytest.mark.parametrize("described", [RAW, PROCESSED])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_whole_vocabulary_tells_the_sampled_law(described: Described, temperature: float) -> None:
    told = _table(1.0 if described is RAW else temperature, 20)
    law = known_law(told, described, temperature, 0, 20)
    assert law is not None
    assert law.complete
    assert not law.conditional
    assert np.allclose(_law(dict(law.logprobs)), probabilities(LOGITS, temperature, 0), atol=1e-12)


@pytest.mark.parametrize("described", [RAW, PROCESSED])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_top_k_below_the_table_tells_the_sampled_law(described: Described, temperature: float) -> None:
    told = _table(1.0 if described is RAW else temperature, 6)
    law = known_law(told, described, temperature, 4, 6)
    assert law is not None
    assert law.complete
    assert not law.conditional
    assert np.allclose(_law(dict(law.logprobs)), probabilities(LOGITS, temperature, 4), atol=1e-12)


def test_raw_part_of_the_vocabulary_tells_the_law_within_it() -> None:
    law = known_law(_table(1.0, 5), RAW, 1.7, 0, 5)
    assert law is not None
    assert law.conditional
    true = probabilities(LOGITS, 1.7, 0)
    found = _law(dict(law.logprobs))
    inside = found > 0
    assert np.allclose(found[inside], true[inside] / true[inside].sum(), atol=1e-12)


@pytest.mark.parametrize(("described", "temperature"), [(RAW, 1.0), (PROCESSED, 1.7)])
def test_part_of_the_vocabulary_leaves_the_rest_one_symbol(described: Described, temperature: float) -> None:
    law = known_law(_table(temperature if described is PROCESSED else 1.0, 5), described, temperature, 0, 5)
    assert law is not None
    assert not law.complete
    assert not law.conditional


def test_tie_at_the_cut_is_skipped() -> None:
    logits = np.array([2.0, 1.0, 1.0, 0.0])
    assert known_law(_table(1.0, 4, logits), PROCESSED, 1.0, 2, 4) is None
    assert known_law(_table(1.0, 4, logits), PROCESSED, 1.0, 3, 4) is not None


def test_entry_that_another_text_has_replaced_is_skipped() -> None:
    told = _table(1.0, 6)
    del told[next(iter(told))]
    assert known_law(told, PROCESSED, 1.0, 0, 6) is None


def test_token_that_is_listed_for_being_sampled_is_taken_out() -> None:
    told = _table(1.0, 12)
    last = list(told)[-1]
    top = dict(list(told.items())[:5])
    assert table(ServedToken(last, "", told[last], top | {last: told[last]}, 6), 5) == top
    first = next(iter(top))
    assert table(ServedToken(first, "", top[first], top, 5), 5) == top


@pytest.mark.parametrize(
    ("values", "why"),
    [((math.nan, -1.0), "NaN"), ((-0.1, -0.5), r"sum to 1\.5"), ((-math.inf, -9999.0), "no returned logprob")],
)
def test_table_that_is_no_law_is_refused(values: tuple[float, float], why: str) -> None:
    with pytest.raises(BadTable, match=why):
        table(ServedToken("a", "a", None, dict(zip("ab", values, strict=True)), 2), 2)


def test_described_by_tells_raw_from_processed() -> None:
    assert described_by([(_table(1.0, 5), _table(1.0, 5))]) == (RAW, pytest.approx(1.0))
    assert described_by([(_table(1.0, 5), _table(0.5, 5))]) == (PROCESSED, pytest.approx(2.0))
    assert described_by([(_table(1.0, 5), _table(0.7, 5))])[0] is None
    flat = _table(1.0, 5, np.zeros(12))
    assert described_by([(flat, flat)])[0] is PROCESSED
    # On either side of what counts as flat, with what is told apart above it.
    for spread, slope in ((0.9, math.nan), (1.1, 1.0)):
        told = {"a": -1.0, "b": -1.0 + spread * math.sqrt(FLAT)}
        assert described_by([(told, told)])[1] == pytest.approx(slope, nan_ok=True)


def _stream(told_at: float, sampled_at: float, temperature: float, described: Described, count: int) -> Stream:
    """2,000 answers of one token, each from a law of its own."""
    stream = Stream(
        "x", alpha=1e-3, seed=0, described=described, temperature=temperature, top_k=0, asked=count, fewest=1000
    )
    law, noise = TinyLaw(2), np.random.default_rng(1)
    for _ in range(2000):
        logits = law.logits(int(noise.integers(200)))
        token = draw(probabilities(logits, sampled_at, 0), noise.random())
        told = np.log(probabilities(logits, told_at, 0))
        top = {f"token_id:{one}": float(told[one]) for one in np.argsort(-logits)[:count]}
        step = ServedToken(f"token_id:{token}", TEXTS[token], float(told[token]), top, count)
        stream.add(Completion(TEXTS[token], (step,), "length", usage=1), 0)
    return stream


CASES = [(RAW, 1.0, 1.4), (RAW, 1.0, 0.6), (RAW, 1.0, 1.0), (PROCESSED, 1.4, 1.4)]


@pytest.mark.parametrize(("described", "told_at", "temperature"), CASES)
def test_stream_of_a_cut_table_passes_the_right_and_rejects_a_tilted_sampler(
    described: Described, told_at: float, temperature: float
) -> None:
    right = _stream(told_at, temperature, temperature, described, 5).finding()
    assert right.verdict is Verdict.FAITHFUL, right
    tilted = _stream(told_at, 0.6 * temperature, temperature, described, 5).finding()
    assert tilted.verdict is Verdict.UNFAITHFUL, tilted


def test_raw_cut_table_that_is_taken_for_processed_would_reject_a_right_server() -> None:
    assert _stream(1.0, 1.4, 1.4, PROCESSED, 5).finding().verdict is Verdict.UNFAITHFUL


def _answer(text: str, gaps: Sequence[float] | None = None, finish: str = "length") -> Completion:
    """Greedy answer, each token leading token ``~`` by a gap in nats."""
    if gaps is None:
        return Completion(text, (), finish, silent=True)
    steps = []
    for letter, gap in zip(text, gaps, strict=True):
        other = -math.log1p(math.exp(gap))
        steps.append(ServedToken(letter, letter, gap + other, {letter: gap + other, "~": other}, 2))
    return Completion(text, tuple(steps), finish)


def test_greedy_forks_only_at_a_near_tie() -> None:
    one = _answer("abc", [2.0, 0.1, 2.0])
    for other, verdict in (
        (_answer("abc", [2.0, 0.1, 2.0]), Verdict.FAITHFUL),
        (_answer("a~x", [2.0, 0.0, 2.0]), Verdict.FAITHFUL),
        (_answer("~bc", [0.0, 2.0, 2.0]), Verdict.UNFAITHFUL),
        (_answer("axc", [2.0, 2.0, 2.0]), Verdict.FAITHFUL),
    ):
        assert greedy_agreement("g", [[one, other]], 0.25, 2).verdict is verdict
    wide = _answer("abc", [2.0, 3.0, 2.0])
    assert greedy_agreement("g", [[wide, _answer("axc", [2.0, 2.0, 2.0])]], 0.25, 2).verdict is Verdict.UNFAITHFUL
    stopped = _answer("ab", [2.0, 3.0], "stop")
    assert greedy_agreement("g", [[wide, stopped]], 0.25, 2).verdict is Verdict.INCONCLUSIVE


def test_greedy_answers_without_logprobs_agree_or_are_inconclusive() -> None:
    assert greedy_agreement("g", [[_answer("abc"), _answer("abc")]], 0.25, 0).verdict is Verdict.FAITHFUL
    assert greedy_agreement("g", [[_answer("abc"), _answer("abd")]], 0.25, 0).verdict is Verdict.INCONCLUSIVE
    assert greedy_agreement("g", [[_answer("abc")]], 0.25, 0).verdict is Verdict.INCONCLUSIVE


def test_greedy_token_must_lead_its_own_table() -> None:
    behind = ServedToken("a", "a", -2.0, {"b": -0.2, "a": -2.0}, 2)
    found = greedy_agreement("g", [[Completion("a", (behind,), "length")] * 2], 0.25, 2)
    assert found.verdict is Verdict.UNFAITHFUL
    assert "1.8 nats below" in found.evidence


def test_rows_that_repeat_are_as_surprising_as_their_probability() -> None:
    likely, rare = _answer("ab", [5.0, 5.0]), _answer("abcdefgh", [0.0] * 8)
    assert must_differ("r", [[rare, rare]], 1e-2, "rows").verdict is Verdict.UNFAITHFUL
    assert must_differ("r", [[rare, rare]], 1e-3, "rows").verdict is Verdict.INCONCLUSIVE
    assert must_differ("r", [[likely, likely]], 1e-2, "rows").verdict is Verdict.INCONCLUSIVE
    assert must_differ("r", [[rare, likely]], 1e-2, "rows").verdict is Verdict.FAITHFUL
    assert must_differ("r", [[rare]], 1e-2, "rows").verdict is Verdict.INCONCLUSIVE


def test_rows_without_logprobs_are_compared_with_other_requests() -> None:
    same = [[_answer(f"text {n}"), _answer(f"text {n}")] for n in range(16)]
    assert must_differ("r", same, 1e-3, "rows").verdict is Verdict.UNFAITHFUL
    peaked = [[_answer("text"), _answer("text")] for _ in range(16)]
    assert must_differ("r", peaked, 1e-3, "rows").verdict is Verdict.INCONCLUSIVE
    different = [[_answer(f"a {n}"), _answer(f"b {n}")] for n in range(16)]
    assert must_differ("r", different, 1e-3, "rows").verdict is Verdict.FAITHFUL


def test_one_seed_twice_is_told_or_demanded() -> None:
    pairs = [[_answer("a"), _answer("b")]]
    assert must_agree("s", pairs, False, "answers").verdict is Verdict.NOTE
    assert must_agree("s", pairs, True, "answers").verdict is Verdict.UNFAITHFUL
    assert must_agree("s", [[_answer("a")] * 2], True, "answers").verdict is Verdict.FAITHFUL


def _texts(law: np.ndarray, n: int, seed: int) -> list[Completion]:
    drawn = np.random.default_rng(seed).choice(len(law), (n, 2), p=law)
    return [_answer("".join("abcdefghijkl"[one] for one in row)) for row in drawn]


def test_two_samples_of_one_law_pass_at_their_rate_and_of_two_are_rejected() -> None:
    law, other = probabilities(LOGITS, 1.0, 0), probabilities(LOGITS, 0.6, 0)
    found = [
        same_law("s", [(_texts(law, 300, seed), _texts(law, 300, seed + 1))], 0.05, ("a", "b"))
        for seed in range(0, 200, 2)
    ]
    # 100 runs at a rate of at most 0.05: more than 13 alarms have a probability below 1e-3.
    assert sum(one.verdict is Verdict.UNFAITHFUL for one in found) <= 13
    wrong = same_law("s", [(_texts(law, 300, 1), _texts(other, 300, 2))], 1e-4, ("a", "b"))
    assert wrong.verdict is Verdict.UNFAITHFUL


def test_two_samples_that_are_too_small_or_all_alike_are_inconclusive() -> None:
    law = probabilities(LOGITS, 1.0, 0)
    few = same_law("s", [(_texts(law, 30, 1), _texts(law, 30, 2))], 1e-4, ("a", "b"))
    assert few.verdict is Verdict.INCONCLUSIVE
    many = [(_texts(law, 300, 1), _texts(law, 300, 2))]
    found = same_law("s", many, 1e-4, ("a", "b"))
    assert found.verdict is Verdict.FAITHFUL
    detectable = found.figures["detectable"]
    assert f"one law up to a total variation of {detectable:.2g}" in found.evidence
    strict = same_law("s", many, 1e-4, ("a", "b"), least_bias=0.99 * detectable)
    assert strict.verdict is Verdict.INCONCLUSIVE
    assert same_law("s", many, 1e-4, ("a", "b"), last_look=False, least_bias=0.01).verdict is Verdict.FAITHFUL
    assert same_law("s", [([_answer("a")] * 9, [_answer("a")] * 9)], 1e-4, ("a", "b")).verdict is Verdict.INCONCLUSIVE


METRICS = """# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 87.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 3.0
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m"} 2.5
"""


def test_metrics_are_read_and_added_up_over_engines() -> None:
    assert read_acceptance(METRICS) == Acceptance(100.0, None, None, (90.0, 60.0), 2.5)
    ours = METRICS.replace("vllm:", "llamacpp:").replace("sglang:spec_accept_length", "llamacpp:other")
    assert read_acceptance(ours) == Acceptance(100.0, None, None, (90.0, 60.0))
    assert read_acceptance(None) == read_acceptance("<html>{") == Acceptance()


def test_acceptance_counts_from_the_start_of_the_run_or_of_the_server() -> None:
    before = Acceptance(10.0, 20.0, 5.0, (4.0,))
    assert Acceptance(30.0, 60.0, 15.0, (10.0, 3.0)).since(before) == Acceptance(20.0, 40.0, 10.0, (6.0, 3.0))
    restarted = Acceptance(3.0, 6.0, 1.0, (1.0, 0.0))
    assert restarted.since(before) == restarted


@pytest.mark.parametrize(
    ("counted", "verdict", "words"),
    [
        (Acceptance(100, 300, 150, (80, 50, 20)), Verdict.FAITHFUL, "80, 50, 20 of 100 drafts"),
        (Acceptance(100, 300, 150, (50, 50, 50)), Verdict.FAITHFUL, "50, 50, 50"),
        (Acceptance(100, 300, 150, (20, 50, 80)), Verdict.UNFAITHFUL, "position 1 exceeds the position before"),
        (Acceptance(100, 300, 150, (180, 50, 20)), Verdict.UNFAITHFUL, "position 0 exceeds the number of drafts"),
        (Acceptance(100, 300, 150, (51, 52, 50)), Verdict.FAITHFUL, "51, 52, 50"),
        (Acceptance(100, 300, 0, (0, 0, 0)), Verdict.INCONCLUSIVE, "no draft token was accepted"),
        (Acceptance(100, 300, 300, (100, 100, 100)), Verdict.INCONCLUSIVE, "no draft token was rejected"),
        (Acceptance(mean_length=2.5), Verdict.INCONCLUSIVE, "2.5 tokens a step"),
        (Acceptance(), Verdict.INCONCLUSIVE, "no metrics"),
    ],
)
def test_acceptance_must_not_rise(counted: Acceptance, verdict: Verdict, words: str) -> None:
    found = acceptance_falls("a", counted, 1e-3)
    assert found.verdict is verdict
    assert words in found.evidence


def test_both_shapes_of_logprobs_are_read() -> None:
    lists = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": None}]}
    (step,) = steps_of(lists)
    assert (step.symbol, step.logprob, dict(step.top), step.listed) == ("a", -0.5, {"a": -0.5, "b": -math.inf}, 2)
    told = {"id": 3, "token": "a", "bytes": [97], "logprob": -0.5}
    (step,) = steps_of({"content": [{**told, "top_logprobs": [told, {"token": "b", "logprob": -3.4e38}]}]})
    assert (step.symbol, step.text, set(step.top)) == ("token_id:3", "a", {"token_id:3", "b"})
    broken = {"token": "\ufffd", "bytes": [240], "logprob": -1.0}
    other = {"token": "\ufffd", "bytes": [241], "logprob": -2.0}
    (step,) = steps_of({"content": [{**broken, "top_logprobs": [broken, other]}]})
    assert step.symbol in step.top
    assert len(step.top) == 2
    assert steps_of(None) == []


@pytest.mark.parametrize(
    "bad",
    [
        [], {"content": {}}, {"content": [3]}, {"tokens": ["a"], "token_logprobs": []}, {"tokens": [1]},
        {"tokens": ["a"], "token_logprobs": ["x"]}, {"tokens": ["a"], "top_logprobs": [[1]]},
    ],
)  # fmt: skip
def test_what_is_neither_shape_is_malformed(bad: object) -> None:
    with pytest.raises(MalformedAnswer):
        steps_of(bad)
