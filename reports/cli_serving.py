"""``waveproof serving``: how fast a running OpenAI-compatible server is, and whether its figures may be reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waveproof.reports.console import progress_bar, wide_console
from waveproof.reports.serving_command import NEW_STATE, Measuring, WrongOption, options_of, stoppable

if TYPE_CHECKING:
    from waveproof.perf.serving import SweepResult
    from waveproof.perf.serving_plan import Plan, Target
    from waveproof.reports.sections import Section

app = typer.Typer(
    no_args_is_help=True,
    help="Measure a running OpenAI-compatible server. Exit status: 0 every point is reported (of prefill every length "
    "that the server takes), 1 some are refused, "
    "2 a wrong command line, 4 the server failed or points are missing.",
)


class Endpoint(str, Enum):
    """Which of the server's interfaces is asked."""

    COMPLETIONS = "completions"
    CHAT = "chat"


BaseUrl = Annotated[str, typer.Option(metavar="URL", help="Server, with or without a closing /v1. Needed to begin.")]
Model = Annotated[str, typer.Option(metavar="NAME", help="Model, as the server calls it. Needed to begin.")]
State = Annotated[Path, typer.Option("--state", file_okay=False, help="Folder of the run: plan, logs, what is done.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted run, under its options. No --state: the newest.")
]
Label = Annotated[str, typer.Option(help="What serves: '8x MI355X, sglang 0.5.23'. Figures are kept under it.")]
Interface = Annotated[Endpoint, typer.Option(help="completions gets token ids; chat gets text, by a tokenizer.")]
KeyVariable = Annotated[str, typer.Option(metavar="VAR", help="Environment variable that holds the API key.")]
Tokenizer = Annotated[str, typer.Option(help="Folder, hub name or GGUF file, for --text and --endpoint chat.")]
Text = Annotated[str, typer.Option(metavar="FILE", help="Take prompts from a text instead of random tokens.")]
Vocabulary = Annotated[
    str, typer.Option(metavar="FIRST:END", help="Token ids of prompts; asked of the server where it tells.")
]
AllowCached = Annotated[
    int, typer.Option(min=0, metavar="N", help="Tokens that all prompts share: a BOS, a chat template's head.")
]
Seed = Annotated[
    int | None, typer.Option(help="Of the prompts. Drawn anew for each run, since a server may remember earlier ones.")
]
Patience = Annotated[float, typer.Option(min=1.0, metavar="SECONDS", help="For one request.")]
Extra = Annotated[
    list[str] | None, typer.Option(metavar="NAME=JSON", help="Put into each request; NAME= takes out. Repeatable.")
]
Program = Annotated[str, typer.Option(metavar="PATH", help="aiperf; else $WAVEPROOF_AIPERF, else in PATH.")]
Page = Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write the page.")]
Prompt = Annotated[int, typer.Option("--input", min=1, metavar="TOKENS", help="Tokens in.")]
Output = Annotated[int, typer.Option("--output", min=1, metavar="TOKENS", help="Tokens out.")]
Streams = Annotated[str, typer.Option(metavar="N,N,...", help="Requests at once, a point each.")]
PerStream = Annotated[int, typer.Option(min=1, help="Requests one after the other in each stream.")]


@app.command(cls=Measuring)
def sweep(
    ctx: typer.Context, base_url: BaseUrl = "", model: Model = "", state: State = NEW_STATE, resume: Resume = False,
    concurrency: Streams = "1,2,4,8,16,32,64",
    prompt: Prompt = 1024, output: Output = 400, per_stream: PerStream = 4, label: Label = "",
    endpoint: Interface = Endpoint.COMPLETIONS, api_key_env: KeyVariable = "", tokenizer: Tokenizer = "",
    text: Text = "", vocabulary: Vocabulary = "", allow_cached: AllowCached = 0, seed: Seed = None,
    timeout: Patience = 600.0, extra: Extra = None, aiperf: Program = "", page: Page = None,
) -> None:  # fmt: skip
    """Sweep over concurrency: speed of a stream, aggregate and its peak, time to first token, inter-token latency."""
    from waveproof.perf.serving_plan import sweep_plan

    target = _target(base_url, model, endpoint, api_key_env, label)
    options = _options(target, tokenizer, text, vocabulary, allow_cached, seed, timeout, extra)
    plan = sweep_plan(target, _numbers(concurrency), prompt, output, per_stream, **options)
    _finish(_run(ctx, plan, state, resume, aiperf), page)


