"""vLLM on the CPU emits, with speculation on, what its target alone would: once its known fault is mended.

As shipped, release 0.32.0 does not: its verifier reads settings that nobody wrote (``fixtures/engines/vllm_patches.py``
says where). Unwritten memory may hold anything, the right temperature included, so torch is told to fill it with NaN,
in every run here: the mended engine has to be right under the same.

Run in an environment of its own: ``tox run -e e2e-vllm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from waveproof.fixtures.bench import UNAVAILABLE
from waveproof.fixtures.engines.table import EngineTable
from waveproof.fixtures.engines.vllm_cpu import (
    DRAFT_KINDS,
    Answer,
    EngineFailed,
    Job,
    Run,
    answer_of,
    is_faulty,
    why_not_installed,
)
from waveproof.fixtures.engines.vllm_patches import FAULTS, MENDED
from waveproof.fixtures.models.tiny_llama import exact_logits, tiny_llama, with_noise
from waveproof.golden.judges.evidence import CASE_ALPHA
from waveproof.golden.judges.generated import PLAIN, Sampled
from waveproof.golden.references.joint_law import Filter, joint_law

pytestmark = [pytest.mark.rocm, pytest.mark.slow, pytest.mark.nightly]

VOCAB_SIZE = 8
PROMPT = (4, 7, 5, 0, 3, 3, 3, 7, 1, 3, 5, 2, 4, 7, 6, 0, 0, 4, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7)
"""Every token is there, so that a lookup always finds a draft."""
LENGTH = 4
"""The prompt's token, two that can be drafts, and the one after a draft of two that stood."""
TEXTS = 8192
SECONDS = 1200.0

FILTERS = {
    "unfiltered": Filter(),
    "temperature": Filter(0.7),
    "top-k": Filter(top_k=4),
    "top-p": Filter(top_p=0.8),
    "all": Filter(0.9, top_k=5, top_p=0.9),
}
SPECULATING = tuple(kind for kind in DRAFT_KINDS if kind != PLAIN)
COLD = FILTERS["temperature"]
WANTED = (0.5, 2.0, 2.0)
"""What a right verifier makes of ``vllm_process.PROBE``."""


@pytest.fixture(autouse=True)
def _needed(engine_table: EngineTable) -> None:
    engine_table.engine = "vLLM"
    if reason := why_not_installed():
        pytest.skip(UNAVAILABLE + reason)


@dataclass(frozen=True)
class Folders:
    """Folders of a target and of a draft, which is the target with noise on its weights."""

    target: Path
    draft: Path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folder = tmp_path_factory.mktemp("models")
    written = Folders(folder / "target", folder / "draft")
    _target().save_pretrained(written.target)
    with_noise(_target(), share=0.4, seed=12).save_pretrained(written.draft)
    return written


@cache
def _target() -> Any:
    # The CPU's attention kernel takes heads of 32 and more.
    return tiny_llama(VOCAB_SIZE, seed=5, hidden=64)


@cache
def _law(filter: Filter) -> Mapping[tuple[int, ...], float]:
    return joint_law(exact_logits(_target(), PROMPT, LENGTH), PROMPT, LENGTH, filter)


def _answer(folders: Folders, kind: str, runs: tuple[Run, ...], patches: tuple[str, ...]) -> Answer:
    job = Job(folders.target, folders.draft, kind, PROMPT, LENGTH, runs, ("poison", *patches))
    return answer_of(job, SECONDS)


@cache
def _mended(folders: Folders, kind: str, seed: int) -> dict[str, Sampled] | EngineFailed:
    """Everything that is asked of a mended engine, as its start takes longer than a run: by filter and by fault."""
    asked = {name: (filter, "") for name, filter in FILTERS.items()}
    asked |= {fault: (COLD, fault) for fault in FAULTS if kind != PLAIN}
    runs = tuple(Run(filter, TEXTS, seed + TEXTS * at, fault) for at, (filter, fault) in enumerate(asked.values()))
    try:
        answer = _answer(folders, kind, runs, MENDED)
    except EngineFailed as error:
        return error
    assert answer.expanded == WANTED, f"the mended verifier makes {answer.expanded} of the temperatures {WANTED}"
    return dict(zip(asked, answer.sampled, strict=True))


def _sampled(folders: Folders, kind: str, seed: int, name: str) -> Sampled:
    found = _mended(folders, kind, seed)
    if isinstance(found, EngineFailed):
        raise found
    return found[name]


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_mended_texts_follow_the_target(
    folders: Folders, engine_table: EngineTable, seed: int, kind: str, name: str
) -> None:
    engine_table.expect(_sampled(folders, kind, seed, name), _law(FILTERS[name]), CASE_ALPHA)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", SPECULATING)
def test_a_planted_fault_is_found(
    folders: Folders, engine_table: EngineTable, seed: int, kind: str, fault: str
) -> None:
    engine_table.expect(_sampled(folders, kind, seed, fault), _law(COLD), CASE_ALPHA, expected="unfaithful")


@pytest.mark.parametrize("kind", SPECULATING)
def test_as_shipped(folders: Folders, engine_table: EngineTable, seed: int, kind: str) -> None:
    """Rejected where the release is known to be faulty, else held to what the mended one is."""
    answer = _answer(folders, kind, (Run(COLD, TEXTS, seed),), ())
    engine_table.expect(answer.sampled[0], _law(COLD), CASE_ALPHA, "unfaithful" if is_faulty() else "faithful")
    assert (answer.expanded == WANTED) == (not is_faulty()), answer.expanded


@pytest.mark.parametrize(
    ("name", "patches", "message"),
    [("all", (), "out of bounds"), ("top-k", ("mend expansion",), "max\\(\\): Expected reduction dim")],
    ids=["unwritten-k", "top-k-alone"],
)
def test_as_shipped_a_filter_ends_the_engine(
    folders: Folders, request: pytest.FixtureRequest, seed: int, name: str, patches: tuple[str, ...], message: str
) -> None:
    """In a release that is known to be faulty: the k that nobody wrote, and that of a step without draft tokens."""
    runs = (Run(FILTERS[name], TEXTS, seed),)
    if is_faulty():
        with pytest.raises(EngineFailed, match=message):
            _answer(folders, "greedy draft", runs, patches)
    else:
        sampled = _answer(folders, "greedy draft", runs, patches).sampled[0]
        request.getfixturevalue("engine_table").expect(sampled, _law(FILTERS[name]), CASE_ALPHA)
