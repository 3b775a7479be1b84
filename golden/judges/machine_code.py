"""Judge what the compiler made of a kernel: rules that hold across versions, from resources and address arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from waveproof.golden.judges.judgement import Demonstration, Judgement
from waveproof.kernels.operators.contract import Call

COMPILES, MATRIX_UNITS = "compiles", "matrix units used"
NO_SPILLS, NO_SCRATCH, LDS_FITS, WORKGROUP_FITS = "no spills", "no scratch", "LDS fits", "workgroup fits"

LDS_BYTES = {"gfx942": 65_536, "gfx950": 163_840}
"""LDS of a compute unit: AMD Instinct MI300 and CDNA4 ISA documents, section "Local Data Share"."""


def judge_compiled(error: Mapping[str, Any] | None, launches: Sequence[Mapping[str, Any]], call: Call) -> Judgement:
    """Whether the host code reached a launch and every kernel compiled."""
    demonstration = Demonstration("compile", (call,))
    if error is not None:
        first = next(iter(error["message"].strip().splitlines()), "")
        return Judgement(
            COMPILES, False, 1.0, message=f"{error['type']}: {first}", got=error["type"], demonstration=demonstration
        )
    if not launches:
        return Judgement(
            COMPILES,
            False,
            1.0,
            message="the host code launched no kernel: nothing was compiled",
            demonstration=demonstration,
        )
    return Judgement(COMPILES, True)


def judge_resources(launches: Sequence[Mapping[str, Any]], arch: str, call: Call) -> list[Judgement]:
    """No spilled registers, no scratch, LDS within the compute unit's: a streaming kernel needs none of them."""
    judgements = []
    for launch in launches:
        resources, kernel = launch["resources"], launch["kernel"]
        for rule, key, bound, unit in (
            (NO_SPILLS, "vgpr_spill", 0, "spilled VGPRs"),
            (NO_SCRATCH, "scratch_bytes", 0, "bytes of scratch a lane"),
            (LDS_FITS, "lds_bytes", LDS_BYTES[arch], "bytes of LDS"),
        ):
            figure = float(resources[key])
            holds = figure <= bound
            judgements.append(
                Judgement(
                    rule,
                    holds,
                    figure,
                    float(bound),
                    unit,
                    "a streaming kernel keeps its state in registers"
                    if bound == 0
                    else f"LDS of a {arch} compute unit",
                    "" if holds else f"{kernel} on {arch} takes {figure:g} {unit}",
                    demonstration=None if holds else Demonstration("compile", (call,)),
                )
            )
    return judgements


WORK_ITEMS = 1024
"""The most of a workgroup on every AMD GPU (HIP, ``hipDeviceProp_t.maxThreadsPerBlock``)."""


def judge_footprint(kernel: str, arch: str, figures: Mapping[str, int]) -> list[Judgement]:
    """Rules on what a kernel takes from the device that hold for any version of it.

    Args:
        kernel: as messages name it, with where it is defined.
        arch: ``gfx942`` or ``gfx950``.
        figures: ``vgpr_spill``, ``scratch_bytes``, ``lds_bytes``, ``num_warps`` (waves of a workgroup) and
            ``waves_per_cu`` (:func:`waveproof.kernels.runtimes.amdgcn_resources.waves_per_cu`).
    """
    fitting = "a workgroup that no compute unit has room for is never started"
    bounds = (
        (NO_SPILLS, figures["vgpr_spill"], 0, "spilled VGPRs", "what does not fit into registers goes to memory"),
        (NO_SCRATCH, figures["scratch_bytes"], 0, "bytes of scratch a lane", "scratch is memory behind the caches"),
        (LDS_FITS, figures["lds_bytes"], LDS_BYTES[arch], "bytes of LDS", f"LDS of a {arch} compute unit"),
        (WORKGROUP_FITS, 64 * figures["num_warps"], WORK_ITEMS, "work-items a workgroup", "HIP's limit"),
        ("waves fit", figures["num_warps"], figures["waves_per_cu"], "waves a workgroup", fitting),
    )
    return [
        Judgement(
            rule,
            figure <= bound,
            float(figure),
            float(bound),
            unit,
            why,
            "" if figure <= bound else f"{kernel} on {arch} takes {figure} {unit}, {bound} at most",
        )
        for rule, figure, bound, unit, why in bounds
    ]


def judge_matrix_units(launches: Sequence[Mapping[str, Any]], call: Call) -> Judgement:
    """Whether any kernel of a call has MFMA instructions: attention without them is a fallback."""
    count = sum(int(launch["resources"]["mfma"]) for launch in launches)
    if count:
        return Judgement(MATRIX_UNITS, True)
    kernels = ", ".join(str(launch["kernel"]) for launch in launches)
    return Judgement(
        MATRIX_UNITS,
        False,
        1.0,
        message=f"none of {kernels} has an MFMA instruction",
        demonstration=Demonstration("compile", (call,)),
    )


def judge_offsets(launches: Sequence[Mapping[str, Any]], call: Call) -> Judgement:
    """No address offset that leaves 32 bits at the shapes of this launch (kind: sgl-project/sglang#35571)."""
    rule = "offsets fit their type"
    for launch in launches:
        for overflow in launch["overflows"]:
            return Judgement(
                rule,
                False,
                1.0,
                message=str(overflow),
                demonstration=Demonstration("compile", (call,)),
            )
    return Judgement(rule, True)
