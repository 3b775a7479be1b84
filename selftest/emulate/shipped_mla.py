"""Launches AITER's shipped MLA code objects on the machine without their host code, against attention in float64.

The argument block is what the host would pass (``abi_aiter``). Inputs are those of the acceptance table in the
project's study: ``default_rng(1)``, queries, then a pool with 37 rows to spare, then a permutation of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from waveproof.kernels.runtimes import narrow_floats
from waveproof.kernels.runtimes.emulate import abi_aiter, loader
from waveproof.kernels.runtimes.emulate.isa.matrix_formats import eight_bit_float
from waveproof.kernels.runtimes.emulate.launch import LaunchStats, Machine
from waveproof.kernels.runtimes.emulate.loader import CodeObject
from waveproof.kernels.runtimes.emulate.scheduler import Schedule

HEADS, HEAD, VALUE = 16, 576, 512
SCALE = 192**-0.5
SPARE_ROWS = 37
DECODE = "mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co"
PREFILL = "mla_pfl_bf16_a16w16_causal_subQ16_mqa16.co"
DECODE_FP8 = "mla_a8w8_qh16_qseqlen{}_gqaratio16.co"
"""By query tokens of a request: 1, 2 or 4."""
QUERY_SCALE, KV_SCALE = 0.7, 1.3
"""Of the fp8 cases."""

Bits = npt.NDArray[np.unsignedinteger]
Reals = npt.NDArray[np.float64]


def shipped(arch: str, name: str) -> CodeObject:
    """A code object of the installed wheel."""
    import aiter_meta  # type: ignore[import-untyped]

    return loader.load((Path(aiter_meta.__path__[0]) / "hsa" / arch / "mla" / name).read_bytes(), name)


@dataclass(frozen=True)
class Mistake:
    """What a host could get wrong in a launch."""

    fields: dict[str, int | float] = field(default_factory=dict)
    """Values of the argument block instead of the right ones."""
    swapped: tuple[str, str] | None = None
    """Two pointers exchanged."""
    splits_of_grid: int | None = None
    """The grid's z."""
    indices: Callable[[npt.NDArray[np.int32]], npt.NDArray[np.integer]] | None = None
    """What becomes of the KV indices."""


RIGHT = Mistake()


@dataclass(frozen=True)
class Outcome:
    """What a case gave, splits merged, beside the reference."""

    statistics: LaunchStats
    out: Reals
    want: Reals
    lse: Reals | None = None
    lse_want: Reals | None = None
    unwritten: int = 0
    """Cells of the partial outputs that hold the NaN they held before."""

    @property
    def error(self) -> float:
        """Largest absolute error of the output; NaN if a cell was not written."""
        return float(np.abs(self.out - self.want).max())

    @property
    def lse_error(self) -> float:
        """The same of the logarithms."""
        assert self.lse is not None
        assert self.lse_want is not None
        return float(np.abs(self.lse - self.lse_want).max())

    @property
    def cosine(self) -> float:
        """Of output and reference as vectors."""
        return float((self.out * self.want).sum() / np.sqrt((self.out**2).sum() * (self.want**2).sum()))


