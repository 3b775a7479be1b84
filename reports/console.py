"""The console that tables are printed on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def wide_console(width: int = 180) -> Console:
    """A terminal's console; where the output goes to a file or a pipe, one wide enough for the tables.

    Args:
        width: columns without a terminal.
    """
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=width)