@app.command(cls=Measuring)
def prefill(
    ctx: typer.Context, base_url: BaseUrl = "", model: Model = "", state: State = NEW_STATE, resume: Resume = False,
    lengths: Annotated[
        str, typer.Option(metavar="N,N,...", help="Tokens of the prompts.")
    ] = "1024,4096,13000,32768,65536,131072,172000",
    repeats: Annotated[int, typer.Option(min=1, help="Prompts of each length.")] = 3, label: Label = "",
    endpoint: Interface = Endpoint.COMPLETIONS, api_key_env: KeyVariable = "", tokenizer: Tokenizer = "",
    text: Text = "", vocabulary: Vocabulary = "", allow_cached: AllowCached = 0, seed: Seed = None,
    timeout: Patience = 600.0, extra: Extra = None, aiperf: Program = "", page: Page = None,
) -> None:  # fmt: skip
    """Cold prompts of several lengths: time to first token, and prefill speed with and without fixed costs.

    Ends at the first length that the server refuses as too long.
    """
    from waveproof.perf.serving_plan import prefill_plan

    target = _target(base_url, model, endpoint, api_key_env, label)
    options = _options(target, tokenizer, text, vocabulary, allow_cached, seed, timeout, extra)
    plan = prefill_plan(target, _numbers(lengths), repeats, **options)
    _finish(_run(ctx, plan, state, resume, aiperf), page)


@app.command(cls=Measuring)
def mixed(
    ctx: typer.Context, base_url: BaseUrl = "", model: Model = "", state: State = NEW_STATE, resume: Resume = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Streams of short requests.")] = 4,
    prompt: Prompt = 1024, output: Output = 400,
    long_input: Annotated[int, typer.Option(min=2, metavar="TOKENS", help="Of the long prompts.")] = 65_536,
    longs: Annotated[int, typer.Option(min=1, help="Long prompts.")] = 3, per_stream: PerStream = 6, label: Label = "",
    endpoint: Interface = Endpoint.COMPLETIONS, api_key_env: KeyVariable = "", tokenizer: Tokenizer = "",
    text: Text = "", vocabulary: Vocabulary = "", allow_cached: AllowCached = 0, seed: Seed = None,
    timeout: Patience = 600.0, extra: Extra = None, aiperf: Program = "", page: Page = None,
) -> None:  # fmt: skip
    """Short requests alone and beside long prefills: what these do to first tokens and to gaps between tokens."""
    from waveproof.perf.serving_plan import Shape, mixed_plan

    target = _target(base_url, model, endpoint, api_key_env, label)
    options = _options(target, tokenizer, text, vocabulary, allow_cached, seed, timeout, extra)
    shapes = Shape(prompt, output), Shape(long_input, 2)
    plan = mixed_plan(target, *shapes, concurrency=concurrency, longs=longs, per_stream=per_stream, **options)
    _finish(_run(ctx, plan, state, resume, aiperf), page)


@app.command(cls=Measuring)
def speculation(
    ctx: typer.Context,
    base_url: Annotated[str, typer.Option(metavar="URL", help="Server with speculation on. Needed to begin.")] = "",
    baseline_url: Annotated[
        str, typer.Option(metavar="URL", help="Server of the same model with speculation off. Needed to begin.")
    ] = "",
    model: Model = "", state: State = NEW_STATE, resume: Resume = False, concurrency: Streams = "1,2,4,8,16,32,64",
    prompt: Prompt = 1024, output: Output = 400, per_stream: PerStream = 4, label: Label = "",
    endpoint: Interface = Endpoint.COMPLETIONS, api_key_env: KeyVariable = "", tokenizer: Tokenizer = "",
    text: Text = "", vocabulary: Vocabulary = "", allow_cached: AllowCached = 0, seed: Seed = None,
    timeout: Patience = 600.0, extra: Extra = None, aiperf: Program = "", page: Page = None,
) -> None:  # fmt: skip
    """Sweep two servers, speculation on and off: speed-ups at equal concurrency beside the acceptance length."""
    from waveproof.perf.serving_plan import sweep_plan
    from waveproof.perf.serving_speculation import OFF, ON

    if base_url == baseline_url:
        raise WrongOption(f"--base-url and --baseline-url are both {base_url}: two servers are compared")
    for name, url in ((OFF, baseline_url), (ON, base_url)):
        target = _target(url, model, endpoint, api_key_env, label)
        options = _options(target, tokenizer, text, vocabulary, allow_cached, seed, timeout, extra)
        plan = sweep_plan(target, _numbers(concurrency), prompt, output, per_stream, **options)
        _run(ctx, plan, state / name, resume and (state / name / "plan.json").is_file(), aiperf)
    report(state, page)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", exists=True, file_okay=False, help="Of a run.")],
    page: Page = None,
    json_output: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Measurements, for gate and history.")
    ] = None,
) -> None:
    """Take the figures of a run from its logs once more, finished or not."""
    from waveproof.perf.serving import load
    from waveproof.perf.serving_speculation import OFF, ON

    if not (folder / ON).is_dir():
        _finish(load(folder), page, json_output)
    results = load(folder / ON), load(folder / OFF)
    _write(results, page, json_output)
    raise typer.Exit(max(result.exit_status for result in results))


