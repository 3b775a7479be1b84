"""llama.cpp emits, with speculation on, what its target alone would: its own server, its own kinds of draft.

Texts are held to the exact joint law of a tiny target, computed in float64. That is sound for as many texts as these
since the server is told to stay in float32: a log-probability that is off by e at each of L tokens moves the G
statistic of n texts at temperature T by n L (e / T)^2 at most (by Hoeffding's lemma the relative entropy of a step is
below (e / T)^2 / 2), which is 0.04 for FLOAT32_ERROR and the largest n and least T here. As llama.cpp is shipped, with
its cache in float16 and flash attention, log-probabilities are off by 0.002 with these weights and by 0.015 with
sharper ones, which moves G by 9 at 10,000 texts and T = 1. There texts are compared with those of plain decoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from waveproof.fixtures.engines.llama_cpp import Client, DraftKind, LlamaServer, Settings, sample, start_llama_server
from waveproof.fixtures.engines.table import EngineTable, needs
from waveproof.fixtures.models.gguf_file import tiny_vocabulary, write_gguf
from waveproof.fixtures.models.tiny_llama import exact_logits, tiny_llama, with_noise
from waveproof.golden.judges.evidence import CASE_ALPHA
from waveproof.golden.judges.generated import CONTROL, Sampled
from waveproof.golden.judges.judgement import Judgement
from waveproof.golden.references.joint_law import TEMPERATURE_FIRST, TEMPERATURE_LAST, Filter, joint_law

pytestmark = [pytest.mark.rocm, pytest.mark.slow]

VOCAB_SIZE = 8
EOS = tiny_vocabulary(VOCAB_SIZE).eos
PROMPT = (2, 3, 4) + (3, 2) * 12
"""A loop that this target likes to go on with, so that lookups find drafts of which some stand."""
LENGTH = 4
"""The prompt's token, two that can be drafts, and the one after a draft of two that stood."""
TEXTS = {"quick": 500, "default": 2000, "nightly": 10_000}

FLOAT32_ERROR = 2 * 13 * 64 * 2.0**-24 * 6
"""6e-4 nats, to first order: 13 products in a row (6 a layer and the last), of 64 terms at most, each term off by a
unit roundoff of it, on logits of 6 at most; twice, as a log-probability is a difference."""


def _filter(order: tuple[str, ...] = TEMPERATURE_LAST, **parts: Any) -> Filter:
    return Filter(order=order, banned=(EOS,), **parts)


UNFILTERED = _filter()
FILTERED = _filter(temperature=0.8, top_k=5, top_p=0.9)
FILTERS = {
    "unfiltered": UNFILTERED,
    "temperature": _filter(temperature=0.6),
    "top-k": _filter(top_k=4),
    "top-p": _filter(top_p=0.8),
    "all": FILTERED,
    "temperature-first": _filter(TEMPERATURE_FIRST, temperature=0.8, top_k=5, top_p=0.9),
}

DRAFT_MODEL: tuple[DraftKind, ...] = ("draft", "draft-probabilistic")
LOOKUPS: tuple[DraftKind, ...] = ("ngram-simple", "ngram-mod", "ngram-cache")
RARE_LOOKUPS: tuple[DraftKind, ...] = ("ngram-map-k", "ngram-map-k4v")
TOKEN_MATCH: tuple[DraftKind, ...] = ("draft", *LOOKUPS, *RARE_LOOKUPS)

CASES = [(kind, name) for kind in DRAFT_MODEL for name in FILTERS]
CASES += [(kind, name) for kind in ("none", *LOOKUPS) for name in ("unfiltered", "all")]


@pytest.fixture(autouse=True)
def _needed(engine_table: EngineTable) -> None:
    engine_table.engine = "llama.cpp"
    needs("transformers", "gguf", "xllamacpp", "httpx", "prometheus_client")


@pytest.fixture
def texts(pytestconfig: pytest.Config) -> int:
    return TEXTS[pytestconfig.option.profile]


@dataclass(frozen=True)
class Files:
    """GGUF files of a target and of a draft, which is the target with noise on its weights."""

    target: Path
    draft: Path

    def settings(self, kind: DraftKind, **parts: Any) -> Settings:
        """Settings of a server; the kinds with a draft model get the draft."""
        return Settings(self.target, kind, self.draft if kind in DRAFT_MODEL else None, **parts)


