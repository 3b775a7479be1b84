"""``waveproof serve-check``: whether a running OpenAI-compatible server samples from the law that it reports."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waveproof.reports.console import wide_console

if TYPE_CHECKING:
    from waveproof.fixtures.servers.check import ServerRun
    from waveproof.fixtures.servers.client import Endpoint
    from waveproof.fixtures.servers.plan import Plan


class LogprobsAre(str, Enum):
    """Which law a server's logprobs describe."""

    AUTO = "auto"
    RAW = "raw"
    PROCESSED = "processed"


def serve_check(
    base_url: Annotated[str, typer.Option(metavar="URL", help="Server to check, with or without a closing /v1.")],
    model: Annotated[str, typer.Option(metavar="NAME", help="Model, as the server calls it.")],
    api_key_env: Annotated[str, typer.Option(metavar="VAR", help="Environment variable that holds the API key.")] = "",
    against: Annotated[
        str, typer.Option(metavar="URL2", help="Second server of the same model, say with speculation off.")
    ] = "",
    against_model: Annotated[str, typer.Option(metavar="NAME", help="Its model's name, where it differs.")] = "",
    temperature: Annotated[
        list[float] | None,
        typer.Option(min=0.05, max=10.0, help="To sample at; may be repeated. 0.7, 1 and 1.3 if not given."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=100, help="Budget of sampled tokens.")] = 30_000,
    minutes: Annotated[float, typer.Option(min=0.01, help="Budget of time.")] = 10.0,
    top_logprobs: Annotated[int, typer.Option(min=0, metavar="K", help="Logprobs a step, as far as allowed.")] = 20,
    logprobs_are: Annotated[
        LogprobsAre, typer.Option(help="Before temperature (raw) or after it (processed); auto asks the server.")
    ] = LogprobsAre.AUTO,
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue; may be repeated.")] = None,
    prompt_ids: Annotated[
        list[str] | None, typer.Option(metavar="IDS", help="Token ids to continue, as in 3,17,4; may be repeated.")
    ] = None,
    alpha: Annotated[float, typer.Option(min=1e-12, max=0.1, help="False-alarm rate of the whole run.")] = 1e-3,
    fork_margin: Annotated[
        float, typer.Option(min=0.0, help="Nats between two tokens at which greedy decoding may fork (bf16: 0.25).")
    ] = 0.25,
    least_bias: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1.0,
            help="Two samples are of one law only if this total variation would have been found, else inconclusive.",
        ),
    ] = 0.4,
    seeds_must_repeat: Annotated[
        bool, typer.Option("--seeds-must-repeat", help="The server promises that one seed gives one text.")
    ] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Run all checks, whatever one finds.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Requests at once.")] = 4,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests a second, at most.")] = 20.0,
    stall: Annotated[float, typer.Option(min=0.1, help="Seconds of silence in a stream that count as a stall.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of the seeds that are sent and of the bettors' own randomness.")] = 0,
    json_output: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="File for the result.")] = None,
) -> None:
    """Check that a running OpenAI-compatible server (sglang, vLLM, llama.cpp) samples from the law that it reports.

    Faithfulness at several temperatures and under top-k by an anytime-valid test on streamed logprobs; greedy
    agreement up to near-ties; rows, seeds and batch-mates; acceptance of draft tokens by position; and, with
    --against, whether two servers (speculation on and off) have one law. Costs about 30,000 tokens, and fewer where
    something is found.

    Exit status: 0 faithful, 1 unfaithful, 3 inconclusive (with the reason), 4 the server failed or its logprobs are no
    probabilities, 2 the command was given wrongly. The API key is read from the environment and never shown.
    """
    from waveproof.fixtures.servers.client import Endpoint, Limits
    from waveproof.fixtures.servers.plan import PROMPTS, Plan
    from waveproof.golden.judges.served import Described
    from waveproof.reports.serve_report import ServeReport, closing_lines, render

    asked = (*(prompt or ()), *(_ids(text) for text in prompt_ids or ()))
    plan = Plan(
        temperatures=tuple(dict.fromkeys(temperature or Plan.temperatures)),
        tokens=tokens,
        minutes=minutes,
        top_logprobs=top_logprobs,
        described=None if logprobs_are is LogprobsAre.AUTO else Described(logprobs_are.value),
        alpha=alpha,
        seed=seed,
        fork_margin=fork_margin,
        least_bias=least_bias,
        prompts=asked or PROMPTS,
        seeds_must_repeat=seeds_must_repeat,
        keep_going=keep_going,
        limits=Limits(concurrency=concurrency, requests_per_second=rate, stall=stall),
    )
    first = Endpoint(base_url, model, api_key_env)
    second = Endpoint(against, against_model or model, api_key_env) if against else None
    report = ServeReport.of(_run(first, second, plan), model, plan)
    console = wide_console(160)
    console.print(render(report))
    for line in closing_lines(report):
        console.print(line, markup=False, highlight=False)
    if json_output is not None:
        json_output.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
        typer.echo(f"{json_output}: {len(report.checks)} checks", err=True)
    raise typer.Exit(report.exit_code)


def _run(endpoint: Endpoint, against: Endpoint | None, plan: Plan) -> ServerRun:
    """The run, with a progress bar on stderr."""
    import asyncio

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from waveproof.fixtures.servers.check import check_server

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("handshake", total=plan.tokens)

        def watch(phase: str, tokens: int) -> None:
            progress.update(task, description=phase, advance=tokens)

        return asyncio.run(check_server(endpoint, against, plan, watch))


def _ids(text: str) -> tuple[int, ...]:
    try:
        ids = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of token ids, as in 3,17,4", param_hint="--prompt-ids") from None
    if any(one < 0 for one in ids):
        raise typer.BadParameter(f"{text!r} holds a negative token id", param_hint="--prompt-ids")
    return ids
