"""What a server tells of itself: its models, its version, its counters of draft tokens."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from waveproof.golden.judges.acceptance import Acceptance
from waveproof.perf.serving_plan import Target
from waveproof.perf.serving_privacy import api_key

if TYPE_CHECKING:
    import httpx

_ASK_SECONDS = 10.0


class ServerSilent(RuntimeError):
    """The server does not tell which models it has; the message says what it answers."""


def ask_models(target: Target) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of the models that a server has, sorted, with their owners; and the whole answer of ``/v1/models``.

    Raises:
        ServerSilent: it does not answer with a list.
    """
    import httpx

    try:
        response = _get(target, "/v1/models")
        response.raise_for_status()
        told: dict[str, Any] = response.json()
        names = tuple(sorted(f"{one['id']} of {one.get('owned_by') or 'nobody'}" for one in told["data"]))
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ServerSilent(f"the server at {target.root} does not answer /v1/models: {error!r}") from None
    return names, told


_VERSIONS = (("/version", "version"), ("/get_server_info", "version"), ("/props", "build_info"))
"""Where vLLM, sglang and llama.cpp tell theirs."""


def server_version(target: Target, models: dict[str, Any]) -> str:
    """Who the server says that it is, and of which version where it tells."""
    import httpx

    told = sorted({str(one.get("owned_by") or "") for one in models["data"]} - {""})
    for path, name in _VERSIONS:
        with contextlib.suppress(httpx.HTTPError, ValueError, AttributeError):
            answer = _get(target, path)
            if answer.status_code == httpx.codes.OK and (version := answer.json().get(name)):
                return " ".join((*told, str(version)))
    return ", ".join(told)


def acceptance_so_far(target: Target) -> Acceptance:
    """Counters of draft tokens, of all requests so far."""
    import httpx

    from waveproof.fixtures.servers.metrics import read_acceptance

    try:
        response = _get(target, "/metrics")
    except httpx.HTTPError:
        return Acceptance()
    return read_acceptance(response.text if response.status_code == httpx.codes.OK else None)


def _get(target: Target, path: str) -> httpx.Response:
    """What the server itself answers: a proxy of the environment is not asked."""
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if (key := api_key(target)) else {}
    return httpx.get(f"{target.root}{path}", headers=headers, timeout=_ASK_SECONDS, trust_env=False)