@pytest.fixture
def files(_needed: None, tmp_path_factory: pytest.TempPathFactory) -> Files:
    # Not of the module's scope, which would write them before it is known whether there is anything to write with.
    return _written(tmp_path_factory.getbasetemp())


@cache
def _written(folder: Path) -> Files:
    written = Files(folder / "llama-cpp-target.gguf", folder / "llama-cpp-draft.gguf")
    write_gguf(_target(), written.target)
    write_gguf(with_noise(_target(), share=0.25, seed=4), written.draft)
    return written


@cache
def _target() -> Any:
    return tiny_llama(VOCAB_SIZE, seed=3)


@cache
def _law(filter: Filter) -> Mapping[tuple[int, ...], float]:
    return joint_law(_logits(), PROMPT, LENGTH, filter)


@cache
def _logits() -> Any:
    return exact_logits(_target(), PROMPT, LENGTH)


def _sample(server: LlamaServer, filter: Filter, n: int, seed: int, **parts: Any) -> Sampled:
    # The server's own order is left to the server.
    own_order = filter.order == TEMPERATURE_LAST
    return sample(server, PROMPT, filter, n, LENGTH, EOS, seed, default_order=own_order, **parts)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_texts_follow_the_target(
    files: Files, engine_table: EngineTable, texts: int, seed: int, kind: DraftKind, name: str
) -> None:
    # Kinds that compare tokens emit plain decoding's texts under equal seeds, and one sample is evidence once.
    seed += CASES.index((kind, name))
    with start_llama_server(files.settings(kind)) as server:
        sampled = _sample(server, FILTERS[name], texts, seed)
    engine_table.expect(sampled, _law(FILTERS[name]), CASE_ALPHA)


@pytest.mark.parametrize("kind", TOKEN_MATCH)
def test_token_match_changes_no_token(files: Files, engine_table: EngineTable, seed: int, kind: DraftKind) -> None:
    forks, sampled = _forks(files, seed, kind)
    engine_table.expect(sampled, _law(UNFILTERED), CASE_ALPHA)
    most = _most_forks(len(sampled.sequences))
    engine_table.hold(
        Judgement(
            rule="tokens of plain decoding",
            holds=forks <= most,
            figure=forks,
            bound=most,
            unit="texts",
            derivation="equal seeds",
            message=f"{kind}: {forks} texts of {len(sampled.sequences)} differ" if forks > most else "",
        )
    )


@pytest.mark.parametrize("kind", DRAFT_MODEL)
def test_texts_as_shipped_are_those_of_plain_decoding(
    files: Files, engine_table: EngineTable, texts: int, seed: int, kind: DraftKind
) -> None:
    drawn = []
    for offset, one in enumerate(("none", kind)):
        with start_llama_server(files.settings(one, exact=False)) as server:
            drawn.append(_sample(server, UNFILTERED, texts, seed + 100 + offset))
    plain, sampled = drawn
    named = replace(
        sampled, engine=f"{sampled.engine} as shipped", draft_kind=f"{sampled.draft_kind} against plain decoding"
    )
    engine_table.expect_same_law(plain, named, CASE_ALPHA)


def test_log_probabilities_are_those_of_float64(files: Files, engine_table: EngineTable, seed: int) -> None:
    errors = []
    with start_llama_server(files.settings("none")) as server, Client(server) as client:
        for one in range(seed, seed + 20):
            body = {"prompt": list(PROMPT), "n_predict": LENGTH, "n_probs": VOCAB_SIZE, "seed": one}
            answer = client.completion({**body, "return_tokens": True, "ignore_eos": True})
            for place, returned in enumerate(answer["completion_probabilities"]):
                due = _logits()((*PROMPT, *answer["tokens"][:place])).log_softmax(-1).tolist()
                got = {entry["id"]: entry["logprob"] for entry in returned["top_logprobs"]}
                errors += [abs(got[token] - due[token]) for token in range(VOCAB_SIZE)]
    worst = max(errors)
    engine_table.hold(
        Judgement(
            rule="log-probabilities",
            holds=worst <= FLOAT32_ERROR,
            figure=worst,
            bound=FLOAT32_ERROR,
            unit="nats",
            derivation="float32",
            message=f"off by {worst:.3g} nats" if worst > FLOAT32_ERROR else "",
        )
    )