def _target(base_url: str, model: str, endpoint: Endpoint, api_key_env: str, label: str) -> Target:
    import os

    from waveproof.perf.serving_plan import Target

    if api_key_env and not os.environ.get(api_key_env):
        # What was given may be the key itself, so that it is not repeated.
        raise WrongOption("--api-key-env names an environment variable that holds the key; there is none of that name")
    return Target(base_url, model, "chat" if endpoint is Endpoint.CHAT else "completions", api_key_env, label)


def _options(
    target: Target, tokenizer: str, text: str, vocabulary: str, allow_cached: int, seed: int | None, timeout: float,
    extra: Sequence[str] | None,
) -> dict[str, Any]:  # fmt: skip
    """Of a plan, common to all kinds."""
    import json

    from waveproof.perf.serving_plan import Plan, Prompts

    bodies: dict[str, Any] = dict(Plan.extra)
    for one in extra or ():
        name, equals, value = one.partition("=")
        if not name or not equals:
            raise WrongOption(f"--extra {one!r}: NAME=JSON, as in ignore_eos=true, or NAME= to leave it out")
        try:
            bodies.pop(name, None)
            if value:
                bodies[name] = json.loads(value)
        except ValueError:
            raise WrongOption(f"--extra {one!r}: {value!r} is no JSON; a text has quotes, as in '\"text\"'") from None
    prompts = Prompts(_vocabulary(vocabulary, target, tokenizer), tokenizer, text)
    chosen = {"prompts": prompts, "allow_cached": allow_cached, "seed": seed, "request_seconds": timeout}
    return {**chosen, "extra": tuple(bodies.items())}


def _vocabulary(given: str, target: Target, tokenizer: str) -> tuple[int, int]:
    """Ids to draw from: as given, or the tokenizer's, or what llama.cpp's list of models tells, without both ends."""
    from waveproof.perf.serving import ServerSilent, ask_models

    if given:
        first, _, end = given.partition(":")
        if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            raise WrongOption(f"--vocabulary {given!r}: FIRST:END, as in 1024:32000")
        return int(first), int(end)
    if tokenizer:
        from waveproof.perf.serving_prompts import load_tokenizer

        size = len(load_tokenizer(tokenizer))
    else:
        try:
            entries = ask_models(target)[1]["data"]
        except ServerSilent as error:
            typer.echo(f"waveproof: {error}", err=True)
            raise typer.Exit(4) from None
        size = max(int((entry.get("meta") or {}).get("n_vocab") or 0) for entry in entries) if entries else 0
    if not size:
        raise WrongOption("the server does not tell its vocabulary's size: give --vocabulary FIRST:END or --tokenizer")
    return size // 32, size - size // 8


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise WrongOption(f"{text!r} is no list of numbers from 1 on, as in 1,2,4")
    return tuple(int(part) for part in parts)


def _run(ctx: typer.Context, plan: Plan, state: Path, resume: bool, aiperf: str) -> SweepResult:
    """Measure, with a progress bar on stderr."""
    from waveproof.perf.serving import run_plan
    from waveproof.perf.serving_client import find_aiperf

    program = find_aiperf(aiperf)
    with stoppable(ctx), progress_bar(transient=False) as progress:
        points = progress.add_task("points", total=len(plan.points))
        answers = progress.add_task("answers", total=None)
        names = [point.name for point in plan.points]

        def watch(name: str, count: int, total: int) -> None:
            progress.update(points, completed=names.index(name), description=name)
            progress.update(answers, completed=count, total=total)

        result = run_plan(replace(plan, options=options_of(ctx)), state, program, resume, watch)
        progress.update(points, completed=len(result.points), description="points")
    return result


def _finish(result: SweepResult, page: Path | None, json_output: Path | None = None) -> None:
    _write((result,), page, json_output)
    raise typer.Exit(result.exit_status)


def _write(results: Sequence[SweepResult], page: Path | None, json_output: Path | None) -> None:
    """Print, and write what is asked for. Two results are of speculation on and off."""
    from waveproof.perf.serving_speculation import speed_ups
    from waveproof.reports.sections import print_sections
    from waveproof.reports.serving_report import serving_sections, speculation_sections

    def shown(pictures: bool) -> tuple[Section, ...]:
        if len(results) == 1:
            return serving_sections(results[0], pictures)
        on, off = results
        return speculation_sections(on, off, speed_ups(on, off), pictures)

    print_sections(shown(False), wide_console(200))
    if page is not None:
        from waveproof.reports.perf_page import write_perf_page

        title = f"Serving {results[0].plan.target.model}"
        versions = results[0].points[0].facts.versions if results[0].points else None
        write_perf_page(page, shown(True), title, versions=versions)
        typer.echo(f"{page}: written")
    if json_output is not None:
        from waveproof.perf.records import to_json

        variants = ("speculation=on", "speculation=off") if len(results) == 2 else ("",)
        made = [one for result, variant in zip(results, variants, strict=True) for one in result.measurements(variant)]
        json_output.write_text(to_json(made), encoding="utf-8")
        typer.echo(f"{json_output}: {len(made)} measurements")
