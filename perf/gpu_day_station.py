"""A GPU as the day sees it: one process that holds both sides of a trial, is asked step by step, and may die.

A fault on a device is sticky for its process (:mod:`waveproof.kernels.runtimes.device`), so trials run in a child; it
lives on from trial to trial, since importing torch, Triton and AITER is what a start costs, and is replaced when it
crashed, hung or lost the device. Judging is the parent's, on its CPU in float64.

The judged result is the first that a side ever gives in this process, fast side first, and it is kept while the other
side is called: a kernel that writes nothing cannot be handed the other's result by torch's caching allocator.

``hip`` has **not been seen on hardware**, nor ``cuda``. ``cpu`` is a rehearsal: the same steps by the host's clock,
without kernels to prove.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waveproof.fixtures.launched.judging import judge_works
from waveproof.fixtures.launched.trace import Trace, read_trace
from waveproof.fixtures.products import Product, UnknownProduct, product_of
from waveproof.golden.judges import launched, memory_floor
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.operators.contract import Call
from waveproof.kernels.runtimes import wire
from waveproof.kernels.runtimes.child import Child, ChildFailed, ChildTimedOut, answers_to_parent
from waveproof.perf.gpu_day_terms import Contender, OutOfTime, SideMissing, TrialEnded, Way
from waveproof.perf.judged_results import judge_results
from waveproof.perf.measure import PairedSamples, PairPlan, measure_pair
from waveproof.perf.records import Place

if TYPE_CHECKING:
    import torch

    from waveproof.kernels.runtimes.execution import Execution

START_SECONDS = 180.0
"""Patience for the process's start: importing torch, Triton and an upstream package on a cold disk."""
REPEATS, WARM_UPS = 3, 3
"""Of a profiled call, and calls before it that may compile."""
PAIRS = 20
"""Pairs of each way: the fewest at which the gate looks."""
COLD_INPUTS = 4
"""Sets of inputs that take turns where caches are to be cold."""
_SIDES = ("fast", "slow")


class DeviceMissing(RuntimeError):
    """The runtime cannot be used here; the message says why and what would help."""


