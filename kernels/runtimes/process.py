"""The parent's side of a worker: start it, call it, survive it.

A call ends in an :class:`Outcome`. An implementation that cannot be used, kills its process or hangs ends in an
exception of its own class, and the next call gets a fresh process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from typing import IO, Any

import torch

from waveproof.kernels.operators.contract import Call
from waveproof.kernels.providers.registry import Subject
from waveproof.kernels.runtimes import wire
from waveproof.kernels.runtimes.child import ROOT, boot, how_it_ended
from waveproof.kernels.runtimes.memory import Incident

START_SECONDS = 180.0
"""Patience for a worker's start: importing torch, triton and an upstream package on a cold disk."""


_BOOT = boot("waveproof.kernels.runtimes.worker")


class Unavailable(RuntimeError):
    """The subject cannot run on this machine; a skip with this reason, never a pass."""


class Unsuitable(RuntimeError):
    """What was named as an implementation is none."""


class Crashed(RuntimeError):
    """The implementation took its process down."""


class TimedOut(RuntimeError):
    """The implementation did not return in time."""


@dataclass(frozen=True)
class Outcome:
    """What one call came to, in a process that is still alive."""

    outputs: tuple[torch.Tensor, ...]
    error: dict[str, Any] | None
    """``type``, ``bases``, ``message`` and ``traceback`` of an exception, None if it returned."""
    incidents: tuple[Incident, ...]
    launches: tuple[dict[str, Any], ...]
    seconds: float
    printed: str = ""
    """The end of what it printed during the call."""

    @property
    def fault(self) -> str:
        """What it raised, or the first damage that it did; empty where it returned and left everything else alone."""
        if self.error is not None:
            return f"raised {self.error['type']}: {self.error['message']}"
        return next((f"{incident.kind}: {incident.detail}" for incident in self.incidents), "")


