"""Makes the rooms importable as ``waveproof`` where it is not installed, and loads the pytest plugin.

In a ROCm container ``pytest -m rocm`` thus runs from a clone in the environment as it is.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

if importlib.util.find_spec("waveproof") is None:
    namespace = types.ModuleType("waveproof")
    namespace.__path__ = [str(Path(__file__).resolve().parent)]
    sys.modules["waveproof"] = namespace

pytest_plugins = ["waveproof.fixtures.options", "waveproof.fixtures.plugin"]
