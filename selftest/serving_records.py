"""Raw logs as aiperf writes them, of requests that went well or went wrong as told."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from waveproof.perf.serving_log import Request, requests_of
from waveproof.perf.serving_plan import Plan, Point, Prompts, Shape, Target, plan_json, sweep_plan

TARGET = Target("http://127.0.0.1:1", "tiny")
PROMPT, OUTPUT = 16, 8
SECOND = 1_000_000_000

Record = dict[str, Any]
Spoil = Callable[[int, Record], Record | None]
"""Gets a request's number and record, and gives what is written instead; None for nothing."""


def small_plan(concurrencies: Sequence[int] = (2,), **options: Any) -> Plan:
    """Of a sweep with three requests a stream."""
    return sweep_plan(TARGET, concurrencies, PROMPT, OUTPUT, 3, prompts=Prompts((1024, 4096)), **options)


def record(
    number: int, start: float, shape: Shape, ttft: float = 0.1, gap: float = 0.01, phase: str = "profiling"
) -> Record:
    """A request that streams a token a chunk, ``gap`` seconds apart."""
    began = int(start * SECOND)
    times = [began + int((ttft + gap * place) * SECOND) for place in range(shape.output)]
    events = [_event(at, {"choices": [{"text": " a", "finish_reason": None}], "model": "tiny"}) for at in times]
    usage = {
        "prompt_tokens": shape.prompt,
        "completion_tokens": shape.output,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    last = {"choices": [{"text": "", "finish_reason": "length"}], "model": "tiny", "usage": usage}
    return {
        "metadata": {"conversation_id": f"{number:06}", "benchmark_phase": phase, "was_cancelled": False},
        "start_perf_ns": began,
        "status": 200,
        "responses": [*events, _event(times[-1], last)],
        "payload": {"prompt": [number, *[7] * (shape.prompt - 1)]},
    }


def _event(at: int, body: Mapping[str, Any]) -> Record:
    return {"perf_ns": at, "packets": [{"name": "data", "value": json.dumps(body)}]}


def changed_events(one: Record, change: Callable[[dict[str, Any]], Any]) -> Record:
    """The record with each event's body changed in place."""
    for response in one["responses"]:
        for packet in response["packets"]:
            body = json.loads(packet["value"])
            change(body)
            packet["value"] = json.dumps(body)
    return one


def failed(one: Record, status: int = 500) -> Record:
    """The record of a request that the server answered with an error."""
    error = {"code": status, "type": "Internal Server Error", "message": "scheduler hit an exception"}
    return {**one, "status": status, "responses": [], "error": error}


def records(point: Point, gap: float = 0.01, ttft: float = 0.1, spoil: Spoil | None = None) -> list[Record]:
    """A point's log, its warm-up included: streams that send one request after the other.

    ``spoil`` is called for requests that count.
    """
    made: list[Record] = []
    warm = len(point.warmup)
    for number, shape in enumerate(point.warmup):
        made.append(record(number, -10.0 + number, shape, phase="warmup"))
    whole = ttft + gap * max(shape.output for shape in point.shapes)
    for number, shape in enumerate(point.shapes):
        round_, stream = divmod(number, point.concurrency)
        one = record(warm + number, 100.0 + round_ * whole + stream * 1e-4, shape, ttft, gap)
        spoiled = spoil(number, one) if spoil else one
        if spoiled is not None:
            made.append(spoiled)
    return made


def requests(point: Point, gap: float = 0.01, ttft: float = 0.1, spoil: Spoil | None = None) -> tuple[Request, ...]:
    """The same as requests, read."""
    return requests_of(records(point, gap, ttft, spoil), point, sent(point))


def sent(point: Point) -> tuple[int, ...]:
    """Tokens of each prompt, the warm-up's first."""
    return tuple(shape.prompt for shape in (*point.warmup, *point.shapes))


def write_plan(folder: Path, plan: Plan) -> Path:
    """A run's folder that was begun."""
    folder.mkdir()
    (folder / "plan.json").write_text(plan_json(plan), encoding="utf-8")
    return folder


def write_point(
    folder: Path, point: Point, lines: Iterable[Record], models: Sequence[str] = ("tiny of fake",), **facts: Any
) -> None:
    """A finished point in a run's folder."""
    home = folder / "points" / point.name
    home.mkdir(parents=True)
    with gzip.open(home / "requests.jsonl.gz", "wt", encoding="utf-8") as log:
        log.writelines(f"{json.dumps(line)}\n" for line in lines)
    told = {"started": "", "versions": {}, "models": [list(models)] * 2, "sent": sent(point), "acceptance": {}, **facts}
    (home / "point.json").write_text(json.dumps(told), encoding="utf-8")
