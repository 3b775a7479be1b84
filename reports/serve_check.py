"""Ask a served model, judge as answers come, stop when the verdict is clear or the budget is spent.

Cheap checks go first: greedy agreement, rows and seeds, then the streams of the martingale test, batch-mates, a second
server, acceptance counters. The false-alarm budget is divided among them before anything is asked, so that no check's
alpha depends on what another one saw. Requests of the streams carry no seed, since most users send none and engines
have a path of their own for seeded requests.

What a run of the default size does not find: a fault that differs in sign from context to context and is small in each.
A verifier that replaces refused tokens from the target instead of the residual was not found on vLLM in 9,000 tokens of
4 prompts (vocabulary 8, half of the draft tokens accepted). For that, compare with a server without speculation
(``against``), or ask about a single prompt with a larger budget, which gives each of its contexts more tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from waveproof.fixtures.servers.client import Client, Endpoint, Limits, Prompt, Sampling
from waveproof.fixtures.servers.handshake import EmptyAnswers, Manner, ServerRefused, meet
from waveproof.fixtures.servers.metrics import read_acceptance
from waveproof.golden.judges.acceptance import Acceptance, acceptance_falls
from waveproof.golden.judges.answers import Completion
from waveproof.golden.judges.evidence import Budget
from waveproof.golden.judges.martingale import FEWEST
from waveproof.golden.judges.served import BadTable, Described, Finding, Verdict
from waveproof.golden.judges.served_checks import FORK_MARGIN, greedy_agreement, must_agree, must_differ, same_law
from waveproof.golden.judges.served_stream import Stream

PROMPTS: tuple[Prompt, ...] = (
    "Once upon a time there was",
    "Five names for a cat:",
    "The best thing about the city is",
    "import random\n\ndef",
)
"""Open-ended, so that many tokens are likely next; few, so that their first tokens repeat."""

LENGTHS = (4, 8, 24)
"""Tokens of the streams' answers, in turn: short ones repeat the contexts that are told apart, long ones go on."""

GREEDY_TOKENS = 16
TEXT_TOKENS = 4
"""Tokens of the texts that two samples are compared by: enough to hold a draft token and a replaced one."""


FAULTY_SHARE = 0.05
"""Share of failed requests above which a server that goes on is at fault all the same."""

TOP_K = 8
"""Tokens to keep in the stream with a filter, at most."""


@dataclass(frozen=True)
class Plan:
    """What to ask, and how much of it."""

    temperatures: tuple[float, ...] = (0.7, 1.0, 1.3)
    tokens: int = 30_000
    minutes: float = 10.0
    top_logprobs: int = 20
    described: Described | None = None
    """Which law logprobs are of, where the user knows; found out otherwise."""
    alpha: float = 1e-3
    seed: int = 0
    fork_margin: float = FORK_MARGIN
    prompts: tuple[Prompt, ...] = PROMPTS
    seeds_must_repeat: bool = False
    keep_going: bool = False
    """Whether to go on after a check has said ``unfaithful``."""
    fewest: int = FEWEST
    """Tokens of a stream below which it proves nothing."""
    limits: Limits = field(default_factory=Limits)


Watch = Callable[[str, int], None]
"""Told what is being done, and tokens that came since the last call."""


@dataclass(frozen=True)
class Outcome:
    """All that a run found."""

    findings: tuple[Finding, ...]
    decisive: dict[str, bool]
    """Checks without which nothing is known of the server."""
    manner: Manner | None
    tokens: int
    requests: int
    failed: int
    seconds: float


class _Stop(Exception):
    """The verdict is clear, or the server is down."""


async def check_server(endpoint: Endpoint, against: Endpoint | None, plan: Plan, watch: Watch) -> Outcome:
    """Check one server, and compare it with a second one where there is one. Never raises for a bad server."""
    async with Client(endpoint, plan.limits) as client, _maybe(against, plan.limits) as other:
        run = _Run(plan, client, other, watch)
        for one in (client, *([other] if other else [])):
            one.served = run.count
        await run.everything()
        clients = (client, other) if other else (client,)
        sums = [sum(getattr(one.traffic, name) for one in clients) for name in ("tokens", "requests", "failed")]
        return Outcome(tuple(run.findings), run.decisive, run.manner, sums[0], sums[1], sums[2], run.seconds)


