"""Coverages with a fault, and right ones that look like it: what the rules of a coverage have to tell apart.

Upstream is the stand-in, known in full; the fault is in how a deployment is asked about or in what is said of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from waveproof.fixtures.deployment import rules
from waveproof.fixtures.deployment.attention import DECODE, PREFILL
from waveproof.fixtures.deployment.coverage import cover
from waveproof.fixtures.deployment.plan import KV_DTYPES, Deployment, product_for
from waveproof.fixtures.deployment.upstream import Upstream
from waveproof.fixtures.deployment.verdicts import Coverage, Remedy, Row, Tuned, Verdict
from waveproof.fixtures.dispatch.oracle import Answer, Question
from waveproof.fixtures.dispatch.rulings import Ruling, Use
from waveproof.fixtures.shapes.served_model import ServedModel, built_in
from waveproof.fixtures.shapes.weights import Weight
from waveproof.fixtures.tables.lookup import Lookup
from waveproof.selftest import stand_in_upstream
from waveproof.selftest.planted import Planted
from waveproof.selftest.stand_in_upstream import MI355X, UPSTREAM

K3, DEEPSEEK = built_in("Kimi-K3"), built_in("DeepSeek-V3")
OTHER_OF_12 = replace(DEEPSEEK, name="another of 12 heads", heads=48)
"""12 heads a rank, too: with TP 4."""

Change = Callable[[Row], Row]


def deployments(kind: type[Deployment] = Deployment) -> list[Deployment]:
    """Kimi K3, DeepSeek V3 and the other of 12 heads: some TP, one with DCP, both dtypes, three drafted tokens."""
    plans = [(K3, 8, 1), (K3, 4, 1), (K3, 8, 2), (K3, 2, 1), (DEEPSEEK, 8, 1), (DEEPSEEK, 16, 1), (OTHER_OF_12, 4, 1)]
    return [kind(model, tp, MI355X, dtype, 3, dcp) for model, tp, dcp in plans for dtype in KV_DTYPES]


def covered(
    change: Change = lambda row: row, upstream: Upstream = UPSTREAM, asked: Iterable[Deployment] = ()
) -> list[Coverage]:
    """Coverages of some deployments, each row changed."""
    found = [cover(one, upstream) for one in asked or deployments()]
    return [replace(one, rows=tuple(map(change, one.rows))) for one in found]


def broken(coverages: Sequence[Coverage], upstream: Upstream = UPSTREAM) -> tuple[str, ...]:
    """Rules that break; upstream is asked as it is."""
    assert coverages
    return rules.broken(coverages, upstream)


def _without(gone: Callable[[Row], object]) -> Callable[[], Sequence[str]]:
    """Some rows are left out."""

    def plant() -> Sequence[str]:
        kept = [replace(one, rows=tuple(row for row in one.rows if not gone(row))) for one in covered()]
        assert kept != covered(), "nothing is left out"
        return broken(kept)

    return plant


def _said(change: Change) -> Callable[[], Sequence[str]]:
    """Rows are right, and something else is said of them; a change of nothing is no fault."""

    def plant() -> Sequence[str]:
        changed = covered(change)
        assert changed != covered(), "the fault changes nothing"
        return broken(changed)

    return plant


def _asked(change: Callable[[Use], Use]) -> Callable[[], Sequence[str]]:
    """Something else is asked than is due."""
    return lambda: broken(covered(upstream=replace(UPSTREAM, rule=lambda use: stand_in_upstream.rule(change(use)))))


@dataclass(frozen=True)
class RoundedDown(Deployment):
    """Takes any TP, and drops the heads that are left over."""

    def __post_init__(self) -> None:
        """Refuses nothing."""


class WithoutTp(Deployment):
    """Gives each rank all heads."""

    @property
    def heads(self) -> int:
        """Of the model."""
        return self.model.heads


class OneTooFew(Deployment):
    """Verifies the drafted tokens without the last one before them."""

    @property
    def verify_length(self) -> int:
        """One query too few."""
        return self.spec_tokens


def _kind(kind: type[Deployment]) -> Callable[[], Sequence[str]]:
    return lambda: broken(covered(asked=deployments(kind)))


def _ungathered(row: Row) -> Row:
    """The heads of a rank, though those of several are gathered."""
    if row.attention is None:
        return row
    return replace(row, attention=replace(row.attention, heads=row.attention.use.heads))


def _tuned(row: Row, change: Callable[[Tuned], Tuned]) -> Row:
    return row if row.tuned is None else replace(row, tuned=change(row.tuned))


def _instead(old: Verdict, new: Verdict) -> Change:
    """Attention that is called something else."""

    def change(row: Row) -> Row:
        is_meant = row.attention is not None and row.verdict is old
        return replace(row, verdict=new, why=row.why or "so it is said") if is_meant else row

    return change


def _one_model_apart() -> Sequence[str]:
    changed = [
        replace(one, rows=tuple(map(_instead(Verdict.PADDED, Verdict.ERROR), one.rows)))
        if one.deployment.model is K3
        else one
        for one in covered()
    ]
    return broken(changed)


def _pads_to_14(use: Use) -> Ruling:
    """Twelve heads padded to fourteen, and called accepted."""
    ruling = stand_in_upstream.rule(use)
    if ruling.state != "padded" or ruling.question is None:
        return ruling
    question = replace(ruling.question, heads=14)
    return replace(ruling, question=question, answer=Answer(question, True, "mla_qh14.co", "kernel", (1, 1, 1)))


def _with_24_advised(row: Row) -> Row:
    if row.attention is None or row.verdict is not Verdict.PADDED:
        return row
    return replace(row, remedies=(Remedy("TP 4: fast kernel", replace(row.attention.use, heads=24, dcp=1)),))


def _cheap(row: Row) -> Row:
    """The share of added heads, not the ratio."""
    if row.attention is None or row.verdict is not Verdict.PADDED:
        return row
    added = Fraction(row.attention.kernel_heads - row.attention.heads, row.attention.kernel_heads)
    return replace(row, cost=f"{float(1 + added):.2f}x the multiply-adds")


def _other_gpu(arch: str, cu_num: int, family: str, n: int, k: int, ms: Sequence[int]) -> Lookup:
    return stand_in_upstream.gemm(arch, 304, family, n, k, ms)


def _whole(tuned: Tuned) -> Tuned:
    weight = tuned.weight
    return replace(tuned, weight=replace(weight, n=weight.whole)) if weight.split == "n" else tuned


def _split_by_outputs(tuned: Tuned) -> Tuned:
    """``o_proj`` as if it were column-parallel."""
    weight = tuned.weight
    if weight.name != "o_proj" or weight.n is None:
        return tuned
    return replace(tuned, weight=replace(weight, split="n", n=weight.n // 8, k=weight.whole, whole=weight.n))


def _decode_only(tuned: Tuned) -> Tuned:
    return replace(tuned, tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256))


def _all_tuned(row: Row) -> Row:
    return replace(row, verdict=Verdict.FAST) if row.tuned is not None else row


def _sampling(row: Row) -> Row:
    return replace(row, verdict=Verdict.FAST) if row.verdict is Verdict.WRONG else row


def scale_left_out(use: Use) -> Ruling:
    """A dispatcher that takes fp8, with a kernel that is known to answer wrongly."""
    ruling = stand_in_upstream.rule(use)
    return replace(ruling, wrong="the output lacks kv_scale") if use.kv_dtype == "fp8" else ruling


def _fast_though_wrong() -> Sequence[str]:
    upstream = replace(UPSTREAM, rule=scale_left_out)
    return broken(covered(_instead(Verdict.WRONG, Verdict.FAST), upstream), upstream)


def _called_wrong() -> Sequence[str]:
    upstream = replace(UPSTREAM, rule=scale_left_out)
    return broken(covered(upstream=upstream), upstream)


def _silent(row: Row) -> Row:
    """What was never asked is not known, and that stops nothing."""
    return row if row.attention is None else replace(row, attention=None, verdict=Verdict.UNKNOWN, why="not asked")


def _weighed(weight: Callable[[Weight], bool], change: Callable[[Weight], Weight]) -> Callable[[], Sequence[str]]:
    """Some weights have another shape."""

    def other(tuned: Tuned) -> Tuned:
        return replace(tuned, weight=change(tuned.weight)) if weight(tuned.weight) else tuned

    return _said(lambda row: _tuned(row, other))


def _upside_down(row: Row) -> Row:
    return replace(row, cost=row.cost.replace("16/12", "12/16"))


def _wordless(row: Row) -> Row:
    return replace(row, why="") if row.verdict is Verdict.REFUSED else row


FAULTS = (
    Planted("remainder dropped", "heads // tp of a TP that does not divide them", rules.ASKED,
            lambda: broken(covered(asked=[RoundedDown(K3, 7, MI355X, "bf16", 3)]))),
    Planted("TP ignored", "every rank is given all heads", rules.ASKED, _kind(WithoutTp)),
    Planted("DCP ignored", "the dispatcher is asked about the heads before they are gathered", rules.ASKED,
            _asked(lambda use: replace(use, dcp=1))),
    Planted("DCP not counted", "gathered heads are asked about, and called those of a rank", rules.ASKED,
            _said(_ungathered)),
    Planted("one query too few", "a verification of N drafted tokens is asked about with N queries", rules.ASKED,
            _kind(OneTooFew)),
    Planted("cache dtype ignored", "an fp8 cache is asked about as bf16", rules.ASKED,
            _asked(lambda use: replace(use, kv_dtype="bf16"))),
    Planted("other architecture", "gfx942 is asked about in place of gfx950", rules.ASKED,
            _asked(lambda use: replace(use, arch="gfx942"))),
    Planted("prefill from decode", "prefill is given the verdict on decoding", rules.ASKED,
            _asked(lambda use: replace(use, phase="decode", query_length=1))),
    Planted("refused is fast", "what AITER or sglang refuses is called a fast kernel", rules.ACCEPTED,
            _said(_instead(Verdict.REFUSED, Verdict.FAST))),
    Planted("padded is fast", "the padded call is called a fast kernel, without its cost", rules.ACCEPTED,
            _said(_instead(Verdict.PADDED, Verdict.FAST))),
    Planted("padded to a refused count", "12 heads are padded to 14, which AITER does not take", rules.TARGET,
            lambda: broken(covered(upstream=replace(UPSTREAM, rule=_pads_to_14)))),
    Planted("fast is fallback", "a call that AITER takes is called a generic fallback", rules.NO_FALLBACK,
            _said(_instead(Verdict.FAST, Verdict.FALLBACK))),
    Planted("refused remedy", "24 heads a rank are advised, which sglang refuses", rules.BETTER,
            _said(_with_24_advised)),
    Planted("cheap padding", "16 heads for 12 are said to cost 4/16 more", rules.COST, _said(_cheap)),
    Planted("verdict by model", "Kimi K3's 12 heads fail where another model's are padded", rules.SAME,
            _one_model_apart),
    Planted("whole weight", "a column-parallel weight is looked up as on one GPU", rules.SHARES,
            _said(lambda row: _tuned(row, _whole))),
    Planted("split the wrong way", "o_proj is split by its outputs", rules.SHARES,
            _said(lambda row: _tuned(row, _split_by_outputs))),
    Planted("other GPU's rows", "tables are asked for 304 compute units on a GPU of 256", rules.PRODUCT,
            lambda: broken(covered(upstream=replace(UPSTREAM, gemm=_other_gpu)))),
    Planted("drafts not counted", "tables are asked for one token of each request, though four are verified",
            rules.TOKENS, _said(lambda row: _tuned(row, _decode_only))),
    Planted("miss is fast", "a weight without rows is called tuned", rules.MISSED, _said(_all_tuned)),
    Planted("greedy is sampling", "a verifier that takes the argmax at every temperature is called fast", rules.GREEDY,
            _said(_sampling)),
    Planted("wrong is fast", "a kernel that leaves the cache's scale out is called fast", rules.RIGHT,
            _fast_though_wrong),
    Planted("no reason", "a refusal is printed without upstream's words", rules.WORDS, _said(_wordless)),
    Planted("other words", "a refusal is printed with words that are not upstream's", rules.WORDS,
            _said(lambda row: replace(row, why="no reason") if row.verdict is Verdict.REFUSED else row)),
    Planted("nobody asked", "attention is not known, and nobody asked about it", rules.COMPLETE, _said(_silent)),
    Planted("no decode", "decoding is left out", rules.COMPLETE, _without(lambda row: row.operator == DECODE)),
    Planted("no weights", "no table is looked up", rules.COMPLETE, _without(lambda row: row.tuned)),
    Planted("no verifiers", "tokens are drafted, and no verifier is looked at", rules.COMPLETE,
            _without(lambda row: row.operator.startswith("verify "))),
    Planted("two verdicts", "decoding has two rows", rules.COMPLETE,
            _said(lambda row: replace(row, operator=DECODE) if row.operator == PREFILL else row)),
    Planted("refused is not known", "a refusal is softened to a verdict that stops nothing", rules.RULED,
            _said(lambda row: replace(row, verdict=Verdict.UNKNOWN) if row.verdict is Verdict.REFUSED else row)),
    Planted("fast is an error", "a call that is taken is said to raise", rules.RULED,
            _said(_instead(Verdict.FAST, Verdict.ERROR))),
    Planted("another kernel", "the code object that is named is not the dispatcher's", rules.RULED,
            _said(lambda row: replace(row, kernel="mla_other.co") if row.attention and row.kernel else row)),
    Planted("not counted", "a refusal is put in brackets, as if sglang passed it by", rules.COUNTED,
            _said(lambda row: replace(row, taken=False) if row.verdict is Verdict.REFUSED else row)),
    Planted("ratio upside down", "12/16 is called 1.33x", rules.COST, _said(_upside_down)),
    Planted("half a projection", "gate and up are looked up as one of them", rules.SHARES,
            _weighed(lambda one: one.name.endswith("gate_up") and bool(one.n and one.whole),
                     lambda one: replace(one, n=(one.n or 0) // 2, whole=(one.whole or 0) // 2))),
    Planted("experts split", "the experts are shared out over the ranks, not their widths", rules.SHARES,
            _weighed(lambda one: one.experts > 0, lambda one: replace(one, experts=one.experts // 8))),
    Planted("top 1", "one expert for each token, where the model has more", rules.SHARES,
            _weighed(lambda one: one.experts > 0, lambda one: replace(one, top_k=1))),
    Planted("wide experts", "Kimi K3's experts are looked up as wide as the token", rules.SHARES,
            _weighed(lambda one: one.experts > 0 and one.k == 3584, lambda one: replace(one, k=7168))),
    Planted("miss is not known", "a weight without rows is called not known", rules.MISSED,
            _said(lambda row: replace(row, verdict=Verdict.UNKNOWN) if row.verdict is Verdict.FALLBACK else row)),
    Planted("no prefill steps", "tables are asked for decoding and small chunks alone", rules.TOKENS,
            _said(lambda row: _tuned(row, lambda one: replace(one, tokens=one.tokens[:-1])))),
)  # fmt: skip


# Right ones -----------------------------------------------------------------------------------------------------------


def _taking_12() -> Sequence[str]:
    """An AITER with a kernel for 12 heads, and an engine that does not pad them."""

    def answer(question: Question) -> Answer:
        if question.heads == 12:
            return Answer(question, True, "mla_qh12.co", "kernel", (1, 1, 1))
        return stand_in_upstream.answer(question)

    def rule(use: Use) -> Ruling:
        if use.heads * use.dcp != 12:
            return stand_in_upstream.rule(use)
        question = Question(
            use.arch, use.kv_dtype, use.kv_dtype, 12, use.query_length, use.phase != "prefill", use.page_size,
            use.phase == "prefill",
        )  # fmt: skip
        return Ruling(use, "native", "as it is", question, answer(question), "", ())

    upstream = replace(UPSTREAM, rule=rule, ask=lambda asked: {one: answer(one) for one in asked})
    return broken(covered(upstream=upstream), upstream)


def _tiling() -> Sequence[str]:
    def rule(use: Use) -> Ruling:
        ruling = stand_in_upstream.rule(use)
        return replace(ruling, state="tiled", sglang="repeats heads") if ruling.state == "padded" else ruling

    upstream = replace(UPSTREAM, rule=rule)
    return broken(covered(upstream=upstream), upstream)


def _on(model: ServedModel, tp: int, arch: str, backend: str = "aiter") -> Sequence[str]:
    plans = [Deployment(model, tp, product_for(arch), dtype, 3, 1, backend) for dtype in KV_DTYPES]
    return broken(covered(asked=plans))


RIGHT = (
    Planted("as it is", "refusals, pads and fallbacks are all there, and each is said as it is", "",
            lambda: broken(covered())),
    Planted("a kernel for 12", "12 heads are called fast: here AITER has a kernel for them", "", _taking_12),
    Planted("repeated heads", "the heads that are added are no zeros", "", _tiling),
    Planted("MI300X", "304 compute units are asked for: the GPU has them", "", lambda: _on(DEEPSEEK, 8, "gfx942")),
    Planted("left to sglang", "48 heads fall back though AITER takes them: sglang chose so", "",
            lambda: _on(K3, 2, "gfx950", "auto")),
    Planted("known to be wrong", "a call that is taken is not called fast: its kernel answers wrongly", "",
            _called_wrong),
    Planted("without widths", "shapes are not known, and nothing is looked up", "",
            lambda: _on(built_in("GLM-4.7-Flash"), 2, "gfx950")),
)  # fmt: skip

PLANTED: tuple[Planted, ...] = FAULTS + RIGHT
