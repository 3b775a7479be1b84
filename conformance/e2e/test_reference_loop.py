"""Speculative decoding with the verifiers under test in it emits what the target alone would.

The loop, its drafts and its coins are the suite's own (``fixtures/engines/loop.py``), so a wrong law is the verifier's.
Its first tokens are held to the exact joint law of a target so small that all of it can be enumerated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import torch

from waveproof.fixtures.bench import Bench
from waveproof.fixtures.engines import loop
from waveproof.fixtures.engines.loop import Setting
from waveproof.fixtures.engines.table import EngineTable, needs
from waveproof.fixtures.models.tiny_llama import exact_logits, next_logits, tiny_llama, with_noise
from waveproof.fixtures.models.trigram import trigram
from waveproof.golden.judges.evidence import CASE_ALPHA
from waveproof.golden.judges.generated import MUST_DETECT, Verdict
from waveproof.golden.references.joint_law import Filter, joint_law
from waveproof.kernels.operators.contract import Call

pytestmark = pytest.mark.rocm

FAST = ("cpu", "hip", "cuda")
VOCAB_SIZE = 8
PROMPT = (1, 2, 3)
DRAFT_TOKENS = 2
UNFILTERED = Filter(temperature=0.8)
FILTERED = Filter(temperature=0.8, top_k=5, top_p=0.9)
LOSSY = 0.7
"""``threshold_acc`` of the control."""


@dataclass(frozen=True)
class Pair:
    """A target, a draft, and the law of the first tokens by length and filter."""

    target: loop.Model
    draft: loop.Model
    law: Callable[[int, Filter], Mapping[tuple[int, ...], float]]


@cache
def llamas() -> Pair:
    needs("transformers")
    target = tiny_llama(VOCAB_SIZE, seed=0)
    draft = with_noise(target, share=0.25, seed=100)
    laws = cache(lambda length, filter: joint_law(exact_logits(target, PROMPT, length), PROMPT, length, filter))
    return Pair(partial(next_logits, target), partial(next_logits, draft), laws)


@cache
def trigrams() -> Pair:
    target = trigram(VOCAB_SIZE, seed=0)
    laws = cache(lambda length, filter: joint_law(target.after, PROMPT, length, filter))
    return Pair(target, target.with_noise(0.7, seed=100), laws)


@dataclass(frozen=True)
class Effort:
    """How many streams of how many tokens a runtime affords, and which bias those have to show."""

    streams: int
    length: int
    must_detect: float


ROW_AT_A_TIME = ("transformers",)
"""Providers that are called once for each stream."""


def effort(bench: Bench) -> Effort:
    # A verification takes 20 ms in Triton's interpreter, whatever the vocabulary, and 1 ms on the emulated device.
    if bench.subject.slow:
        return Effort(400, 2, 0.3) if bench.subject.runtime == "interpret" else Effort(2_000, 2, MUST_DETECT)
    at_a_time = bench.subject.implementation.provider in ROW_AT_A_TIME
    return Effort(2_000 if at_a_time else 20_000, 3, MUST_DETECT)


def filters(bench: Bench) -> tuple[Filter, ...]:
    return (FILTERED,) if bench.subject.slow else (UNFILTERED, FILTERED)


def hold(
    bench: Bench,
    table: EngineTable,
    setting: Setting,
    pair: Pair,
    seed: int,
    among: tuple[Filter, ...],
    expected: Verdict = "faithful",
    verifying: loop.Verifying | None = None,
    affords: Effort | None = None,
) -> None:
    """Decode with the bench's verifier under each filter, and hold what comes of it to the law."""
    affords = affords or effort(bench)
    subject = bench.subject
    engine = " ".join(filter(None, ("loop:", subject.implementation.provider, subject.where, bench.path)))

    def asked(call: Call) -> loop.Verified:
        accept_len, tokens = bench.results(call)
        return accept_len, tokens

    bench.open()
    for one in among:
        kind = replace(setting, draft_kind=f"{setting.draft_kind}, {one}")
        sampled = loop.generate(
            engine, kind, verifying or asked, pair.target, PROMPT, affords.length, affords.streams, one, seed
        )
        law = pair.law(affords.length, one)
        bench.hold(table.judge(sampled, law, CASE_ALPHA, expected, must_detect=affords.must_detect))


@pytest.mark.slow
@pytest.mark.operator("chain_verify")
@pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
def test_chain_of_drawn_drafts(bench: Bench, engine_table: EngineTable, seed: int, block: bool) -> None:
    setting = Setting(_kind("drawn", block), loop.chain(llamas().draft, DRAFT_TOKENS), loop.chain_verify(block))
    hold(bench, engine_table, setting, llamas(), seed, filters(bench))


