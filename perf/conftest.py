"""What the performance tests share."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of this room."""
    config.addinivalue_line("markers", "perf: measures or counts what a kernel costs")
