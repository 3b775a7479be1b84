"""Measures a running OpenAI-compatible server: concurrency sweep, cold prefill, mixed traffic.

    plan = sweep_plan(Target("http://localhost:30000", "kimi"), concurrencies=(1, 2, 4))
    result = run_plan(plan, Path("sweep"), find_aiperf())
    result.peak.statement, result.measurements()

A run has a folder: the plan, and a folder for each finished point with the compressed log of its requests. Figures are
taken from these logs each time, so that they can be taken again by whoever doubts them. A point appears by one rename
when it is finished; a run that was killed goes on with the points that are missing.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from waveproof.golden.judges.acceptance import Acceptance
from waveproof.perf.records import SECONDS, TOKEN_RATE, Measurement, Place, Quantity
from waveproof.perf.serving_client import Aiperf, ClientFailed, send
from waveproof.perf.serving_figures import Peak, PointFigures, figures, peak
from waveproof.perf.serving_log import Request, read_log
from waveproof.perf.serving_plan import Plan, Point, Target, differences, plan_from_json, plan_json
from waveproof.perf.serving_prompts import prompts_of
from waveproof.perf.serving_refusals import Failure, Refusal, failure, refusals, warnings

_PLAN, _POINTS, _FACTS, _LOG = "plan.json", "points", "point.json", "requests.jsonl.gz"
_ASK_SECONDS = 10.0


class BadState(RuntimeError):
    """A run's folder does not fit what is asked; the message says what differs and what to do."""


@dataclass(frozen=True)
class PointResult:
    """What came of a point."""

    point: Point
    facts: dict[str, Any]
    """When and with what it was measured, and what the server said of itself before and after."""
    requests: tuple[Request, ...]
    refusals: tuple[Refusal, ...]
    failure: Failure | None
    figures: PointFigures | None
    """None where refused."""
    warnings: tuple[str, ...] = ()

    @property
    def acceptance(self) -> Acceptance:
        """Of draft tokens while it ran, its warm-up included; empty where the server tells none."""
        read = self.facts.get("acceptance") or {}
        return Acceptance(**{**read, "per_position": tuple(read.get("per_position", ()))})

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted by a verification step, 1 where no draft token stands; None where unknown."""
        counted = self.acceptance
        if counted.drafts and counted.accepted is not None:
            return 1.0 + counted.accepted / counted.drafts
        return counted.mean_length


@dataclass(frozen=True)
class SweepResult:
    """What came of a plan; of a sweep, a prefill or mixed traffic alike."""

    plan: Plan
    points: tuple[PointResult, ...]
    """Of points that were measured, in the plan's order."""
    stopped: str = ""
    """Why there are no more, empty where all were measured."""

    @property
    def reported(self) -> tuple[PointResult, ...]:
        """Points with figures."""
        return tuple(one for one in self.points if one.figures is not None)

    @property
    def peak(self) -> Peak | None:
        """Of aggregate throughput."""
        withheld = [one.point.concurrency for one in self.points if one.figures is None]
        return peak([one.figures for one in self.points if one.figures is not None], withheld)

    @property
    def exit_status(self) -> int:
        """0: every point is reported. 1: some are refused. 4: the server failed or points are missing."""
        if self.stopped or any(one.failure for one in self.points):
            return 4
        return 0 if len(self.reported) == len(self.plan.points) else 1

    def measurements(self, variant: str = "") -> tuple[Measurement, ...]:
        """For gate, history and ledger: speed of a stream, aggregate, time to the first token, whole latency.

        Args:
            variant: ends the cases, ``speculation=on``.
        """
        made = []
        for one in self.points:
            if one.figures is None:
                continue
            shape = one.point.shapes[0]
            case = (
                f"serving/{self.plan.target.model}/{self.plan.kind}/in={shape.prompt}/out={shape.output}/"
                f"concurrency={one.point.concurrency}"
            )
            case += f"/{one.point.name}" if self.plan.kind == "mixed" else ""
            case += f"/{variant}" if variant else ""
            place = Place("server", device=self.plan.target.label, versions=one.facts.get("versions", {}))
            for quantity, values in (
                (TOKEN_RATE, one.figures.stream_rates),
                (AGGREGATE_RATE, (one.figures.aggregate_tok_s,)),
                (TTFT, one.figures.ttfts),
                (SECONDS, one.figures.latencies),
            ):
                if values:
                    made.append(Measurement(case, quantity, values, place, one.warnings))
        return tuple(made)


