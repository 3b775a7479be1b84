"""Stands between a client and a real server, and answers 500 from the so-manieth completion on."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_ERROR = b'{"error": {"message": "scheduler hit an exception", "code": 500}}'


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.forward(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.seen += 1
            fails = self.server.seen > self.server.good
        if not fails:
            self.forward(body)
            return
        self.send_response(500)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(_ERROR)))
        self.end_headers()
        self.wfile.write(_ERROR)

    def forward(self, body: bytes) -> None:
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=60)
        with contextlib.closing(upstream):
            upstream.request(self.command, self.path, body, {"Content-Type": "application/json"})
            answer = upstream.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type") or "text/plain")
            self.end_headers()
            while part := answer.read1():
                self.wfile.write(part)
                self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str, good: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.good, self.seen = upstream, good, 0
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing where the client went away."""


@contextlib.contextmanager
def failing_after(url: str, good: int) -> Iterator[str]:
    """The base URL of a server that forwards ``good`` POST requests to ``url`` and fails the rest."""
    server = _Server(urlsplit(url).netloc, good)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
