"""Holds a load generator and lets it not outlive its driver, even one that is killed.

Called with a file for the output and the command; starts the command as a group of its own. Ends the group when
standard input ends, as it does with the process at its other end, and when the command has ended; then with its status.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

_LOOK_SECONDS = 0.1


def main(output: str, *command: str) -> None:
    """Run the command. Exits with its status, or with 143 where standard input ended first."""
    with open(output, "wb") as written:
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
        )
    abandoned = False
    try:
        while running.poll() is None and not abandoned:
            readable, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
            abandoned = bool(readable) and not os.read(sys.stdin.fileno(), 4096)
    finally:
        # Services of its own may be left over after a command that ended badly.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    sys.exit(143 if abandoned else running.returncode % 256)
