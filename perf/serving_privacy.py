"""What must not be kept of a run: the API key, and names that tell on whose machine it was.

aiperf writes down the paths that it used, and a server may repeat a key in its error message. Logs are shared with
whoever doubts a figure, and pages with more, so such texts are replaced before they are kept or shown.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from waveproof.perf.serving_plan import Target

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SHORTEST = 4
"""Of a name or key that is replaced: a shorter one stands in other words too."""


def api_key(target: Target) -> str:
    """The key, empty where none is needed or set."""
    return os.environ.get(target.api_key_env, "") if target.api_key_env else ""


def without_secrets(text: str, target: Target) -> str:
    """The text without the API key, as it is and as JSON writes it."""
    key = api_key(target)
    if len(key) >= _SHORTEST:
        for written in {key, json.dumps(key)[1:-1]}:
            text = text.replace(written, "<API key>")
    return text


def without_places(text: str, target: Target, folder: Path | None = None) -> str:
    """The text without key, folders of this machine, its name and user, and the server's host unless that is local.

    Args:
        text: that is kept or shown.
        target: the server that was asked.
        folder: of the run, if it is known.
    """
    text = without_secrets(text, target)
    folders = {tempfile.gettempdir(): "<temporary>", str(Path.home()): "<home>"}
    if folder is not None:
        folders[str(folder.resolve())] = folders[str(folder.absolute())] = "<run>"
    # The longest first: a run's folder may lie in the home.
    for path in sorted(folders, key=len, reverse=True):
        if len(path) >= _SHORTEST:
            text = re.sub(rf"{re.escape(path)}(?![\w.-])", folders[path], text)
    host = urlsplit(target.base_url).hostname or ""
    names = {host: "<server>"} if host not in _LOOPBACK else {}
    names |= {socket.gethostname(): "<machine>", _user(): "<user>"}
    for name, instead in names.items():
        if len(name) >= _SHORTEST and name != "root":
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", instead, text, flags=re.IGNORECASE)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        # No entry in the table of users, as in a container.
        return ""
