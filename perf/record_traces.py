"""Record real timings under real trouble, for the gate to be tried on.

``python -m waveproof.perf.record_traces FOLDER`` writes the files that stand in ``perf/baselines/traces``. What is
timed is one short host call of the kind that serving makes between kernels: the 50 largest probabilities of a softmax
over a vocabulary of 129,280.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

CALLS = 2500
VOCABULARY = 129_280
BUSY = """
import random, sys, time
import numpy
draw, a = random.Random(int(sys.argv[1])), numpy.ones(2_000_000)
while True:
    until = time.perf_counter() + draw.expovariate(1 / float(sys.argv[2]))
    while time.perf_counter() < until:
        a *= 1.0000001
    if float(sys.argv[3]):
        time.sleep(draw.expovariate(1 / float(sys.argv[3])))
"""
"""A neighbour: streams 16 MB again and again for a while, then sleeps; the mean seconds of both are arguments."""


@contextmanager
def neighbour(seed: int, busy: float, asleep: float, core: int | None = None) -> Iterator[None]:
    """A process beside this one that uses a core; on one core, where it is given."""
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(seed), str(busy), str(asleep)])
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        time.sleep(1.0)
        yield
    finally:
        process.kill()
        process.wait()


def timed(call: Callable[[], object], before: Callable[[int], None] = lambda number: None) -> list[int]:
    """Wall nanoseconds of each of :data:`CALLS` calls in a row, after fifty that do not count."""
    for _ in range(50):
        call()
    taken = []
    for number in range(CALLS):
        before(number)
        start = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - start)
    return taken


def moved_at_random(cores: list[int], seed: int) -> Callable[[int], None]:
    """Puts this process on another core before a call, with probability 1/4."""
    draw = random.Random(seed)

    def move(number: int) -> None:
        if draw.random() < 0.25:
            os.sched_setaffinity(0, {draw.choice(cores)})

    return move


def main(folder: Path) -> None:
    """Record the three traces."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    logits = torch.randn(1, VOCABULARY)
    cores = sorted(os.sched_getaffinity(0))

    def call() -> object:
        return torch.topk(torch.softmax(logits, -1), 50)

    where = f"{len(cores)} cores of a shared virtual machine, {platform.machine()}, torch {torch.__version__}, 1 thread"
    what = f"torch.topk(torch.softmax(logits, -1), 50), {VOCABULARY} float32 logits, CPU, time.perf_counter_ns"

    def write(name: str, how: str, taken: list[int]) -> None:
        row = {"name": name, "what": what, "how": how, "when": time.strftime("%Y-%m-%d"), "where": where}
        document = json.dumps({**row, "nanoseconds": taken}, indent=1)
        head, _, _ = document.partition('"nanoseconds"')
        lines = [", ".join(map(str, taken[at : at + 16])) for at in range(0, len(taken), 16)]
        joined = ",\n  ".join(lines)
        (folder / f"{name}.json").write_text(f'{head}"nanoseconds": [\n  {joined}\n ]\n}}\n', encoding="utf-8")

    write("recorded_idle", "nothing else was started; what others ran on the machine is not known", timed(call))
    with ExitStack() as neighbours:
        for seed in range(len(cores)):
            neighbours.enter_context(neighbour(seed, 0.06, 0.09))
        how = "beside one process a core that streams 16 MB for 60 ms on average and then sleeps for 90 ms"
        write("recorded_busy", how, timed(call))
    with neighbour(7, 1.0, 0.0, cores[0]):
        how = "one core is kept busy; before a call the process is put on a core drawn at random with probability 1/4"
        write("recorded_moved", how, timed(call, moved_at_random(cores, 11)))
    os.sched_setaffinity(0, set(cores))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
