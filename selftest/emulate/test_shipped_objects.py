"""All MLA objects that AITER ships: what reaches them through its own host code, and what they compute."""

from __future__ import annotations

import functools
import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")

import torch

from waveproof.fixtures import mla_findings, mla_objects
from waveproof.fixtures.aiter_mla_calls import NATIVE_FP8, Call, Form
from waveproof.fixtures.mla_work import work_table
from waveproof.golden.judges.mla import error_bounds
from waveproof.golden.judges.mla_fp8 import with_fp8_weights
from waveproof.golden.references.mla import attend
from waveproof.kernels.runtimes.emulate import aiter_host, aiter_launch
from waveproof.kernels.runtimes.emulate.decode import disassemble
from waveproof.kernels.runtimes.emulate.launch import Machine
from waveproof.kernels.runtimes.emulate.program import Program
from waveproof.selftest.emulate.shipped_mla import shipped

ARCHES = ("gfx942", "gfx950")
BF16 = torch.bfloat16
UNREACHED = {
    "gfx942": (),
    "gfx950": (
        "mla_a8w8_qh128_m32x4_n16x2_msk0.co",
        "mla_a8w8_qh128_m32x4_n16x2_msk1_ps.co",
        "mla_a8w8_qh16_qseqlen2_gqaratio16_ps_page.co",
        "mla_a8w8_qh16_qseqlen4_gqaratio16_ps_page.co",
    ),
}


@pytest.mark.parametrize("arch", ARCHES)
def test_what_is_reached(arch: str) -> None:
    """Sixteen objects on each; the forms that are run reach all of them."""
    found = mla_objects.reach(arch, mla_objects.grid(heads=(12, 16, 128), pages=(1, 64)))
    assert found.unreached == UNREACHED[arch]
    assert len(found.objects) == 16
    assert "heads 128, queries 1/2/3/4/5/8, pages 1/64, decode/persistent" in found.described(
        "mla_dec_stage1_bf16_a16w16_subQ128_mqa128.co"
    )
    assert any("unsupport current data type or shape" in text for text in found.refusals)
    run = mla_objects.reach(arch, mla_objects.forms_to_run(arch))
    assert run.objects.keys() == found.objects.keys()
    assert not run.refusals


def check(arch: str, form: Form, parts: int) -> mla_objects.Attempt:
    """Run a form; it has to be right, or wrong where a finding says so."""
    one = mla_objects.attempt(arch, form, parts=parts)
    assert not one.failure, one.failure
    known = mla_findings.finding_of(one)
    assert one.right == (known is None), f"{one}; known: {known}"
    return one


ALL = [(arch, form, parts) for arch in ARCHES for form in mla_objects.forms_to_run(arch) for parts in (1, 2)]
FAST = [
    ("gfx950", Form(BF16, BF16, 16, 4), 2),
    ("gfx950", Form(BF16, BF16, 128, 1), 1),
    ("gfx950", Form(BF16, torch.float8_e4m3fn, 16, 4, persistent=True), 1),
    ("gfx942", Form(BF16, torch.float8_e4m3fnuz, 16, 1, persistent=True), 2),
    ("gfx950", Form(torch.float8_e4m3fn, torch.float8_e4m3fn, 128, 1, persistent=True), 1),
    ("gfx942", Form(torch.float8_e4m3fnuz, torch.float8_e4m3fnuz, 16, 2), 2),
]


@pytest.mark.parametrize(("arch", "form", "parts"), FAST, ids=str)
def test_objects(arch: str, form: Form, parts: int) -> None:
    check(arch, form, parts)


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "form", "parts"), ALL, ids=str)
def test_every_object(arch: str, form: Form, parts: int) -> None:
    check(arch, form, parts)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHES)
def test_no_object_knows_pages(arch: str) -> None:
    """Each takes one token of a page, whatever the page size that the host passes."""
    for form in mla_objects.forms_to_run(arch):
        if not (form.persistent and form.query_dtype is form.kv_dtype is BF16 and form.heads == 128):
            assert mla_objects.pages_are_ignored(arch, form), form


@pytest.mark.parametrize("parts", [1, 2])
def test_persistent_four_queries_leave_out_kv_scale(parts: int) -> None:
    form = Form(torch.float8_e4m3fn, torch.float8_e4m3fn, 16, 4, persistent=True)
    one = check("gfx950", form, parts)
    assert one.factor == pytest.approx(1 / Call(form, (64,)).kv_scale, rel=2e-3)
    assert one.cosine > 0.9998
    assert one.lse_of_bound is None or one.lse_of_bound <= 1


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("name", "register", "address", "uses"),
    [("qseqlen4_gqaratio16_ps", "s97", 0x234, [0x794]), ("qseqlen2_gqaratio16_ps", "s43", 0x230, None)],
)
def test_where_kv_scale_is_used(arch: str, name: str, register: str, address: int, uses: list[int] | None) -> None:
    """In the binary: loaded once, and multiplied after a reciprocal by the object that is right only."""
    code = shipped(arch, f"mla_a8w8_qh16_{name}.co")
    program, at = Program(code), 0
    where: dict[int, str] = {}
    while at < code.text[1]:
        instruction = program.instruction_or_word(at)
        where[at] = disassemble(instruction)
        at += instruction.size
    assert where[address].startswith(f"s_load_dword {register}, ")
    used = [at for at, text in where.items() if f", {register}," in text + "," and at != address]
    reciprocals = [at for at, text in where.items() if text.startswith("v_rcp_f32")]
    if uses is not None:
        assert used == uses
        assert reciprocals[1] == 0x3684
    else:
        assert max(used) > reciprocals[1] > used[0]


