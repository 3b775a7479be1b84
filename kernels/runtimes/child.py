"""A module of the suite in a process of its own, which answers in lines of JSON.

For what must not happen in the process of the tests: becoming one with an emulated GPU, a compiler that aborts, a cold
start. The worker that calls implementations with tensors is :mod:`waveproof.kernels.runtimes.process`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
"""The folder that is mapped to the namespace ``waveproof``."""

_MOST_PRINTED = 3000
"""Bytes of what a process wrote that a message quotes: the end of a traceback."""


class ChildFailed(RuntimeError):
    """The process ended without the answer; the message says how, and below that the end of what it wrote."""


class ChildTimedOut(ChildFailed):
    """It did not answer in time and was killed."""


def boot(module: str) -> str:
    """Source for ``python -c SOURCE ROOT ARGUMENTS...``: calls ``main(*ARGUMENTS)`` of a module of this package.

    The package is found from a clone that is not installed, whatever the current folder holds.
    """
    return (
        "import sys, types; sys.path[:] = [p for p in sys.path if p]; "
        "m = types.ModuleType('waveproof'); m.__path__ = [sys.argv[1]]; sys.modules['waveproof'] = m; "
        f"from {module} import main; main(*sys.argv[2:])"
    )


def how_it_ended(status: int) -> str:
    """A return code as ``subprocess`` gives it, in words: ``signal SIGABRT`` or ``exit status 1``."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


class Child:
    """A process that runs ``main(*arguments)`` of a module.

    Its ``main`` reads requests from stdin, if there are any, and writes answers to :func:`answers_to_parent`.
    """

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Start it.

        Args:
            module: by its whole name; the caller's own ``__name__`` where both sides stand in one file.
            arguments: of its ``main``.
            environment: on top of this process's, without Triton's switch of its interpreter.
        """
        inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as this)
        self._mark = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", boot(module), str(ROOT), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, errors="replace",
            env={**inherited, **(environment or {})}, start_new_session=True,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def ask(self, request: object, timeout: float) -> Any:
        """Send a request as a line of JSON, and wait for the answer.

        Args:
            request: what ``json`` can write.
            timeout: seconds.

        Raises:
            ChildFailed: it ended before.
            ChildTimedOut: it did not answer in time.
        """
        line = self._line(timeout, json.dumps(request) + "\n")
        return json.loads(line) if line else self._fail()

    def answer(self, timeout: float) -> Any:
        """Wait for the next answer; what :meth:`ask` does without a request.

        Raises:
            ChildFailed, ChildTimedOut: see there.
        """
        line = self._line(timeout)
        return json.loads(line) if line else self._fail()

    def answers(self, timeout: float) -> Iterator[Any]:
        """All answers to come, each as soon as it is there, until the process ends of itself.

        Args:
            timeout: seconds to each.

        Raises:
            ChildFailed, ChildTimedOut: see there.
        """
        while line := self._line(timeout):
            yield json.loads(line)
        if self._process.returncode:
            self._fail()

    def close(self) -> None:
        """End the process, whatever it is doing, and what it started."""
        self._kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, timeout: float, request: str = "") -> str:
        """The next line of stdout; empty where the process has ended."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self._mark = os.fstat(self._log.fileno()).st_size if request else self._mark
        expired = threading.Event()

        def end() -> None:
            expired.set()
            self._kill()

        watchdog = threading.Timer(timeout, end)
        watchdog.daemon = True
        watchdog.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request)
                process.stdin.flush()
            line = process.stdout.readline()
            if not line.endswith("\n"):  # the last words of a process that is ending
                line = ""
                process.wait()
        finally:
            watchdog.cancel()
        if not line and expired.is_set():
            raise ChildTimedOut(f"no answer after {timeout:g} s: its process was killed{self._printed()}")
        return line

    def _kill(self) -> None:
        # Once it has been waited for, its number may be another's.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _fail(self) -> NoReturn:
        status = self._process.wait()
        raise ChildFailed(f"its process ended with {how_it_ended(status)}{self._printed()}")

    def _printed(self) -> str:
        """What it wrote to stderr since the last request, on lines of its own."""
        end = os.fstat(self._log.fileno()).st_size
        start = max(self._mark, end - _MOST_PRINTED)
        text = os.pread(self._log.fileno(), end - start, start).decode(errors="replace").strip()
        return f"\n{text}" if text else ""


def answers_to_parent() -> IO[str]:
    """For a child: where its answers go. What it prints from now on, from C++ too, goes to stderr instead."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers
