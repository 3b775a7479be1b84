"""What must not be timed: a call that compiles, and data that no server would have.

A call that compiles is a thousand times as long as it will be, and the second time it is not. Constant data toggles
few wires, so that a GPU draws less power and clocks higher: matrix products of zeros were measured well ahead of those
of random data (H. He, "Strangely, Matrix Multiplications on GPUs Run Faster When Given Predictable Data", 2024).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from waveproof.fixtures.launched.builds import Builds

DATA_BYTES = 4096
"""Smaller tensors are parameters (scales, temperatures, lengths), which may well be equal."""

MOST_EQUAL = 0.9
"""Share of a tensor's elements that may be one value."""

LOOKED_AT = 16_384
"""Elements that are drawn of a tensor to see that: a share of 0.9 is then known to 0.007 (three standard errors)."""

DATA_TYPES = ("float", "bfloat", "complex", "uint8", "int8")
"""Beginnings of names of dtypes that hold data; wider integers are indices, lengths and positions."""


class Compiled(RuntimeError):
    """Something was compiled within a timed sample; the message says what, and in which sample of which side."""


class DegenerateInputs(ValueError):
    """Data is one value (nearly) everywhere; the message holds the share and the value."""


@dataclass
class CompileWatch:
    """Tells what was compiled since it was last asked. Entered by :func:`watch_compilation`."""

    builds: Builds
    heard: tuple[int, int, int, int] = (0, 0, 0, 0)

    def news(self) -> tuple[str, ...]:
        """Compilations since the last call: Triton's, compilers that were started, graphs of ``torch.compile``.

        A kernel that Triton loads from its disk cache is news too: it is the first call of the process.
        """
        builds, before = self.builds, self.heard
        self.heard = now = (len(builds.compilations), len(builds.commands), len(builds.loaded), dynamo_graphs())
        return (
            *(f"Triton compiled {name}" for name in builds.compilations[before[0] : now[0]]),
            *(f"started {command}" for command in builds.commands[before[1] : now[1]]),
            *(f"Triton loaded {name} from its cache" for name in builds.loaded[before[2] : now[2]]),
            *((f"torch.compile built {now[3] - before[3]} graph(s)",) if now[3] > before[3] else ()),
        )

    def refuse_news(self, where: str) -> None:
        """Nothing may have been compiled since the last call of :meth:`news`.

        Raises:
            Compiled: something was. ``where`` says in which sample.
        """
        if news := self.news():
            raise Compiled(f"{where}: {'; '.join(news)}. A timed call must not compile: warm up with the same shapes")

    def written(self) -> tuple[str, ...]:
        """A note if files of compile caches changed meanwhile: another process built there, or this one unseen.

        Complete once the watch has ended.
        """
        if not self.builds.files:
            return ()
        return (f"{len(self.builds.files)} files of compile caches changed meanwhile: something was built beside it",)


@contextmanager
def watch_compilation(build_caches: Sequence[Path] = ()) -> Iterator[CompileWatch]:
    """Within, compilations of this process are heard, and files that change below ``build_caches`` are noted.

    AITER builds its modules with compilers that it starts in this process, so that they are heard as commands.
    """
    from waveproof.fixtures.launched.builds import watch_builds

    with watch_builds(build_caches) as builds:
        watch = CompileWatch(builds)
        watch.news()
        yield watch


def dynamo_graphs() -> int:
    """Graphs that ``torch.compile`` has built in this process; 0 while it was never loaded.

    Source: torch/_dynamo/output_graph.py counts ``unique_graphs`` for each graph that it hands to a compiler.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo is not None else 0


def refuse_degenerate(tensors: Iterable[torch.Tensor], most_equal: float = MOST_EQUAL) -> int:
    """Refuse data that is one value everywhere, or nearly, zero above all; returns how many tensors were looked at.

    Elements are drawn with a fixed seed. Tensors of indices and those below 4 KiB are left out.

    Raises:
        DegenerateInputs: with the tensor's number in the order given, its dtype and shape, the value and its share.
    """
    looked = 0
    for number, tensor in enumerate(tensors):
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.numel() * tensor.element_size() < DATA_BYTES or not name.startswith(DATA_TYPES):
            continue
        looked += 1
        value, share = _commonest(tensor)
        if share > most_equal:
            raise DegenerateInputs(
                f"input {number}, {name}{list(tensor.shape)}: {value} in {share:.1%} of the elements drawn; "
                f"{most_equal:.0%} may be equal. Time random data"
            )
    return looked


def _commonest(tensor: torch.Tensor) -> tuple[float, float]:
    """A value that more than half of the elements are, if there is one, and its share: it is the median then."""
    import torch

    draw = torch.Generator().manual_seed(0)
    # By coordinates: flattening would copy a tensor that is not contiguous, or spread one that was expanded.
    index = tuple(torch.randint(size, (LOOKED_AT,), generator=draw).to(tensor.device) for size in tensor.shape)
    drawn = tensor.detach()[index]
    if drawn.is_complex():
        drawn = drawn.abs()
    drawn = drawn.float().cpu()
    missing = float(drawn.isnan().float().mean())
    if missing > 0.5:
        return float("nan"), missing
    value = drawn.nanmedian()
    return float(value), float((drawn == value).float().mean())
