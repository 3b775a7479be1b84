"""What a test comes to: a test that called nothing shows nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from waveproof.fixtures.recording import judge_error
from waveproof.reports.verdicts import Verdict


@pytest.mark.parametrize(("calls", "verdict"), [(0, Verdict.INCONCLUSIVE), (1, Verdict.PASS), (None, Verdict.PASS)])
def test_a_test_that_called_nothing_is_no_pass(calls: int | None, verdict: Verdict) -> None:
    """``None``: the test is about loading alone."""
    found, judgement, reason = judge_error(None, None, calls)
    assert found is verdict
    assert judgement is None
    assert bool(reason) is (verdict is Verdict.INCONCLUSIVE)
