"""Reads aiperf's raw log: what each request was, and when each chunk of its answer came.

Times are of one monotonic clock of the client's machine. Tokens are counted by the server (``usage``); a chunk's own
count is known where the server tells it in each chunk (``continuous_usage_stats``) or sends each token by itself.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from waveproof.perf.serving_plan import Point


class BadLog(ValueError):
    """A log that is none; the message holds the line and what is wrong with it."""


@dataclass(frozen=True)
class Request:
    """One request and its answer."""

    number: int
    """From 0, as planned; the warm-up is not counted."""
    kind: str
    """Of its shape."""
    asked_prompt: int
    """Tokens that were sent."""
    asked_output: int
    """Tokens that were asked for."""
    prompt_hash: str
    """Of the content that was sent."""
    start: float
    """Seconds after the first request of the point was sent."""
    chunks: tuple[float, ...] = ()
    """Seconds after ``start`` at which a chunk with text came."""
    chunk_tokens: tuple[int, ...] = ()
    """Tokens in each chunk; empty where the server does not tell."""
    end: float = 0.0
    """Seconds after ``start`` at which the last event came."""
    prompt_tokens: int | None = None
    """That the server counted, as the next two."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt, out of a prefix cache; None where the server does not tell."""
    finish: str = ""
    """``length`` where it was cut at ``max_tokens``, ``stop`` where the model ended it."""
    status: int | None = None
    error: str = ""
    """What went wrong, empty where nothing did."""
    models: tuple[str, ...] = ()
    """Model and build (``system_fingerprint``) that the answer names, each pair once."""

    @property
    def failed(self) -> bool:
        """Whether there is no whole answer."""
        return bool(self.error) or self.status not in (None, 200)

    @property
    def ttft(self) -> float:
        """Seconds to the first chunk with text."""
        return self.chunks[0]

    @property
    def gaps(self) -> tuple[float, ...]:
        """Seconds between chunks."""
        return tuple(later - earlier for earlier, later in pairwise(self.chunks))

    @property
    def stream_rate(self) -> float | None:
        """Tokens per second after the first chunk, 1 / mean inter-token latency; None with one chunk.

        Where the first chunk's own count is unknown, it is taken for one token.
        """
        tokens = (self.output_tokens or len(self.chunks)) - (self.chunk_tokens[0] if self.chunk_tokens else 1)
        seconds = self.chunks[-1] - self.chunks[0] if self.chunks else 0.0
        return tokens / seconds if tokens > 0 and seconds > 0 else None

    @property
    def each_token_seen(self) -> bool:
        """Whether every chunk is one token, so that gaps are inter-token latencies."""
        return len(self.chunks) == (self.output_tokens or 0)


