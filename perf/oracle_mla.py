"""What the float64 oracle of latent attention costs on a long context, beside torch's own float32 attention.

Each is run in a process of its own, so that the peak of its memory is its own. A few heads are done again by the
second method, and its distance is held against the oracle's stated error.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from waveproof.fixtures.strategies.mla import draw_keys, draw_queries
from waveproof.golden.references.mla import VALUE_SIZE, attend_keys, own_error
from waveproof.golden.references.mla_extended import attend_extended
from waveproof.kernels.operators.mla import DEEPSEEK

SECOND_OPINIONS = 2
"""Heads that the second method does again: it takes a second each at 172,032 tokens."""


@dataclass(frozen=True)
class Problem:
    """Some queries of a prompt on its latents."""

    tokens: int
    heads: int
    rows: int
    """Queries, at places drawn from the whole prompt; the last token is among them."""

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q bfloat16[rows, heads, 576], latents bfloat16[tokens, 576], visible int64[rows]."""
        generator = torch.Generator().manual_seed(0)
        kv = draw_keys("spotlight", self.tokens, 64, self.heads, VALUE_SIZE, generator).bfloat16()
        q = draw_queries("spotlight", self.rows, self.heads, VALUE_SIZE, generator).bfloat16()
        visible = torch.randint(1, self.tokens + 1, (self.rows,), generator=generator)
        visible[-1] = self.tokens
        return q, kv, visible


@dataclass(frozen=True)
class Cost:
    """Of one way to do it."""

    seconds: float
    peak_bytes: int
    """Of resident memory of its process, inputs included."""
    distance: float
    """Oracle: largest distance to the second method as a share of the stated error. Else to the oracle, absolute."""


def _oracle(problem: Problem, report: Connection) -> None:
    q, kv, visible = problem.tensors()
    started = time.perf_counter()
    expected = attend_keys(q, kv[:, None], kv[:, None, :VALUE_SIZE], DEEPSEEK.sm_scale, visible, narrow=False)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    allowed, worst = own_error(expected), 0.0
    for number in range(SECOND_OPINIONS):
        row, head = len(q) - 1 - number, number * 5 % problem.heads
        output, _ = attend_extended(q[row, head], kv, kv[:, :VALUE_SIZE], DEEPSEEK.sm_scale, int(visible[row]))
        worst = max(worst, float(((expected.output[row, head] - output).abs() / allowed[row, head]).max()))
    report.send((seconds, peak, worst, expected.output.float().numpy().tobytes()))


def _torch_float32(problem: Problem, report: Connection) -> None:
    q, kv, visible = problem.tensors()
    query, key = q.float().reshape(1, -1, q.shape[2]), kv.float()[None]
    mask = (torch.arange(problem.tokens)[None] < visible.repeat_interleave(problem.heads)[:, None])[None]
    started = time.perf_counter()
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, key[..., :VALUE_SIZE], mask, scale=DEEPSEEK.sm_scale
    )
    seconds = time.perf_counter() - started
    report.send((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 0.0, output.numpy().tobytes()))


def compare(problem: Problem) -> tuple[Cost, Cost]:
    """The oracle and torch's scaled_dot_product_attention in float32, on the same queries, one after the other."""
    context = multiprocessing.get_context("spawn")
    results = []
    for work in (_oracle, _torch_float32):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(problem, theirs))
        process.start()
        theirs.close()
        results.append(ours.recv())
        process.join()
    (seconds, peak, worst, exact), (other_seconds, other_peak, _, rough) = results
    a, b = (torch.frombuffer(bytearray(data), dtype=torch.float32) for data in (exact, rough))
    return Cost(seconds, peak, worst), Cost(other_seconds, other_peak, float((a - b.reshape(a.shape)).abs().max()))
