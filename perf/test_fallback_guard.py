"""The fallback guard by counts: both paths of an operator in one run, the kernels proven, the ratio gated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from waveproof.fixtures.inspection import unavailable
from waveproof.golden.judges import launched
from waveproof.kernels.runtimes.process import Unavailable, Worker
from waveproof.perf import pairs
from waveproof.perf.counted_session import ARCHES, found, session
from waveproof.perf.figures_renorm import WrongResult
from waveproof.perf.night import Night
from waveproof.perf.pairs import PAIRS, FastSlow, Guarded, guard, judge_guarded, ruling

pytestmark = [pytest.mark.rocm, pytest.mark.perf]

IMPOSTORS = "waveproof.selftest.fallback_impostors"


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_fast_path_is_fast(pair: FastSlow, arch: str, night: Night) -> None:
    """Its kernels ran alone, it saves what it is there for, and by the ratio that is signed."""
    guarded = found(session(arch).guarded, session(arch), "emulate", pair.name)
    night.rule(ruling(guarded))
    night.hold(guarded.measurement())


@pytest.fixture(scope="class")
def worker() -> Iterator[Worker]:
    """One process for all impostors."""
    worker = Worker("emulate", "gfx950")
    yield worker
    worker.close()


class TestImpostors:
    """Right results by a way that is not the fast one, as machine code on the emulated device: red each time."""

    @staticmethod
    def guarded(worker: Worker, name: str) -> Guarded:
        """The first pair with an impostor in place of the fast provider."""
        pair = PAIRS[0]
        implementation = replace(pair.implementations()[0], load=f"{IMPOSTORS}:{name}")
        try:
            return guard(worker, pair, implementation)
        except Unavailable as error:
            unavailable(str(error))

    def test_a_dispatcher_that_takes_the_slow_kernel(self, worker: Worker) -> None:
        """Red by name, and by a ratio of exactly 1."""
        guarded = self.guarded(worker, "dispatches_to_slow")
        broken = {one.rule for one in judge_guarded(guarded) if not one.holds}
        assert {launched.RAN, launched.ALONE, pairs.SAVES} <= broken
        assert guarded.ratio() == 1.0
        assert ruling(guarded).outcome == "regress"

    def test_the_slow_kernel_first(self, worker: Worker) -> None:
        """The fast kernel is on record, and not alone."""
        guarded = self.guarded(worker, "slow_first")
        broken = {one.rule for one in judge_guarded(guarded) if not one.holds}
        assert {launched.ALONE, pairs.SAVES} <= broken
        assert launched.RAN not in broken

    def test_the_fast_kernel_on_a_dummy(self, worker: Worker) -> None:
        """Its name is on record, alone, and it takes little; what torch computed beside it is what gives it away."""
        guarded = self.guarded(worker, "dummy_and_torch")
        broken = {one.rule for one in judge_guarded(guarded) if not one.holds}
        assert broken == {launched.ALONE}

    def test_nothing_launched(self, worker: Worker) -> None:
        """Nothing to count is no small count."""
        with pytest.raises(WrongResult, match="launched no kernel"):
            self.guarded(worker, "launches_nothing")