AGGREGATE_RATE = Quantity("aggregate tokens per second", "tok/s", higher_is_better=True)
TTFT = Quantity("time to first token", "s")


def run_plan(
    plan: Plan,
    folder: Path,
    program: Aiperf,
    resume: bool = False,
    watch: Callable[[str, int, int], None] = lambda *_: None,
) -> SweepResult:
    """Measure every point of a plan that is not measured yet.

    Args:
        plan: what to ask.
        folder: of the run; made if it is not there.
        program: from :func:`~waveproof.perf.serving_client.find_aiperf`.
        resume: go on with a run that was begun.
        watch: called with a point's name, answers so far and answers to come, warm-up included.

    Returns:
        all points, those of before included. The server's failure is in it, not raised.

    Raises:
        BadState: the folder holds another plan, a run that is not to be resumed, or one that is under way.
        BadPlan, AiperfMissing: see there.
    """
    with _held(folder):
        _begin(plan, folder, resume)
        stopped = ""
        for point in plan.points:
            home = folder / _POINTS / point.name
            _set_failed_aside(home, point)
            if not home.is_dir():
                try:
                    _measure(plan, point, program, home, watch)
                except (ServerSilent, ClientFailed) as error:
                    stopped = f"{point.name}: {error}"
                    break
            if (fault := failure(_requests(home, point), point)) is not None:
                stopped = f"{point.name}: the server {fault}"
                break
    return load(folder, stopped)


def load(folder: Path, stopped: str = "") -> SweepResult:
    """What is on record in a run's folder, measured or not.

    Raises:
        BadState: it is none.
    """
    path = folder / _PLAN
    if not path.is_file():
        raise BadState(f"{folder}: no {_PLAN}, so no run of a serving measurement")
    plan = plan_from_json(path.read_text(encoding="utf-8"))
    homes = [(point, folder / _POINTS / point.name) for point in plan.points]
    done = [(point, home) for point, home in homes if home.is_dir()]
    missing = [point.name for point, home in homes if not home.is_dir()]
    read = [_facts(home) for _, home in done]
    first = read[0]["models"][0] if read else []
    points = tuple(_result(plan, point, home, facts, first) for (point, home), facts in zip(done, read, strict=True))
    failing = next((f"{one.point.name}: the server {one.failure}" for one in points if one.failure), "")
    if missing and not stopped:
        stopped = failing or f"not measured yet: {', '.join(missing)}; --resume goes on"
    return SweepResult(plan, points, stopped or failing)


class ServerSilent(RuntimeError):
    """The server does not tell which models it has; the message says what it answers."""


def ask_models(target: Target) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the models that a server has, sorted, with their owners; and the whole answer of ``/v1/models``.

    Raises:
        ServerSilent: it does not answer with a list.
    """
    import httpx

    try:
        response = httpx.get(
            f"{target.root}/v1/models", headers=_headers(target), timeout=_ASK_SECONDS, trust_env=False
        )
        response.raise_for_status()
        told: dict[str, Any] = response.json()
        names = tuple(sorted(f"{one['id']} of {one.get('owned_by') or 'nobody'}" for one in told["data"]))
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ServerSilent(f"the server at {target.root} does not answer /v1/models: {error!r}") from None
    return names, told


_VERSIONS = (("/version", "version"), ("/get_server_info", "version"), ("/props", "build_info"))
"""Where vLLM, sglang and llama.cpp tell theirs."""


def _version(target: Target, models: dict[str, Any]) -> str:
    """Who the server says that it is, and of which version where it tells."""
    import httpx

    told = sorted({str(one.get("owned_by") or "") for one in models["data"]} - {""})
    for path, name in _VERSIONS:
        with contextlib.suppress(httpx.HTTPError, ValueError, AttributeError):
            answer = httpx.get(f"{target.root}{path}", headers=_headers(target), timeout=_ASK_SECONDS, trust_env=False)
            if answer.status_code == httpx.codes.OK and (version := answer.json().get(name)):
                return " ".join((*told, str(version)))
    return ", ".join(told)


def _acceptance(target: Target) -> Acceptance:
    """Counters of draft tokens, of all requests so far."""
    import httpx

    from waveproof.fixtures.servers.metrics import read_acceptance

    try:
        response = httpx.get(f"{target.root}/metrics", headers=_headers(target), timeout=_ASK_SECONDS, trust_env=False)
    except httpx.HTTPError:
        return Acceptance()
    return read_acceptance(response.text if response.status_code == httpx.codes.OK else None)


def _headers(target: Target) -> dict[str, str]:
    key = os.environ.get(target.api_key_env, "") if target.api_key_env else ""
    return {"Authorization": f"Bearer {key}"} if key else {}


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Nobody else runs in the folder; the lock goes with the process, however it ends."""
    import filelock

    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise BadState(f"{folder}: a run is under way there") from None
    try:
        yield
    finally:
        lock.release()