@contextlib.asynccontextmanager
async def _maybe(endpoint: Endpoint | None, limits: Limits) -> AsyncIterator[Client | None]:
    if endpoint is None:
        yield None
        return
    async with Client(endpoint, limits) as client:
        yield client


class _Run:
    """State of one run. Each phase asks, judges and adds its findings."""

    def __init__(self, plan: Plan, client: Client, other: Client | None, watch: Watch) -> None:
        self.plan, self.client, self.other, self.watch = plan, client, other, watch
        self.findings: list[Finding] = []
        self.decisive: dict[str, bool] = {}
        self.manner: Manner | None = None
        self.budget = Budget(plan.alpha)
        self.random = random.Random(plan.seed)
        self.begun = time.monotonic()
        self.spent = 0
        self.phase = ""
        self.batch = 2 * plan.limits.concurrency

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.begun

    def count(self, tokens: int) -> None:
        self.spent += tokens
        self.watch(self.phase, tokens)

    def within(self, tokens: int) -> bool:
        """Whether both budgets last."""
        return self.spent < tokens and self.seconds < 60.0 * self.plan.minutes

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.watch(phase, 0)

    def add(self, *findings: Finding) -> None:
        """Add findings; stops the run where one settles it."""
        self.findings += findings
        if not self.plan.keep_going and any(one.verdict is Verdict.UNFAITHFUL for one in findings):
            raise _Stop

    async def everything(self) -> None:
        """All phases."""
        before = Acceptance()
        try:
            self.enter("handshake")
            self.manner = await meet(self.client, self.plan.prompts, self.plan.top_logprobs, self.plan.described)
            if self.other is not None:
                await meet(self.other, self.plan.prompts, self.plan.top_logprobs, self.plan.described)
            before = read_acceptance(await self.client.text("/metrics"))
            await self.greedy()
            await self.rows_and_seeds()
            await self.streams()
            await self.batch_mates()
            await self.two_servers()
        except _Stop:
            pass
        except ServerRefused as error:
            self.findings.append(Finding("server", Verdict.SERVER_FAULT, str(error)))
            return
        except EmptyAnswers as error:
            self.findings.append(Finding("server", Verdict.INCONCLUSIVE, str(error)))
            return
        except BadTable as error:
            self.findings.append(Finding("logprobs", Verdict.SERVER_FAULT, str(error)))
        with contextlib.suppress(_Stop):
            await self.acceptance(before)
        self.serving()

    async def ask(
        self, client: Client, requests: Sequence[tuple[Prompt, Sampling]], alone: bool = False
    ) -> list[tuple[Completion, ...]]:
        """Answers in the order of the requests, which run at once, or one after the other.

        Raises:
            ServerRefused: the server has failed several times in a row.
        """
        if alone:
            answers = [await client.complete(prompt, sampling) for prompt, sampling in requests]
        else:
            answers = list(await asyncio.gather(*(client.complete(prompt, one) for prompt, one in requests)))
        if client.down:
            raise ServerRefused(client.traffic.faults[-1])
        return answers

    async def greedy(self) -> None:
        """The same prompts at temperature 0: twice alone, beside each other, and on the second server."""
        assert self.manner is not None
        self.enter("greedy agreement")
        asked, margin, prompts = self.manner.asked, self.plan.fork_margin, self.plan.prompts
        sampling = Sampling(0.0, max_tokens=GREEDY_TOKENS, logprobs=asked)
        requests = [(prompt, sampling) for prompt in prompts]
        first, again = [_good(await self.ask(self.client, requests, alone=True)) for _ in range(2)]
        beside = _good(await self.ask(self.client, requests))
        self.add(greedy_agreement("greedy repeats", _pairs(first, again), margin, asked))
        name = "greedy beside others"
        self.add(greedy_agreement(name, _pairs(first, beside), margin, asked, "runs alone and beside others"))
        if self.other is not None:
            there = _good(await self.ask(self.other, requests, alone=True))
            self.add(greedy_agreement("greedy, both servers", _pairs(first, there), margin, asked, "answers"))

    async def rows_and_seeds(self) -> None:
        """Rows of one request and requests of different seeds must differ; one seed twice, for information."""
        assert self.manner is not None
        self.enter("rows and seeds")
        alpha = self.budget.share("rows and seeds", 2, 0.1)
        length, asked = GREEDY_TOKENS, self.manner.asked
        prompts = [prompt for prompt in self.plan.prompts for _ in range(2)]
        rows = await self.ask(
            self.client, [(prompt, Sampling(1.0, max_tokens=length, logprobs=asked, rows=2)) for prompt in prompts]
        )
        whole = [group for group in rows if all(row.fault is None for row in group)]
        self.add(must_differ("rows of one request", whole, alpha, "rows of one request"))
        seeds = self.random.sample(range(1, 2**31), 2 * len(prompts))
        sampled = [Sampling(1.0, max_tokens=length, logprobs=asked, seed=seed) for seed in seeds]
        seeded = [list(zip(prompts, part, strict=True)) for part in (sampled[::2], sampled[1::2])]
        first, second = [_good(await self.ask(self.client, requests)) for requests in seeded]
        self.add(must_differ("different seeds", _pairs(first, second), alpha, "answers to different seeds", "answers"))
        again = _good(await self.ask(self.client, seeded[0], alone=True))
        self.add(must_agree("one seed twice", _pairs(first, again), self.plan.seeds_must_repeat, "answers"))

    async def streams(self) -> None:
        """The martingale test, all configurations in turn."""
        assert self.manner is not None
        self.enter("faithfulness")
        manner, plan = self.manner, self.plan
        settings = [(temperature, 0) for temperature in plan.temperatures]
        # One more entry than is kept tells a tie at the cut.
        top_k = min(TOP_K, manner.asked - 1) if manner.asked else TOP_K
        if self.client.dialect.extras and top_k > 1:
            settings.append((plan.temperatures[0], top_k))
        alpha = self.budget.share("faithfulness", len(settings), 0.5)
        names = [f"faithful at temperature {t:g}" + (f", top_k {k}" if k else "") for t, k in settings]
        self.decisive |= dict.fromkeys(names, True)
        if not manner.asked or manner.described is None:
            reason = f"logprobs at 0.5 are {manner.slope:.3g} times as steep as at 1: neither raw (1) nor processed (2)"
            reason = reason if manner.asked else "the server returns no logprobs"
            self.add(*(Finding(name, Verdict.INCONCLUSIVE, reason, alpha) for name in names))
            return
        seeds = self.random.sample(range(2**31), len(settings))
        streams = [
            Stream(name, alpha, seed, manner.described, temperature, top_k, manner.asked, plan.fewest)
            for name, seed, (temperature, top_k) in zip(names, seeds, settings, strict=True)
        ]
        end = self.spent + int((plan.tokens - self.spent) * (0.5 if self.other else 0.8))
        try:
            await self._feed(streams, end)
        finally:
            # Also what a table that is no law has left unfinished.
            findings = [stream.finding() for stream in streams]
            self.findings += findings
        if not plan.keep_going and any(stream.rejected for stream in streams):
            raise _Stop

    async def _feed(self, streams: Sequence[Stream], end: int) -> None:
        """Ask for each stream in turn, until one rejects (unless told to go on) or the budget is spent."""
        turns = dict.fromkeys(map(id, streams), 0)
        while self.within(end):
            going = [stream for stream in streams if not (stream.rejected or stream.hopeless)]
            if not going or (any(stream.rejected for stream in streams) and not self.plan.keep_going):
                return
            stream = min(going, key=lambda one: turns[id(one)])
            numbers = range(self.batch * turns[id(stream)], self.batch * (turns[id(stream)] + 1))
            turns[id(stream)] += 1
            prompts = [number % len(self.plan.prompts) for number in numbers]
            lengths = [LENGTHS[number // len(self.plan.prompts) % len(LENGTHS)] for number in numbers]
            requests = [
                (self.plan.prompts[prompt], Sampling(stream.temperature, stream.top_k, 1.0, length, stream.asked))
                for prompt, length in zip(prompts, lengths, strict=True)
            ]
            for prompt, (answer,) in zip(prompts, await self.ask(self.client, requests), strict=True):
                stream.add(answer, prompt)

    async def batch_mates(self) -> None:
        """Short texts of the same prompts, alone and beside others, from one law."""
        self.enter("batch-mates")
        alpha = self.budget.share("batch-mates", 1, 0.1)
        sampling = Sampling(1.0, max_tokens=TEXT_TOKENS)
        requests = [(prompt, sampling) for prompt in self.plan.prompts]
        alone: list[list[Completion]] = [[] for _ in requests]
        beside: list[list[Completion]] = [[] for _ in requests]
        left = self.plan.tokens - self.spent
        end = self.spent + int(left * (0.2 if self.other else 1.0))
        turn = 0
        while self.within(end):
            # Beside each other and a longer mate whose filter may switch a whole batch to another path, as in
            # sgl-project/sglang#35697.
            mate = (self.plan.prompts[turn % len(requests)], Sampling(0.7, 1, max_tokens=GREEDY_TOKENS))
            _append(alone, await self.ask(self.client, requests, alone=True))
            _append(beside, (await self.ask(self.client, [mate, *requests]))[1:])
            turn += 1
        pairs = list(zip(alone, beside, strict=True))
        self.add(same_law("batch-mates", pairs, alpha, ("texts asked for alone", "beside others")))

    async def two_servers(self) -> None:
        """Short texts of the same prompts from both servers, from one law; looked at twice."""
        if self.other is None:
            return
        self.enter("two servers")
        looks = 2
        alpha = self.budget.share("two servers", looks, 0.2)
        check = "both servers, one law"
        self.decisive[check] = True
        sampling = Sampling(self.plan.temperatures[0], max_tokens=TEXT_TOKENS)
        requests = [(prompt, sampling) for prompt in self.plan.prompts for _ in range(2)]
        mine: list[list[Completion]] = [[] for _ in self.plan.prompts]
        theirs: list[list[Completion]] = [[] for _ in self.plan.prompts]
        begun = self.spent
        for look in range(looks):
            end = begun + (self.plan.tokens - begun) * (look * 3 + 1) // 4
            while self.within(end):
                for client, side in ((self.client, mine), (self.other, theirs)):
                    answers = await self.ask(client, requests)
                    _append(side, answers[0::2])
                    _append(side, answers[1::2])
            pairs = list(zip(mine, theirs, strict=True))
            finding = same_law(check, pairs, alpha, ("this server", "the other"), look == looks - 1)
            if finding.verdict is Verdict.UNFAITHFUL or look == looks - 1:
                self.add(finding)
                return

    async def acceptance(self, before: Acceptance) -> None:
        """Acceptance by position since the start, from the server's metrics."""
        check = "acceptance by position"
        alpha = self.budget.share(check, 1, 0.1)
        counted = read_acceptance(await self.client.text("/metrics")).since(before)
        traffic = self.client.traffic
        if not counted.per_position and traffic.drafted:
            counted = Acceptance(drafted=traffic.drafted, accepted=traffic.accepted)
        finding = acceptance_falls(check, counted, alpha)
        exposed = bool(counted.per_position or counted.drafted or counted.mean_length is not None)
        if not exposed:
            finding = Finding(check, Verdict.NOTE, finding.evidence)
        self.decisive[check] = bool(counted.per_position)
        self.add(finding)

    def serving(self) -> None:
        """What failed on the way, where anything did."""
        for client, name in ((self.client, "serving"), (self.other, "serving, second server")):
            if client is None or not client.traffic.failed:
                continue
            traffic = client.traffic
            kinds = sorted({fault.kind.value for fault in traffic.faults})
            told = f"{traffic.failed} of {traffic.requests} requests failed: {', '.join(kinds)}"
            told += f"; last: {traffic.faults[-1]}"
            # A form of request that was refused in the handshake, or for its n, is no fault.
            bad = traffic.failed - traffic.refused > FAULTY_SHARE * traffic.requests
            self.findings.append(Finding(name, Verdict.SERVER_FAULT if bad else Verdict.NOTE, told, n=traffic.requests))


def _good(answers: Sequence[tuple[Completion, ...]]) -> list[Completion | None]:
    """The first row of each answer, None where it failed."""
    return [row if row.fault is None else None for row, *_ in answers]


def _pairs(first: Sequence[Completion | None], second: Sequence[Completion | None]) -> list[list[Completion]]:
    """Answers to the same request, where both came."""
    return [[a, b] for a, b in zip(first, second, strict=True) if a is not None and b is not None]


def _append(sides: list[list[Completion]], answers: Sequence[tuple[Completion, ...]]) -> None:
    for side, answer in zip(sides, _good(answers), strict=True):
        if answer is not None:
            side.append(answer)