def test_128_heads_do_not_mask() -> None:
    """Two queries of 128 heads in bf16: the first one has the result of one that sees all tokens, the last its own."""
    call = Call(Form(BF16, BF16, 128, 2), (150,), filled=True)
    launcher = aiter_launch.launcher(Machine("gfx950"))
    aiter_host.launch("gfx950", aiter_host.DECODE, launcher, **call.arguments())
    output, _ = call.result()
    rows = call.kv[call.kv_indices.long()].reshape(-1, 576)
    for query in range(2):
        want = attend(call.q[query : query + 1], rows, 192**-0.5)
        bounds = error_bounds(want, torch.bfloat16)
        assert ((output[query] - want.output[0]).abs() <= bounds.output[0]).all()
    masked, bounds = call.expected(0)
    assert ((output[0] - masked.output[0]).abs() > 10 * bounds.output[0]).any()


def test_bf16_of_128_heads_has_no_persistent_object() -> None:
    one = check("gfx950", Form(BF16, BF16, 128, 1, persistent=True), 1)
    assert one.unwritten == 2 * 128 * 512


@pytest.mark.parametrize("form", mla_findings.FOREIGN_FORMS.values(), ids=mla_findings.FOREIGN_FORMS)
def test_types_that_the_host_does_not_test(form: Form) -> None:
    one = mla_objects.attempt("gfx950", form)
    assert one.code_object.endswith(".co")
    assert not one.right


@pytest.mark.slow
@pytest.mark.parametrize(("lengths", "share"), [((300, 40), 2), ((300, 280), 0)])
def test_ragged_fp8_requests_are_merged_with_what_nobody_wrote(lengths: tuple[int, int], share: int) -> None:
    """``get_meta_param`` of aiter/mla.py takes blocks of 16 tokens for two queries; the fp8 object divides by 64.

    With two splits, which AITER's Python chooses itself for these lengths, it merges ``ceil(40 / 16)``, at most two,
    and the object has written one: queries of the short request, both of them, get what ``torch.empty`` held.
    """
    form = Form(NATIVE_FP8["gfx950"], NATIVE_FP8["gfx950"], 16, 2)
    call = Call(form, lengths, 2, filled=True)
    launcher = aiter_launch.launcher(Machine("gfx950"))
    aiter_host.launch("gfx950", aiter_host.DECODE, launcher, **call.arguments())
    assert not call.partial[:, 0].isnan().any()
    unwritten = call.lse[:, 1].isnan().flatten(1).all(1)
    assert unwritten.tolist() == [False, False, *[share > 0] * 2]
    assert call.partial[unwritten, 1].isnan().all()


def test_work_table() -> None:
    indptr = torch.tensor([0, 100, 180], dtype=torch.int32)
    whole = work_table(indptr, 3, 16, 1)
    assert whole.work_info_set.tolist() == [[0, -1, 0, 3, 0, 100, 0, 0], [1, -1, 3, 6, 100, 180, 0, 0]]
    assert whole.work_indptr.tolist() == [0, 1, 2]
    assert whole.rows == 0
    split = work_table(indptr, 2, 128, 2)
    assert split.work_info_set[:4].tolist() == [
        [0, 0, 0, 1, 0, 64, 36, 0],
        [0, 1, 0, 1, 64, 99, 1, 0],  # the first query does not see the last token
        [0, 2, 1, 2, 0, 64, 36, 0],
        [0, 3, 1, 2, 64, 100, 0, 0],
    ]
    assert split.partial_rows == ((0, 1), (2, 3), (4, 5), (6, 7))
    with pytest.raises(ValueError, match="80 indices do not make 6 pieces"):
        work_table(indptr[1:], 1, 16, 6)
    with pytest.raises(ValueError, match="12 heads"):
        work_table(indptr, 1, 12, 1)


def test_fp8_bounds_hold_for_rounded_weights_and_not_for_a_lost_scale() -> None:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 4, 576, generator=generator).to(torch.float8_e4m3fn).double()
    kv = torch.randn(90, 576, generator=generator).to(torch.float8_e4m3fn).double()
    want = attend(q, kv, 192**-0.5)
    bounds = with_fp8_weights(error_bounds(want, torch.bfloat16), want)
    scores = torch.einsum("qhd,kd->qhk", q, kv) * 192**-0.5
    scores = scores.masked_fill(torch.arange(90) >= want.visible[:, None, None], -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    rounded = weights.float().to(torch.float8_e4m3fn).double()
    output = (rounded @ kv[:, :512] / weights.sum(-1, keepdim=True)).bfloat16()
    assert ((output - want.output).abs() <= bounds.output).all()
    assert ((want.output / 1.3 - want.output).abs() > bounds.output).any()


def test_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from waveproof.reports.cli_emulate import app

    monkeypatch.setattr(os, "environ", dict(os.environ))
    fp8 = torch.float8_e4m3fn
    few = (Form(BF16, BF16, 16, 1), Form(fp8, fp8, 16, 4, persistent=True), Form(BF16, BF16, 12, 1))
    monkeypatch.setattr(mla_objects, "grid", lambda: few)
    monkeypatch.setattr(mla_objects, "forms_to_run", lambda arch: few[:2])
    monkeypatch.setattr(mla_objects, "attempt", functools.cache(mla_objects.attempt))
    told = CliRunner().invoke(app, ["objects", "--arch", "gfx950"])
    assert told.exit_code == 0, told.output
    assert "nothing asked for chooses it" in told.output
    assert "refused 1 times: mla_decode_stage1_asm_fwd: unsupport current data type" in told.output
    assert "WRONG (known)" in told.output
    monkeypatch.setattr(mla_findings, "finding_of", lambda one: None)
    assert CliRunner().invoke(app, ["objects", "--arch", "gfx950"]).exit_code == 1
