"""The console of the reports where its output is piped."""

from __future__ import annotations

import io
import sys

import pytest

from waveproof.reports.console import wide_console


def test_piped_output_is_as_wide_as_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under tox, which sets COLUMNS to 80 where it has no terminal itself, too."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "80")
    assert wide_console(200).width == 200