def _begin(plan: Plan, folder: Path, resume: bool) -> None:
    path = folder / _PLAN
    if path.is_file():
        begun = plan_from_json(path.read_text(encoding="utf-8"))
        if not resume:
            raise BadState(f"{folder}: a run was begun there: --resume goes on with it, another folder begins anew")
        if changed := differences(plan, begun):
            told = "; ".join(changed[:6]) + (f"; and {len(changed) - 6} more" if len(changed) > 6 else "")
            raise BadState(f"{folder}: another plan than the run was begun with: {told}")
    else:
        _written(path, plan_json(plan))
    # A point that was not finished has requests of which nobody knows the end.
    for part in (folder / _POINTS).glob("*.part"):
        shutil.rmtree(part)


def _measure(plan: Plan, point: Point, program: Aiperf, home: Path, watch: Callable[[str, int, int], None]) -> None:
    part = home.with_name(f"{home.name}.part")
    prompts = prompts_of(plan, point.name)
    total = len(prompts)
    watch(point.name, 0, total)
    before, told = ask_models(plan.target)
    drafts = _acceptance(plan.target)
    began = datetime.now(timezone.utc)
    log = send(plan, point, prompts, program, part, lambda count: watch(point.name, count, total))
    try:
        after = ask_models(plan.target)[0]
    except ServerSilent:
        # It died, as the log says too.
        after = ()
    facts = {
        "started": began.isoformat(timespec="seconds"),
        "versions": {"aiperf": program.version, "server": _version(plan.target, told)},
        "models": [list(before), list(after)],
        "sent": [prompt.tokens for prompt in prompts],
        "acceptance": asdict(_acceptance(plan.target).since(drafts)),
    }
    with log.open("rb") as plain, gzip.open(part / _LOG, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed)
    # Its own summary, for whoever wants to compare; there is none of a run that it gave up.
    with contextlib.suppress(FileNotFoundError):
        (log.parent / "profile_export_aiperf.json").replace(part / "aiperf.json")
    shutil.rmtree(log.parent)
    _written(part / _FACTS, json.dumps(facts, indent=1) + "\n")
    part.rename(home)


def _set_failed_aside(home: Path, point: Point) -> None:
    """A point in which the server failed is measured again; its log is kept."""
    if home.is_dir() and failure(_requests(home, point), point) is not None:
        aside = home.parent.parent / "failed"
        aside.mkdir(exist_ok=True)
        home.rename(aside / f"{home.name}-{len(list(aside.glob(f'{home.name}-*'))) + 1}")


def _written(path: Path, text: str) -> None:
    """Whole or not at all."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def _facts(home: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads((home / _FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadState(f"{home}: {_FACTS} cannot be read: {error}") from None
    return read


def _requests(home: Path, point: Point) -> tuple[Request, ...]:
    return read_log(home / _LOG, point, tuple(_facts(home)["sent"]))


def _result(plan: Plan, point: Point, home: Path, facts: dict[str, Any], first: list[str]) -> PointResult:
    requests = _requests(home, point)
    broken = refusals(requests, point, plan, (first, *facts["models"]))
    whole = None if broken else figures(requests, point.concurrency)
    notes = () if broken else warnings(requests, plan)
    return PointResult(point, facts, requests, broken, failure(requests, point), whole, notes)
