"""Faults planted in what is inspected: each breaks the rule that is there for it, and what is right breaks none."""

from __future__ import annotations

import pytest
from rich.console import Console

from waveproof.selftest import planted as families
from waveproof.selftest.planted import TABLES, Inspected, Planted, inspect, planted, render_planted

CASES = [(family, entry) for family in TABLES for entry in planted(family)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}:{case[1].name}".replace("-", "_"))
def test_comes_out_as_it_must(case: tuple[str, Planted]) -> None:
    """``waveproof killmatrix`` prints the same."""
    family, entry = case
    found = inspect(family, entry.name)
    if found.absent:
        pytest.skip(found.absent)
    assert found.as_due, found


def test_each_family_has_faults_and_right_ones() -> None:
    for family in TABLES:
        entries = planted(family)
        assert len({entry.name for entry in entries}) == len(entries), family
        assert sum(bool(entry.due) for entry in entries) >= 10, family
        assert sum(not entry.due for entry in entries) >= 3, family
        assert all(entry.fault for entry in entries), family


def _inspected(due: str, broken: tuple[str, ...], **others: str) -> Inspected:
    return Inspected("tables", "one", "a row is missing", due, broken, 0.1, **others)


@pytest.mark.parametrize(
    ("found", "as_due", "told"),
    [
        (_inspected("rows match", ("rows match", "other")), True, "1 of 1 faults"),
        (_inspected("rows match", ("other",)), False, "NOT AS DUE"),
        (_inspected("rows match", ()), False, "SURVIVED"),
        (_inspected("", ()), True, "1 of 1 right ones"),
        (_inspected("", ("rows match",)), False, "0 of 1 right ones"),
        (_inspected("rows match", (), accident="KeyError: 3"), False, "KeyError"),
        (_inspected("rows match", (), absent="no compiler"), False, "no compiler"),
    ],
)
def test_verdict_and_text(found: Inspected, as_due: bool, told: str) -> None:
    console = Console(width=160, record=True, quiet=False)
    with console.capture() as captured:
        render_planted([found], 1.0, console)
    assert found.as_due is as_due
    assert told in captured.get()


def test_an_inspection_that_raises_is_an_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[str, ...]:
        raise KeyError(3)

    monkeypatch.setattr(families, "planted", lambda family: (Planted("one", "raises", "rule", broken),))
    found = inspect("tables", "one")
    assert found.accident == "KeyError: 3"
    assert not found.as_due
