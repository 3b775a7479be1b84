"""A pytest plugin for the kill matrix: as many implementations as there are in a few minutes.

It leaves every verdict as it is and saves what a kill matrix does not need: shrinking (a reader of a kill matrix is not
after the smallest input), more than one confirmed repro for each implementation, further cases of a planted fault that
has broken its rule and been shown by a repro, and a process for each of them. The last is for planted faults only: they
take down their process at worst, and a user's implementation may do anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache

import pytest
from hypothesis import Phase, settings

from waveproof.fixtures.plugin import POOL, RECORDER, bench_of
from waveproof.fixtures.recording import Recorder
from waveproof.golden.judges.judgement import Judgement
from waveproof.kernels.providers.registry import Subject
from waveproof.kernels.runtimes.process import Worker, WorkerPool
from waveproof.reports.verdicts import Record
from waveproof.selftest.mutants.tables import on_trial

TRIES = 2
"""Failing cases of a rule that a repro is tried for."""


@dataclass
class ThriftyRecorder(Recorder):
    """Stops writing repros for an implementation once one is confirmed, and after two tries for each rule."""

    confirmed: set[str] = field(default_factory=set)
    """Ids of subjects with a repro that showed the fault in a clean process."""
    tries: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Failing cases so far, by id of the subject and rule."""
    beyond_scripts: set[tuple[str, str]] = field(default_factory=set)
    """Subjects and rules whose breach no script can show."""

    def _with_repro(self, record: Record, subject: Subject, judgement: Judgement) -> Record:
        attempt = subject.id, judgement.rule
        self.tries[attempt] += 1
        if subject.id in self.confirmed or self.tries[attempt] > TRIES:
            return record
        record = super()._with_repro(record, subject, judgement)
        if record.failure is not None and record.failure.repro_confirmed:
            self.confirmed.add(subject.id)
        if record.failure is not None and not record.failure.repro:
            self.beyond_scripts.add(attempt)
        return record

    def settled(self, subject: Subject) -> bool:
        """Whether no further case is needed: a planted fault broke the rule that is there for it, and was shown."""
        implementation = subject.implementation
        rule = _due().get((implementation.operator, implementation.provider, subject.runtime), "")
        attempt = subject.id, rule
        return attempt in self.beyond_scripts or (self.tries[attempt] > 0 and subject.id in self.confirmed)


@cache
def _due() -> dict[tuple[str, str, str], str]:
    """The rule that a planted fault is there for, by operator, name and runtime; empty for right implementations."""
    return {(one.operator, one.name, runtime): one.seen_by for one in on_trial() for runtime in one.runtimes}


class SharedPool(WorkerPool):
    """One process a runtime and arch for all implementations."""

    def worker(self, subject: Subject) -> Worker:
        """The process of the subject's runtime and arch."""
        key = f"{subject.runtime} {subject.arch}"
        return self._workers.setdefault(key, Worker(subject.runtime, subject.arch))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Leave out the cases of an implementation on which there is nothing more to learn."""
    bench, recorder = bench_of(item), item.config.stash[RECORDER]
    assert isinstance(recorder, ThriftyRecorder)
    if bench is None or not recorder.settled(bench.subject):
        return None
    # What an earlier item shared with this one, its module say, is torn down as if this one had run.
    item.session._setupstate.teardown_exact(nextitem)
    return True


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put the thrifty recorder in, and take shrinking out."""
    plain, pool = config.stash[RECORDER], SharedPool()
    config.stash[POOL] = pool
    config.add_cleanup(pool.close)
    config.stash[RECORDER] = ThriftyRecorder(plain.selection, plain.root, pool, plain.varied)
    settings.register_profile("waveproof-trial", settings.default, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("waveproof-trial")
