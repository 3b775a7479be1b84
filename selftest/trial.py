"""A pytest plugin for the kill matrix: as many implementations as there are in a few minutes.

It leaves every verdict as it is and saves what a kill matrix does not need: shrinking (a reader of a kill matrix is not
after the smallest input), more than one confirmed repro for each implementation, and a process for each of them. The
last is for planted faults only: they take down their process at worst, and a user's implementation may do anything.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, settings

from waveproof.fixtures.plugin import POOL, RECORDER
from waveproof.fixtures.recording import Recorder
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.providers.registry import Subject
from waveproof.kernels.runtimes.process import Worker, WorkerPool
from waveproof.reports.verdicts import Record


class ThriftyRecorder(Recorder):
    """Stops writing repros for an implementation once one is confirmed, and after two tries for each rule."""

    def _with_repro(self, record: Record, subject: Subject, judgement: Judgement) -> Record:
        confirmed: set[str] = self.__dict__.setdefault("confirmed", set())
        tries: Counter[str] = self.__dict__.setdefault("tries", Counter())
        attempt = f"{subject.id} {judgement.rule}"
        tries[attempt] += 1
        if subject.id in confirmed or tries[attempt] > 2:
            return record
        record = super()._with_repro(record, subject, judgement)
        if record.failure is not None and record.failure.repro_confirmed:
            confirmed.add(subject.id)
        return record


class SharedPool(WorkerPool):
    """One process a runtime and arch for all implementations."""

    def worker(self, subject: Subject) -> Worker:
        """The process of the subject's runtime and arch."""
        key = f"{subject.runtime} {subject.arch}"
        return self._workers.setdefault(key, Worker(subject.runtime, subject.arch))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put the thrifty recorder in, and take shrinking out."""
    plain, pool = config.stash[RECORDER], SharedPool()
    config.stash[POOL] = pool
    config.add_cleanup(pool.close)
    config.stash[RECORDER] = ThriftyRecorder(plain.selection, plain.root, pool, plain.varied)
    settings.register_profile("waveproof-trial", settings.default, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("waveproof-trial")