# It can fail --------------------------------------------------------------------------------------------------------

PLANTED: dict[str, tuple[Filter, dict[str, Any]]] = {
    "another temperature": (UNFILTERED, {"temperature": 0.8}),
    "temperature first": (FILTERED, {"samplers": list(TEMPERATURE_FIRST)}),
    "top-k ignored": (FILTERED, {"top_k": 0}),
    "the server's own min_p": (UNFILTERED, {"min_p": 0.05, "samplers": ["min_p", "temperature"]}),
    "a bias on one token": (UNFILTERED, {"logit_bias": [[3, 0.5]]}),
    "a penalty on repetition": (UNFILTERED, {"repeat_penalty": 1.2}),
}
"""What is done to the requests behind the law's back."""


@pytest.mark.parametrize("kind", ["draft", "draft-probabilistic", "ngram-simple"])
def test_synthetic_acceptance_is_found(
    files: Files, engine_table: EngineTable, texts: int, seed: int, kind: DraftKind
) -> None:
    with start_llama_server(files.settings(kind, synth_len=2.5)) as server:
        sampled = _sample(server, UNFILTERED, texts, seed)
    engine_table.expect(sampled, _law(UNFILTERED), CASE_ALPHA, "unfaithful")


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_found(files: Files, engine_table: EngineTable, texts: int, seed: int, fault: str) -> None:
    filter, planted = PLANTED[fault]
    with start_llama_server(files.settings("draft-probabilistic")) as server:
        sampled = _sample(server, filter, texts, seed, planted=planted)
    named = replace(sampled, draft_kind=f"{sampled.draft_kind}, {fault}")
    engine_table.expect(named, _law(filter), CASE_ALPHA, "unfaithful")


def test_draft_that_nobody_verifies_is_found(files: Files, engine_table: EngineTable, texts: int, seed: int) -> None:
    with start_llama_server(Settings(files.draft)) as server:
        drafts = sample(server, PROMPT, UNFILTERED, texts, 1, EOS, seed)
    sequences: list[tuple[int, ...]] = []
    with start_llama_server(files.settings("draft-probabilistic")) as server:
        for offset, (draft, n) in enumerate(Counter(drafts.sequences).items()):
            rest = sample(server, PROMPT + draft, UNFILTERED, n, LENGTH - 1, EOS, seed + offset)
            sequences += [draft + tail for tail in rest.sequences]
    named = replace(
        drafts,
        draft_kind="a draft token that nobody verifies",
        sequences=sequences,
        drafted=texts,
        accepted=texts,
        steps=texts,
    )
    engine_table.expect(named, _law(UNFILTERED), CASE_ALPHA, "unfaithful")


def test_synthetic_acceptance_changes_tokens(files: Files, engine_table: EngineTable, seed: int) -> None:
    forks, sampled = _forks(files, seed, "draft", synth_len=2.5)
    engine_table.expect(sampled, _law(UNFILTERED), CASE_ALPHA, "unfaithful")
    most = _most_forks(len(sampled.sequences))
    message = f"only {forks} texts differ, and {most} may" if forks <= most else ""
    engine_table.hold(Judgement(rule=CONTROL, holds=forks > most, message=message))


# Texts against texts ------------------------------------------------------------------------------------------------


def _forks(files: Files, seed: int, kind: DraftKind, **parts: Any) -> tuple[int, Sampled]:
    """How many of 500 texts of a kind are not plain decoding's under the same seed; 16 slots for ``RARE_LOOKUPS``."""
    drawn = []
    for settings in (files.settings("none", slots=16), files.settings(kind, slots=16, **parts)):
        with start_llama_server(settings) as server:
            drawn.append(_sample(server, UNFILTERED, 500, seed))
    pairs = zip(*(one.sequences for one in drawn), strict=True)
    return sum(plain != ours for plain, ours in pairs), drawn[1]


def _most_forks(n: int) -> int:
    """Texts that may differ: equal coins pick other tokens where they fall into the error of the law's sums."""
    from scipy.stats import poisson

    return int(poisson.isf(CASE_ALPHA, n * LENGTH * FLOAT32_ERROR))