class ChildStation:
    """A :class:`waveproof.perf.gpu_day_terms.Station` in a process of its own; closed when no longer needed."""

    def __init__(self, runtime: str, pairs: int = PAIRS) -> None:
        """Start it.

        Args:
            runtime: ``hip``, ``cuda`` or ``cpu``.
            pairs: that are timed each time.

        Raises:
            DeviceMissing: the runtime cannot be used here.
        """
        self.runtime = runtime
        self._pairs = pairs
        self._folder = tempfile.TemporaryDirectory()
        self._sides: list[tuple[Contender, Call]] = []
        self._child: Child | None = None
        try:
            hello = self._start()
        except DeviceMissing:
            self._folder.cleanup()
            raise
        self.place = Place(runtime, hello["arch"], hello["device"], hello["versions"])
        self.notes: tuple[str, ...] = tuple(hello["notes"])
        try:
            self.product: Product | None = product_of(self.place.device)
        except UnknownProduct:
            self.product = None

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.close()
            self._child = None
        self._folder.cleanup()

    def unavailable(self, contender: Contender) -> str:
        """Why a side cannot run here, as far as can be told without importing."""
        implementation = contender.subject.implementation
        if self.runtime not in implementation.runtimes:
            return f"offers {', '.join(implementation.runtimes)}, not {self.runtime}"
        return contender.subject.why_unavailable()

    def open(self, sides: Sequence[tuple[Contender, Call]], seconds: float) -> None:
        """See :meth:`waveproof.perf.gpu_day_terms.Station.open`."""
        self._sides = list(sides)
        if self._child is None or not self._child.alive:
            self._restart(seconds)
        for name, (contender, call) in zip(_SIDES, sides, strict=True):
            header, tensors = wire.encode_call(call)
            header["load"] = contender.subject.implementation.load
            with Path(self._folder.name, name).open("wb") as stream:
                wire.send(stream, header, tensors)
        self._ask({"do": "open"}, seconds)

    def results(self, side: int, seconds: float) -> list[Judgement]:
        """See :meth:`waveproof.perf.gpu_day_terms.Station.results`."""
        contender, call = self._sides[side]
        self._ask({"do": "results", "side": side}, seconds)
        with Path(self._folder.name, "outputs").open("rb") as stream:
            header, tensors = wire.receive(stream)
        outputs = [tensors[name] for name in header["outputs"]]
        return judge_results(outputs, call, contender.subject.implementation)

    def kernels(self, side: int, seconds: float) -> list[Judgement]:
        """See :meth:`waveproof.perf.gpu_day_terms.Station.kernels`."""
        contender, call = self._sides[side]
        self._ask({"do": "kernels", "side": side}, seconds)
        trace = read_trace(Path(self._folder.name, "trace.json"))
        judgements = judge_trace(trace, contender, call, self.product)
        # A rehearsal has ranges and no kernels in them.
        return judgements if self.runtime != "cpu" else [one for one in judgements if one.rule != launched.SEEN]

    def pairs(self, way: Way, seconds: float) -> PairedSamples:
        """See :meth:`waveproof.perf.gpu_day_terms.Station.pairs`."""
        if self.runtime == "cpu" and way.graph:
            raise SideMissing("the CPU replays no graphs")
        answer = self._ask({"do": "pairs", "way": asdict(way), "pairs": self._pairs}, seconds)
        return PairedSamples.read(answer["samples"])

    def _restart(self, seconds: float) -> None:
        """After a crash, a hang or a loss; a device that does not come back ends the trial and not the day."""
        try:
            self._start(min(seconds, START_SECONDS))
        except DeviceMissing as error:
            raise TrialEnded(f"start: the device did not come back: {error}") from None

    def _start(self, seconds: float = START_SECONDS) -> Mapping[str, Any]:
        if self._child is not None:
            self._child.close()
        self._child = Child(__name__, self.runtime, self._folder.name)
        try:
            hello: Mapping[str, Any] = self._child.answer(seconds)
        except ChildFailed as error:
            self._child.close()
            raise DeviceMissing(f"runtime {self.runtime}: {error}") from None
        if hello.get("missing"):
            self._child.close()
            raise DeviceMissing(hello["missing"])
        return hello

    def _ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """The child's answer; a child that gives none is replaced at the next trial."""
        assert self._child is not None
        try:
            answer: Mapping[str, Any] = self._child.ask(request, seconds)
        except ChildFailed as error:
            self._child.close()
            ended = OutOfTime if isinstance(error, ChildTimedOut) else TrialEnded
            raise ended(f"{request['do']}: {error}") from None
        if answer.get("missing"):
            raise SideMissing(str(answer["missing"]))
        if answer.get("error"):
            if answer.get("lost"):
                self._child.close()
            raise TrialEnded(f"{request['do']}: {answer['error']}")
        return answer


def judge_trace(trace: Trace, contender: Contender, call: Call, product: Product | None) -> list[Judgement]:
    """Kernels of a recorded trace against what the side runs as, and their time against the memory's floor.

    Raises:
        UnknownRange: the trace has no range of the operator.
    """
    expected = launched.expectation(contender.expected) if contender.expected else None
    least = memory_floor.least_bytes(call) if call.operator in memory_floor.COUNTED else None
    return judge_works(trace.work(call.operator), expected, product, least, repeats=True)


# The child ------------------------------------------------------------------------------------------------------------


def main(runtime: str, folder: str) -> None:
    """Serve one station's requests until stdin ends."""
    import sys

    answers = answers_to_parent()

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")

    from waveproof.kernels.runtimes.execution import RuntimeUnavailable, open_execution

    try:
        execution = open_execution(runtime, "")
    except RuntimeUnavailable as error:
        answer(missing=str(error))
        return
    if runtime == "cpu":
        import torch

        torch.set_num_threads(1)  # a second one would wait for a core that other processes hold
    answer(**_hello(execution))
    bench = _Bench(execution, Path(folder))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(**getattr(bench, f"do_{request.pop('do')}")(**request))
        except execution.cannot as error:
            answer(missing=f"{type(error).__name__}: {error}")
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}", lost=execution.lost())