def attention(q: Reals, kv: Reals, visible: int) -> tuple[Reals, Reals]:
    """One query [heads, 576] on the first ``visible`` rows of kv [tokens, 576]: output [heads, 512], LSE [heads]."""
    scores = q @ kv[:visible].T * SCALE
    top = scores.max(1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(1, keepdims=True)
    return weights / total @ kv[:visible, :VALUE], (top + np.log(total))[:, 0]


def merged(partial: Reals, lse: Reals) -> tuple[Reals, Reals]:
    """Partial outputs [splits, heads, 512] and their LSE [splits, heads] as one."""
    top = lse.max(0)
    weights = np.exp(lse - top)
    return (partial * weights[..., None]).sum(0) / weights.sum(0)[:, None], top + np.log(weights.sum(0))


@dataclass(frozen=True)
class Case:
    """Equal requests, each with ``queries`` tokens and ``kv_length`` cached ones."""

    kv_length: int
    splits: int = 1
    batch: int = 1
    queries: int = 1

    def draw(self, quantise: Callable[[Reals], Bits]) -> tuple[Bits, Bits, npt.NDArray[np.int32]]:
        """Queries [tokens, heads, 576], pool [rows, 1, 1, 576] and indices [batch * kv_length]."""
        rng = np.random.default_rng(1)
        rows = self.kv_length * self.batch + SPARE_ROWS
        q = quantise(rng.standard_normal((self.batch * self.queries, HEADS, HEAD)))
        pool = quantise(rng.standard_normal((rows, 1, 1, HEAD)))
        return q, pool, rng.permutation(rows)[: self.kv_length * self.batch].astype(np.int32)


def _bf16(x: Reals) -> Bits:
    return narrow_floats.narrow(x.astype(np.float32), narrow_floats.BFLOAT16)


def _launch(
    arch: str,
    name: str,
    case: Case,
    arrays: dict[str, npt.NDArray[Any]],
    itemsize: int,
    schedule: Schedule | None,
    mistake: Mistake = RIGHT,
) -> LaunchStats:
    machine = Machine(arch)
    outputs = ("ptr_R", "ptr_LSE", "ptr_RP")
    values: dict[str, int | float] = {
        name: machine.memory.add(name, array, read_only=name not in outputs) for name, array in arrays.items()
    }
    row = HEAD * itemsize
    heads = HEADS if name == PREFILL else HEADS * case.queries
    values |= {"scalar": SCALE, "s_MQA": heads, "s_kv_split": case.splits, "s_Q_Bs": HEADS * row * case.queries,
               "s_Bs": row, "s_log2_plen": 0, "out_16_nosplit": case.splits}  # fmt: skip
    values |= mistake.fields
    if mistake.swapped:
        one, other = mistake.swapped
        values[one], values[other] = values[other], values[one]
    blocks = -(-case.queries * HEADS // 128) if name == PREFILL else 1
    grid = (blocks, case.batch, mistake.splits_of_grid or case.splits)
    block = (abi_aiter.WORK_ITEMS, 1, 1)
    return machine.launch(shipped(arch, name), grid, block, abi_aiter.pack(values), schedule=schedule)


def _arrays(case: Case, q: Bits, pool: Bits, indices: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[Any]]:
    steps = np.arange(case.batch + 1, dtype=np.int32)
    return {
        "ptr_Q": q,
        "ptr_KV": pool,
        "ptr_LTP": steps * np.int32(case.kv_length),
        "ptr_LTD": indices,
        "ptr_LTL": np.ones(case.batch, np.int32),
        "ptr_QTP": steps * np.int32(case.queries),
        "ptr_STP": steps * np.int32(case.splits),
    }


def _nan(*shape: int) -> npt.NDArray[np.float32]:
    return np.full(shape, np.nan, np.float32)


def decode(
    arch: str, case: Case, fp8: bool = False, schedule: Schedule | None = None, mistake: Mistake = RIGHT
) -> Outcome:
    """The decode kernels, with float32 partial outputs; fp8 with a single split writes bf16 and no LSE."""
    form = eight_bit_float("fp8", arch) if fp8 else narrow_floats.BFLOAT16
    q, pool, indices = case.draw(lambda x: narrow_floats.narrow(x.astype(np.float32), form))
    tokens = case.batch * case.queries
    final = fp8 and case.splits == 1
    partial: npt.NDArray[Any] = _nan(tokens, case.splits, HEADS, VALUE)
    if final:
        partial = np.full(partial.shape, 0x7FC0, np.uint16)
    lse = _nan(tokens, case.splits, HEADS)
    arrays = {"ptr_R": partial, "ptr_LSE": lse, **_arrays(case, q, pool, indices)}
    if mistake.indices is not None:
        arrays["ptr_LTD"] = mistake.indices(indices)
    query_scale = kv_scale = 1.0
    if fp8:
        scales = np.array([[QUERY_SCALE], [KV_SCALE]], np.float32)
        arrays |= {"ptr_QSCALE": scales[0], "ptr_KVSCALE": scales[1]}
        query_scale, kv_scale = (float(x) for x in scales[:, 0])
    name = DECODE_FP8.format(case.queries) if fp8 else DECODE
    statistics = _launch(arch, name, case, arrays, 1 if fp8 else 2, schedule, mistake)
    want, lse_want = _attention(case, *_reals(q, pool, indices, form, query_scale, kv_scale))
    if final:
        assert np.isnan(lse).all()
        return Outcome(statistics, narrow_floats.widen(partial[:, 0], narrow_floats.BFLOAT16).astype(np.float64), want)
    used = min(case.splits, -(-case.kv_length // 64))  # a split without tokens writes nothing
    out, lse_out = _merged(partial[:, :used], lse[:, :used])
    return Outcome(statistics, out, want, lse_out, lse_want, int(np.isnan(partial).sum()))


def _reals(
    q: Bits,
    pool: Bits,
    indices: npt.NDArray[np.int32],
    form: narrow_floats.NarrowFloat,
    query_scale: float = 1,
    kv_scale: float = 1,
) -> tuple[Reals, Reals]:
    """Queries [tokens, heads, 576] and the KV rows that the indices choose, [batch * kv_length, 576]."""
    rows = narrow_floats.widen(pool, form).astype(np.float64).reshape(-1, HEAD) * kv_scale
    return narrow_floats.widen(q, form).astype(np.float64) * query_scale, rows[indices]


def _attention(case: Case, queries: Reals, rows: Reals) -> tuple[Reals, Reals]:
    """Causal: the last query of a request sees all of its KV."""
    kv = rows.reshape(case.batch, case.kv_length, HEAD)
    wants = [
        attention(queries[b * case.queries + i], kv[b], case.kv_length - case.queries + i + 1)
        for b in range(case.batch)
        for i in range(case.queries)
    ]
    out, lse = zip(*wants, strict=True)
    return np.array(out), np.array(lse)


def _merged(partial: npt.NDArray[Any], lse: npt.NDArray[Any]) -> tuple[Reals, Reals]:
    parts = [merged(p.astype(np.float64), z.astype(np.float64)) for p, z in zip(partial, lse, strict=True)]
    out, total = zip(*parts, strict=True)
    return np.array(out), np.array(total)


def prefill(arch: str, case: Case) -> Outcome:
    """The causal prefill kernel: one split writes bf16 and no LSE, several write float32 parts."""
    q, pool, indices = case.draw(_bf16)
    tokens = case.batch * case.queries
    lse = _nan(tokens, case.splits, HEADS)
    if case.splits == 1:
        partial: npt.NDArray[Any] = np.full((tokens, 1, HEADS, VALUE), 0x7FC0, np.uint16)
    else:
        partial = _nan(tokens, case.splits, HEADS, VALUE)
    arrays = {"ptr_R": partial, "ptr_LSE": lse, **_arrays(case, q, pool, indices)}
    statistics = _launch(arch, PREFILL, case, arrays, 2, None)
    want, lse_want = _attention(case, *_reals(q, pool, indices, narrow_floats.BFLOAT16))
    if case.splits == 1:
        assert np.isnan(lse).all()
        return Outcome(statistics, narrow_floats.widen(partial[:, 0], narrow_floats.BFLOAT16).astype(np.float64), want)
    out, lse_out = _merged(partial, lse)
    return Outcome(statistics, out, want, lse_out, lse_want)
