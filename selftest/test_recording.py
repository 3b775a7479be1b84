"""What a test comes to: a test that called nothing shows nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from waveproof.fixtures.inspection import inspection_of
from waveproof.fixtures.recording import judge_error
from waveproof.reports.verdicts import Verdict


@pytest.mark.parametrize(("calls", "verdict"), [(0, Verdict.INCONCLUSIVE), (1, Verdict.PASS), (None, Verdict.PASS)])
def test_a_test_that_called_nothing_is_no_pass(calls: int | None, verdict: Verdict) -> None:
    """``None``: the test is about loading alone."""
    found, judgement, reason = judge_error(None, None, calls)
    assert found is verdict
    assert judgement is None
    assert bool(reason) is (verdict is Verdict.INCONCLUSIVE)


def test_an_inspection_that_was_skipped_before_it_began_is_recorded() -> None:
    """A marker or another fixture may end a test before it is given its inspection."""
    item: Any = SimpleNamespace(fixturenames=("early", "inspection"), stash=pytest.Stash())
    found = inspection_of(item)
    assert found is not None
    assert found is inspection_of(item)
    other: Any = SimpleNamespace(fixturenames=("early",), stash=pytest.Stash())
    assert inspection_of(other) is None
