"""What the planted sources of family ``symbols`` stand in: a package of a few modules that knows its platform."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import dedent

from waveproof.selftest.planted import Planted

UTILS = """
import os
import torch
def is_hip():
    return torch.version.hip is not None
def is_cuda():
    return torch.cuda.is_available() and torch.version.cuda is not None
def is_npu():
    return hasattr(torch, "npu") and torch.npu.is_available()
_is_hip = is_hip()
_is_cuda = is_cuda()
_use_aiter = os.environ.get("USE_AITER") == "1" and _is_hip
"""

HEAD = "from .utils import is_cuda, is_hip, is_npu, _is_cuda, _is_hip, _use_aiter\n"
"""How each module ``verify`` begins."""

ONLY_CUDA = """
if _is_cuda:
    from sgl_kernel import top_k_renorm_prob
"""

NONE_ELSEWHERE = (
    ONLY_CUDA
    + """
else:
    top_k_renorm_prob = None
"""
)


def findings_of(files: Mapping[str, str], platform: str = "hip") -> Sequence[tuple[str, str, str]]:
    """Certainty, kind and name of every finding in a package ``engine`` of these modules, with ``utils``."""
    from waveproof.fixtures.audit.audit import audit

    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "engine"
        for name, text in {"__init__": "", "utils": UTILS, **files}.items():
            path = package / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        made = audit(str(package), platform, processes=1)
    return [(one.certainty, one.kind, one.name) for one in made.findings]


def planted(name: str, fault: str, due: str, verify: str, before: str = "", **others: str) -> Planted:
    """One whose fault shows in a module ``verify``, behind :data:`HEAD` and ``before``; others by their names."""
    files = {"verify": HEAD + before + dedent(verify), **{one: dedent(text) for one, text in others.items()}}
    return Planted(name, fault, due, partial(_broken, files))


def _broken(files: Mapping[str, str]) -> list[str]:
    return sorted({f"{certainty} {kind}" for certainty, kind, _ in findings_of(files)})
