"""AMD's instruction pseudocode, executed for one lane or one wave: the second oracle of the instruction tests.

What the translator does not understand it refuses, and the instruction tests list every mnemonic that is left without a
reference.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

from waveproof.selftest.emulate import pcode_values
from waveproof.selftest.emulate.pcode_translator import PcodeUnsupported, Translator
from waveproof.selftest.emulate.pcode_values import Value

_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "signext": pcode_values.sign_extended,
    "signext_from_bit": pcode_values.sign_extended_from,
    "isNAN": lambda x: Value(pcode_values.is_nan(x), 1),
    "isSignalNAN": lambda x: Value(pcode_values.is_signalling(x), 1),
    "cvtToQuietNAN": pcode_values.quieted,
    "fma": pcode_values.fused,
}


def _bit(x: Value, at: int) -> Value:
    return Value(x.bits >> at, 1)


def _call(name: str, outer: dict[str, Value], *arguments: Value) -> Value:
    """Another instruction's pseudocode on its own registers, as ``v_max3_u32(...)`` means it."""
    inner = {**outer, **{f"S{i}": a for i, a in enumerate(arguments)}, "D0": Value(0, 64)}
    reference(name)(inner)
    return inner["D0"].view(arguments[0].kind, arguments[0].width)


@functools.cache
def texts() -> dict[str, str]:
    """Pseudocode by mnemonic without encoding suffix."""
    found: dict[str, str] = {}
    for key, text in PCODE.items():
        found.setdefault(key.name.removesuffix("_E64").removesuffix("_E32"), text)
    return found


@functools.cache
def reference(mnemonic: str) -> Callable[[dict[str, Value]], None]:
    """A function that executes the pseudocode on a dictionary of registers by name (S0, D0, SCC, VCC, laneId, ...).

    Raises:
        PcodeUnsupported: there is no pseudocode, or the translator does not know something in it.
    """
    text = texts().get(mnemonic)
    if mnemonic == "V_PK_MOV_B32" and text is not None:
        # Bits 63:32 of "S0.u32" would be none.
        text = text.replace("S0.u32[OPSEL", "S0[OPSEL").replace("S1.u32[OPSEL", "S1[OPSEL")
    if text is None:
        raise PcodeUnsupported(f"no pseudocode for {mnemonic}")
    translator = Translator(text)
    translator.block("")
    source = "\n".join(["def run(s):", *translator.lines])
    source = re.sub(r"Value\((\d+), \d+, '[IU]'\)\.number", r"\1", source)
    scope: dict[str, Any] = {"Value": Value, "pv": pcode_values, "_bit": _bit, "_call": _call, "_FUNCTIONS": _FUNCTIONS}
    exec(compile(source, f"<pseudocode of {mnemonic}>", "exec"), scope)
    run: Callable[[dict[str, Value]], None] = scope["run"]
    return run