def _hello(execution: Execution) -> dict[str, Any]:
    from importlib import metadata

    from waveproof.golden.capture import cpu_name
    from waveproof.kernels.runtimes.worker import versions

    found = versions("")
    for name in ("sglang", "amd-aiter", "flashinfer-python"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    facts = dict(execution.facts)
    device = facts.pop("device", "") or cpu_name()
    notes = [f"{name}: {value}" for name, value in facts.items() if name != "driver"]
    if "driver" in facts:
        found["driver"] = facts["driver"]
    return {"arch": execution.arch, "device": device, "versions": found, "notes": notes}


class _Bench:
    """Both sides on the device."""

    def __init__(self, execution: Execution, folder: Path) -> None:
        self._execution, self._folder = execution, folder
        self._calls: list[tuple[Callable[[], Any], ...]] = []
        """By side: the same call on sets of inputs of its own."""
        self._first: dict[int, Any] = {}
        self._operators: list[str] = []
        self._inputs: tuple[torch.Tensor, ...] = ()

    def do_open(self) -> dict[str, Any]:
        """Load both sides, and put their calls on the device."""
        import torch

        from waveproof.kernels.runtimes.worker import load
        from waveproof.perf.device_timing import copies_of, rotating, tensors_of

        self._first, self._calls, self._operators, self._inputs = {}, [], [], ()
        if self._execution.runtime != "cpu":
            torch.cuda.empty_cache()
        for name in _SIDES:
            with (self._folder / name).open("rb") as stream:
                header, tensors = wire.receive(stream)
            call = self._on_device(wire.decode_call(header, tensors))
            function = load(header["load"], call.operator)
            self._calls.append(rotating(function, copies_of(call, COLD_INPUTS)))
            self._inputs += tensors_of(call)
            self._operators.append(call.operator)
        return {}

    def _on_device(self, call: Call) -> Call:
        """The call with its tensors on the device, strides as they were."""
        import torch

        from waveproof.kernels.runtimes.memory import extent

        moved = {}
        for name, value in call.arguments.items():
            if isinstance(value, torch.Tensor):
                shape, stride = tuple(value.shape), tuple(value.stride())
                span = torch.as_strided(value, (extent(shape, stride),), (1,)).to(self._execution.device)
                moved[name] = self._execution.wrap(torch.as_strided(span, shape, stride, span.storage_offset()))
        return call.with_arguments(**moved)

    def do_results(self, side: int) -> dict[str, Any]:
        """One call; its results go to a file."""
        import torch

        given = self._calls[side][0]()
        self._execution.settle()
        self._first.setdefault(side, given)
        outputs = (given,) if isinstance(given, torch.Tensor) else tuple(given)
        plain = {str(at): self._execution.plain(one) for at, one in enumerate(outputs) if isinstance(one, torch.Tensor)}
        with (self._folder / "outputs").open("wb") as stream:
            wire.send(stream, {"outputs": list(plain)}, plain)
        return {}

    def do_kernels(self, side: int) -> dict[str, Any]:
        """A trace of some repeats in ranges of the operator's name, after calls that may compile."""
        from torch.profiler import ProfilerActivity, profile, record_function

        run = self._calls[side][0]
        for _ in range(WARM_UPS):
            run()
        self._execution.settle()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(REPEATS):
                with record_function(f"waveproof:{self._operators[side]}"):
                    run()
                    self._execution.settle()
        profiler.export_chrome_trace(str(self._folder / "trace.json"))
        return {}

    def do_pairs(self, way: dict[str, Any], pairs: int) -> dict[str, Any]:
        """Both sides timed in turns."""
        from waveproof.perf.device_timing import NotCapturable
        from waveproof.perf.instruments import WrongClock

        cold = bool(way["cold"])
        plan = PairPlan(
            pairs=pairs,
            # Devices warm up alike every day: with one order for all days, chance would be the same each time.
            seed=secrets.randbits(32),
            clock="host" if self._execution.runtime == "cpu" else "device",
            graph=bool(way["graph"]),
            caches="cold" if cold else "warm",
        )
        fast, slow = (calls if cold else calls[:1] for calls in self._calls)
        try:
            return {"samples": measure_pair(fast, slow, plan, self._inputs).told()}
        except (NotCapturable, UnknownProduct, WrongClock) as error:
            return {"missing": f"{type(error).__name__}: {error}"}