@dataclass
class Worker:
    """One process on one runtime and arch; serves one user's function, or all that a known provider has."""

    runtime: str
    arch: str
    """The arch that was asked for; once the process is ready, the one that it found."""
    distribution: str = ""
    process: subprocess.Popen[bytes] | None = None
    log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    versions: dict[str, str] = field(default_factory=dict)
    unavailable: Unavailable | None = None
    """Why the runtime cannot be used, asked only once."""
    refusals: dict[str, Exception] = field(default_factory=dict)
    """By ``Implementation.load``: why an implementation cannot be called, asked only once."""
    hangs: int = 0
    """Calls that ran into their time limit."""
    _loaded: set[str] = field(default_factory=set)

    def call(self, subject: Subject, call: Call, timeout: float) -> Outcome:
        """Run one call of a subject of this worker.

        Raises:
            Unavailable, Unsuitable, Crashed, TimedOut: see there.
        """
        self.load(subject)
        mark = self._log_end()
        header, tensors = wire.encode_call(call)
        header |= {"kind": "call", "load": subject.implementation.load}
        try:
            reply, outputs = self._exchange(header, tensors, timeout)
        except EOFError:
            raise Crashed(self._obituary(mark)) from None
        except TimedOut:
            self.hangs += 1
            raise
        if reply["kind"] == "unavailable":
            raise Unavailable(reply["reason"])
        return Outcome(
            tuple(outputs[name] for name in reply["outputs"]),
            reply["error"],
            tuple(Incident(**item) for item in reply["incidents"]),
            tuple(reply["launches"]),
            reply["seconds"],
            self._printed(mark),
        )

    def load(self, subject: Subject) -> None:
        """Have the process running and the subject's implementation loaded in it.

        Raises:
            Unavailable, Unsuitable, Crashed, TimedOut: see there.
        """
        implementation = subject.implementation
        if implementation.load in self.refusals:
            raise self.refusals[implementation.load]
        self.start()
        if implementation.load in self._loaded:
            return
        mark = self._log_end()
        header = {
            "kind": "load",
            "load": implementation.load,
            "operator": implementation.operator,
            "results": len(implementation.contract.returns) - len(implementation.omits),
        }
        try:
            reply, _ = self._exchange(header, {}, START_SECONDS)
            if reply["kind"] == "unsuitable":
                raise Unsuitable(reply["reason"])
        except EOFError:
            refusal: Exception = Crashed(f"while it was being imported: {self._obituary(mark)}")
        except TimedOut as error:
            refusal = TimedOut(f"while it was being imported: {error}")
        except Unsuitable as error:
            refusal = error
        else:
            self._loaded.add(implementation.load)
            return
        self.refusals[implementation.load] = refusal
        raise refusal

    def start(self) -> None:
        """Have the process running.

        Raises:
            Unavailable, Crashed, TimedOut: the runtime cannot be used here, or not even torch can be imported.
        """
        if self.unavailable is not None:
            raise self.unavailable
        if self.process is not None and self.process.poll() is None:
            return
        self.close()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.pop("TRITON_INTERPRET", None)  # each runtime decides this for itself
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            start_new_session=True,
        )
        mark = self._log_end()
        header = {"runtime": self.runtime, "arch": self.arch, "distribution": self.distribution}
        try:
            reply, _ = self._exchange(header, {}, START_SECONDS)
        except EOFError:
            raise Crashed(f"at its start: {self._obituary(mark)}") from None
        if reply["kind"] == "unavailable":
            self.close()
            self.unavailable = Unavailable(reply["reason"])
            raise self.unavailable
        self.versions, self.arch = reply["versions"], reply["arch"]

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._loaded.clear()
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
            self.process = None

    def _exchange(
        self, header: wire.Header, tensors: dict[str, torch.Tensor], timeout: float
    ) -> tuple[wire.Header, dict[str, torch.Tensor]]:
        """Send a frame and wait for the answer; EOFError where the process is gone."""
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        expired = threading.Event()

        def end() -> None:
            # Whatever the process holds up, taking the frame or giving one back, ends with it.
            expired.set()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

        watchdog = threading.Timer(timeout, end)
        watchdog.daemon = True
        watchdog.start()
        try:
            wire.send(process.stdin, header, tensors)
            return wire.receive(process.stdout)
        except (BrokenPipeError, EOFError, wire.WireError) as error:
            if expired.is_set():
                self.close()
                raise TimedOut(f"no answer after {timeout:g} s; its process was killed") from None
            if isinstance(error, wire.WireError):
                end()
            raise EOFError from None
        finally:
            watchdog.cancel()

    def _obituary(self, mark: int) -> str:
        assert self.process is not None
        code = self.process.wait()
        printed = self._printed(mark)
        self.close()
        return f"its process ended with {how_it_ended(code)}" + (f"; it printed: {printed}" if printed else "")

    def _log_end(self) -> int:
        return os.fstat(self.log.fileno()).st_size

    def _printed(self, mark: int, most: int = 2000) -> str:
        end = self._log_end()
        start = max(mark, end - most)
        return os.pread(self.log.fileno(), end - start, start).decode(errors="replace").strip()


class WorkerPool:
    """The workers of a test session, started when first called."""

    def __init__(self, most: int = 4) -> None:
        self._workers: dict[str, Worker] = {}
        self._most = most

    def worker(self, subject: Subject) -> Worker:
        """The subject's worker; the least recently used process is ended when too many are alive.

        Implementations from one distribution share a process for each runtime and arch: importing it is what a start
        costs. A user's function has one to itself.
        """
        implementation = subject.implementation
        owner = implementation.load if implementation.external else implementation.distribution
        key = f"{owner or implementation.provider} {subject.where}"
        worker = self._workers.pop(key, None) or Worker(subject.runtime, subject.arch, implementation.distribution)
        self._workers[key] = worker
        alive = [other for other in self._workers.values() if other.process is not None]
        for idle in alive[: max(0, len(alive) - self._most)]:
            if idle is not worker:
                idle.close()
        return worker

    def call(self, subject: Subject, call: Call, timeout: float, patience: int) -> Outcome:
        """Run a call of a subject; a worker that hung ``patience`` times is not called any more.

        Raises:
            Unavailable, Unsuitable, Crashed, TimedOut: see there.
        """
        worker = self.worker(subject)
        if worker.hangs >= patience:
            raise TimedOut(f"not called: {worker.hangs} calls before this one did not return in time")
        return worker.call(subject, call, timeout)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()
