"""A command that measures a server, and goes on with an interrupted run under the options that it was begun with."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from secrets import randbelow
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from waveproof.perf.serving_plan import Plan

NEW_STATE = Path("serving-YYYYMMDD-HHMM")
"""Stands for a folder of the current minute (UTC)."""
_NAMED_BY_TIME = "serving-[0-9]*-[0-9]*"
_NEEDED = ("base_url", "baseline_url", "model")
_OF_THE_PROCESS = ("state", "resume", "aiperf", "page")
"""Parameters that are no part of a plan."""
_NOT_REPEATED = ("base_url", "baseline_url", "api_key_env")
"""Where a password or a key may have been typed."""


class WrongOption(ValueError):
    """An option that cannot be; the message says which values can."""


class Measuring(TyperCommand):
    """Settles what depends on whether a run is begun or goes on: folder, options that were left out, seed."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            WrongOption: there is no run to go on with, or an option that is given is another than the run's.
        """
        asked, command = ctx.params, str(self.name)
        if not _typed(ctx, "state"):
            asked["state"] = _newest(command) if asked["resume"] else _new()
            typer.echo(f"run in {asked['state']}", err=True)
        if asked["resume"] and (begun := _begun(Path(asked["state"]), command)):
            _take_options(ctx, begun, command)
        names = {parameter.name: parameter.opts[0] for parameter in self.params}
        if missing := [names[name] for name in _NEEDED if name in asked and not asked[name]]:
            ctx.fail(f"Missing option {', '.join(missing)}" + (": no run to go on with" if asked["resume"] else ""))
        if asked["seed"] is None:
            asked["seed"] = randbelow(1 << 31)
        return super().invoke(ctx)


def options_of(ctx: Any) -> dict[str, Any]:
    """What makes the plan of a command that is under way, as JSON holds it."""
    made = {name: value for name, value in ctx.params.items() if name not in _OF_THE_PROCESS}
    told: dict[str, Any] = json.loads(json.dumps(made))
    return told


@contextlib.contextmanager
def stoppable(ctx: Any) -> Iterator[None]:
    """SIGINT and SIGTERM end the command in order, and its last line says how to go on."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except SystemExit:
        state = shlex.quote(str(ctx.params["state"]))
        typer.echo(f"go on with: waveproof serving {ctx.info_name} --state {state} --resume", err=True)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _typed(ctx: Any, name: str) -> bool:
    # By name: the enumeration is click's or typer's own, by version.
    return bool(ctx.get_parameter_source(name).name == "COMMANDLINE")


def _begun(folder: Path, command: str) -> Plan | None:
    """The plan of a run in a folder; of two servers that of the one which is measured first."""
    from waveproof.perf.serving_plan import plan_from_json

    path = (folder / "off" if command == "speculation" else folder) / "plan.json"
    return plan_from_json(path.read_text(encoding="utf-8")) if path.is_file() else None


def _kind(command: str) -> str:
    return "sweep" if command == "speculation" else command


def _new() -> Path:
    return Path(datetime.now(timezone.utc).strftime("serving-%Y%m%d-%H%M"))


def _newest(command: str) -> Path:
    for folder in sorted(Path().glob(_NAMED_BY_TIME), reverse=True):
        if (begun := _begun(folder, command)) and begun.kind == _kind(command):
            return folder
    raise WrongOption(f"--resume: no folder {NEW_STATE} here has a run of serving {command}: --state names another")


def _take_options(ctx: Any, begun: Plan, command: str) -> None:
    """Those of the run for all that are left out; one of a plan that no command made has none but its seed."""
    from waveproof.perf.serving_plan import first_few

    asked, state = ctx.params, ctx.params["state"]
    if begun.kind != _kind(command):
        raise WrongOption(f"{state}: a run of serving {begun.kind} was begun there, and not of {command}")
    given, changed = options_of(ctx), []
    for parameter in ctx.command.params:
        name, option = parameter.name, parameter.opts[0]
        if name not in begun.options:
            continue
        was, now = begun.options[name], given[name]
        if not _typed(ctx, name):
            asked[name] = parameter.process_value(ctx, was)
        elif now != was:
            changed.append(f"{option} is another" if name in _NOT_REPEATED else f"{option} was {was}, is {now}")
    if changed:
        raise WrongOption(f"{state}: the run was begun otherwise: {first_few(changed)}; left out, it is as it was")
    if asked["seed"] is None:
        asked["seed"] = begun.seed
