"""The instruction tests by mnemonic: :func:`check` tries one, and :data:`COVERED_ELSEWHERE` says who tries the rest."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

from waveproof.kernels.runtimes.emulate.registry import Context
from waveproof.selftest.emulate import control_trial, lane_trial, memory_trial, scaled_trial
from waveproof.selftest.emulate.instruction_forms import Form, scalar_forms, vector_forms
from waveproof.selftest.emulate.instruction_reference import VGPRS
from waveproof.selftest.emulate.instruction_trial import EXEC_MASKS, Fault, trial
from waveproof.selftest.emulate.pcode_reference import PcodeUnsupported, reference

COVERED_ELSEWHERE: tuple[tuple[str, str], ...] = (
    (r"DS_", "test_ds.py"),
    (r"V_MFMA_", "test_mfma.py"),
    (r"GLOBAL_LOAD_LDS_", "test_lds_dma.py"),
    (r"(BUFFER|GLOBAL|FLAT)_ATOMIC_|FLAT_(LOAD|STORE)_", "test_atomics.py"),
    (r"V_CVT_(?!SCALEF32_)", "test_convert.py"),
    (r"V_(CEIL|FLOOR|TRUNC|RNDNE|FRACT|FREXP|LDEXP|RCP|RSQ|SQRT|EXP|LOG|SIN|COS|DIV)_", "test_valu_float.py"),
    (r"V_(DOT|MAD_MIX|PK_MINIMUM3|PK_MAXIMUM3)", "test_packed16.py"),
    (r"V_CMPX?_CLASS", "test_valu_cmp.py"),
    (r"V_(MINIMUM3|MAXIMUM3)", "test_valu_float.py"),
)
"""Mnemonics without a reference here, as regular expressions, and the test file that has one."""

_TRIALS: tuple[tuple[Any, Container[str]], ...] = (
    (lane_trial, lane_trial.FORMS),
    (memory_trial, memory_trial.MNEMONICS),
    (control_trial, control_trial.TRIALS),
    (scaled_trial, scaled_trial.MNEMONICS),
)
"""Modules with references of their own, and for which mnemonics."""

_CONTEXTS = (
    Context(vgprs=VGPRS, accvgprs=4),
    Context(vgprs=VGPRS, accvgprs=4, float_mode=0xC0, ieee=False),
    Context(vgprs=VGPRS, accvgprs=4, float_mode=0xF0, ieee=False, dx10_clamp=False),
)
"""Modes in which forms with floating-point operands take turns: Triton's, AITER's, and clamp without DX10_CLAMP."""


def covering_file(mnemonic: str) -> str | None:
    """The test file that covers a mnemonic that :func:`check` does not."""
    return next((file for pattern, file in COVERED_ELSEWHERE if re.match(pattern, mnemonic)), None)


def is_checked(mnemonic: str) -> bool:
    """Whether :func:`check` has a reference for the mnemonic."""
    if any(mnemonic in names for _, names in _TRIALS):
        return True
    if covering_file(mnemonic) is not None:
        return False
    try:
        reference(mnemonic)
    except PcodeUnsupported:
        return False
    return bool(forms(mnemonic))


def forms(mnemonic: str) -> list[Form]:
    """The forms in which a mnemonic is tried against its pseudocode. Families whose members differ little, or whose
    pseudocode is slow here, get a half or a quarter of them each, others for other members.
    """
    every = list((vector_forms if mnemonic.startswith("V_") else scalar_forms)(mnemonic))
    family = re.match(r"V_(CMP)|V_(?:MIN3|MAX3|MED3)_F", mnemonic)
    if family is None:
        return every
    share = 2 if family[1] else 4
    return [form for at, form in enumerate(every) if "distinct" in form.label or (at + len(mnemonic)) % share == 0]


def check(mnemonic: str, first_only: bool = False) -> list[Fault]:
    """Everything in which the emulator's instruction differs from its reference.

    Args:
        mnemonic: one for which :func:`is_checked`.
        first_only: stop at the first form that differs.
    """
    for module, names in _TRIALS:
        if mnemonic in names:
            return module.trials(mnemonic)
    masks = list(EXEC_MASKS)
    found: list[Fault] = []
    for at, form in enumerate(forms(mnemonic)):
        floats = any(kind[0] in "fp" for kind in form.kinds)
        context = _CONTEXTS[at % len(_CONTEXTS)] if floats else _CONTEXTS[0]
        # A scalar instruction sees three values a trial, a vector instruction 192.
        often = mnemonic.startswith("S_") and form.label.endswith(("distinct", "one source"))
        for seed in range(at, at + (2000 if often else 1), 100):
            found += trial(form, masks[(at + at // 3) % len(masks)], seed, context)
        if found and first_only:
            break
    return found
