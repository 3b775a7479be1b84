"""The console of the reports where its output is piped."""

from __future__ import annotations

import io
import sys

import pytest

from waveproof.reports.console import wide_console


@pytest.mark.parametrize(("columns", "width"), [("97", 97), ("", 200), ("0", 200), ("-80", 200), ("wide", 200)])
def test_piped_output_is_as_wide_as_the_environment_says(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", columns)
    assert wide_console(200).width == width
    monkeypatch.delenv("COLUMNS")
    assert wide_console(200).width == 200