@pytest.mark.slow
@pytest.mark.broad
@pytest.mark.operator("chain_verify")
@pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
def test_chain_of_greedy_drafts(bench: Bench, engine_table: EngineTable, seed: int, block: bool) -> None:
    setting = Setting(
        _kind("argmax", block), loop.chain(llamas().draft, DRAFT_TOKENS, greedy=True), loop.chain_verify(block)
    )
    hold(bench, engine_table, setting, llamas(), seed, filters(bench))


@pytest.mark.slow
@pytest.mark.broad
@pytest.mark.operator("accept_sampling")
@pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
def test_chain_from_logits(bench: Bench, engine_table: EngineTable, seed: int, block: bool) -> None:
    asking = loop.accept_sampling(block, bench.path)
    setting = Setting(_kind("drawn", block), loop.chain(llamas().draft, DRAFT_TOKENS), asking)
    hold(bench, engine_table, setting, llamas(), seed, filters(bench))


@pytest.mark.slow
@pytest.mark.broad
@pytest.mark.operator("seeded_chain_verify")
def test_chain_with_random_numbers_of_its_own(bench: Bench, engine_table: EngineTable, seed: int) -> None:
    setting = Setting("drawn", loop.chain(llamas().draft, DRAFT_TOKENS), loop.seeded_chain_verify())
    # It makes a random number for every token of the vocabulary and so takes ten times as long.
    affords = Effort(500, 2, MUST_DETECT) if bench.subject.slow else effort(bench)
    hold(bench, engine_table, setting, llamas(), seed, (UNFILTERED,), affords=affords)


@pytest.mark.slow
@pytest.mark.operator("target_only_verify")
@pytest.mark.parametrize("branching", [(1, 1), (2, 2)], ids=["chain", "tree"])
def test_target_only(bench: Bench, engine_table: EngineTable, seed: int, branching: tuple[int, ...]) -> None:
    setting = Setting(f"top {branching}", loop.tree(llamas().draft, branching), loop.target_only_verify())
    hold(bench, engine_table, setting, llamas(), seed, filters(bench))


@pytest.mark.slow
@pytest.mark.operator("target_only_accept_sampling")
def test_target_only_from_logits(bench: Bench, engine_table: EngineTable, seed: int) -> None:
    asking = loop.target_only_accept_sampling(bench.path)
    setting = Setting("argmax", loop.chain(llamas().draft, DRAFT_TOKENS, greedy=True), asking)
    hold(bench, engine_table, setting, llamas(), seed, filters(bench))


# It can fail --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.operator("target_only_verify", runtimes=FAST)
def test_lossy_threshold_is_found(bench: Bench, engine_table: EngineTable, seed: int) -> None:
    asking = loop.target_only_verify(threshold_acc=LOSSY)
    setting = Setting(f"top (2, 2), threshold_acc={LOSSY}", loop.tree(llamas().draft, (2, 2)), asking)
    hold(bench, engine_table, setting, llamas(), seed, filters(bench), "unfaithful")


@pytest.mark.slow
@pytest.mark.operator("chain_verify", runtimes=FAST)
@pytest.mark.parametrize("block", [False, True], ids=["token", "block"])
def test_target_instead_of_residual_is_found(bench: Bench, engine_table: EngineTable, seed: int, block: bool) -> None:
    generator = torch.Generator().manual_seed(seed)

    def faulty(call: Call) -> loop.Verified:
        accept_len, tokens = bench.results(call)
        rows = torch.arange(len(tokens))
        law = call.tensor("target_probs")[rows, accept_len.long()]
        drawn = torch.multinomial(law, 1, generator=generator)[:, 0]
        return accept_len, tokens.index_put((rows, accept_len.long()), drawn.to(tokens.dtype))

    asking = loop.chain_verify(block)
    setting = Setting(_kind("drawn, target for residual", block), loop.chain(llamas().draft, DRAFT_TOKENS), asking)
    hold(bench, engine_table, setting, llamas(), seed, filters(bench), "unfaithful", faulty)


@pytest.mark.slow
@pytest.mark.operator("chain_verify", runtimes=FAST)
def test_chain_over_a_table(bench: Bench, engine_table: EngineTable, seed: int) -> None:
    setting = Setting("drawn", loop.chain(trigrams().draft, DRAFT_TOKENS), loop.chain_verify(False))
    hold(bench, engine_table, setting, trigrams(), seed, (FILTERED,), affords=Effort(1_500, 3, MUST_DETECT))


def _kind(drafted: str, block: bool) -> str:
    return f"{drafted}, by the block" if block else drafted