def read_log(path: Path, point: Point, sent: tuple[int, ...], warmup: bool = False) -> tuple[Request, ...]:
    """Requests of a log, in the order in which they were sent; its warm-up is left out.

    Args:
        path: JSON lines under gzip.
        point: what was planned.
        sent: tokens in each prompt, the warm-up's first.
        warmup: the warm-up alone, numbered below zero.

    Raises:
        BadLog: it cannot be read, or a line is no record of the plan's requests.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return requests_of(_records(lines, path.name), point, sent, warmup)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadLog(f"{point.name}: its log {path.name} is missing or damaged: {error}") from None


def _records(lines: Iterable[str], name: str) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError as error:
            raise BadLog(f"{name}, line {number}: {error}") from None


def requests_of(
    records: Iterable[Mapping[str, Any]], point: Point, sent: tuple[int, ...], warmup: bool = False
) -> tuple[Request, ...]:
    """See :func:`read_log`."""
    made: list[tuple[int, Request]] = []
    for place, record in enumerate(records, start=1):
        try:
            number = int(record["metadata"]["conversation_id"]) - len(point.warmup)
            if (number < 0) == warmup:
                made.append((record["start_perf_ns"], _request(record, number, point, sent)))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise BadLog(f"record {place} is none of {point.name}: {error!r}") from None
    made.sort(key=lambda pair: pair[0])
    first = made[0][0] if made else 0
    return tuple(Request(**{**vars(request), "start": (start - first) / 1e9}) for start, request in made)


def _request(record: Mapping[str, Any], number: int, point: Point, sent: tuple[int, ...]) -> Request:
    place, began = len(point.warmup) + number, record["start_perf_ns"]
    shape = (*point.warmup, *point.shapes)[place]
    answer = _Answer()
    for response in record.get("responses", ()):
        seconds = (response["perf_ns"] - began) / 1e9
        answer.end = seconds
        for packet in response.get("packets", ()):
            answer.take(packet.get("name"), packet.get("value"), seconds)
    error = record.get("error") or {}
    told = " ".join(str(error[name]) for name in ("code", "type", "message") if error.get(name))
    cancelled = "cancelled" if record["metadata"].get("was_cancelled") else ""
    payload = record.get("payload") or {}
    content = json.dumps(payload.get("prompt", payload.get("messages")))
    return Request(
        number=number,
        kind=shape.kind,
        asked_prompt=sent[place],
        asked_output=shape.output,
        prompt_hash=hashlib.sha256(content.encode()).hexdigest() if payload else "",
        start=0.0,
        chunks=tuple(answer.times),
        chunk_tokens=answer.tokens(),
        end=answer.end,
        prompt_tokens=whole_number(answer.usage.get("prompt_tokens")),
        output_tokens=whole_number(answer.usage.get("completion_tokens")),
        cached_tokens=answer.cached,
        finish=answer.finish,
        status=record.get("status"),
        error=told or answer.error or cancelled,
        models=tuple(dict.fromkeys(answer.models)),
    )


def whole_number(told: Any) -> int | None:
    """A count of tokens, also one that is written as text; None where it is no number from 0 on."""
    if isinstance(told, str) and told.isdecimal():
        return int(told)
    return told if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else None


class _Answer:
    """Gathers the events of one stream."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int | None] = []
        self.models: list[str] = []
        self.usage: Mapping[str, Any] = {}
        self.finish = self.error = ""
        self.cached: int | None = None
        self.end = 0.0

    def take(self, name: str | None, value: str | None, seconds: float) -> None:
        """One packet of a server-sent event."""
        if name == "error":
            self.error = str(value)
        if name != "data" or not value or value == "[DONE]":
            return
        try:
            event = json.loads(value)
        except ValueError:
            event = None
        if not isinstance(event, dict):
            self.error = f"an event that is no JSON object: {value[:80]}"
            return
        if event.get("error"):
            self.error = json.dumps(event["error"])
        if event.get("model"):
            self.models.append(f"{event['model']} {event.get('system_fingerprint') or ''}".strip())
        usage = event.get("usage")
        if isinstance(usage, dict) and usage:
            self.usage = usage
            self._cached((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
        # llama.cpp's own count, beside the answer.
        self._cached((event.get("timings") or {}).get("cache_n"))
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            if choice.get("text") or any(delta.get(part) for part in ("content", "reasoning_content", "tool_calls")):
                self.times.append(seconds)
                self.counts.append(whole_number(self.usage.get("completion_tokens")) if usage else None)
            self.finish = choice.get("finish_reason") or self.finish

    def _cached(self, told: Any) -> None:
        if (count := whole_number(told)) is not None:
            self.cached = max(count, self.cached or 0)

    def tokens(self) -> tuple[int, ...]:
        """Of each chunk, from the running counts that some servers send; empty where one is missing."""
        running = [count for count in self.counts if count is not None]
        if len(running) != len(self.times) or not running:
            return ()
        if any(later <= earlier for earlier, later in pairwise((0, *running))):
            # The whole answer's count in every chunk, or another request's: not a running one.
            return ()
        return (running[0], *(later - earlier for earlier, later in pairwise(running)))
