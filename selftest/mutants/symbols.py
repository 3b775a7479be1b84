"""Family ``symbols``: source faults in packages of a few lines, and right sources that look like one.

What is looked for is a name that is missing on HIP; the rule that breaks is the finding's certainty and kind.
"""

from __future__ import annotations

from waveproof.selftest.mutants.symbols_branches import FAULTS
from waveproof.selftest.mutants.symbols_reached import MORE
from waveproof.selftest.mutants.symbols_right import RIGHT

PLANTED = (*FAULTS, *MORE, *RIGHT)
