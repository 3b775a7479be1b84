"""The head-count table: the verdict's rule, the rows, sglang's rule, and a few head counts on the emulated device."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from waveproof.fixtures.head_count_process import SECTIONS, cells_of
from waveproof.fixtures.head_counts import (
    NON_PERSISTENT,
    PERSISTENT,
    PHASES,
    PREFILL,
    Cell,
    HeadsNotUnderstood,
    Outcome,
    abstract,
    decide,
    parse_heads,
    ranges,
    rows,
)
from waveproof.fixtures.sglang_head_rule import SglangRuleNotFound, decode_parameters, sglang_heads, unknown_arguments
from waveproof.reports.cli_heads import document, table

DECODE = PHASES[0]


class MadeUpLibrary:
    """Takes some head counts in one mode, and answers wrongly for some."""

    def __init__(self, native: dict[int, str], wrong: tuple[int, ...] = (), wrong_padded: bool = False) -> None:
        self.takes, self.wrong, self.wrong_padded = native, wrong, wrong_padded
        self.padded_calls: list[tuple[int, int, str]] = []

    def native(self, heads: int) -> tuple[Outcome, ...]:
        if heads in self.wrong:
            return tuple(Outcome(mode, "wrong", "off by 2") for mode in DECODE.modes)
        tried = []
        for mode in DECODE.modes:
            takes = self.takes.get(heads) == mode
            tried.append(Outcome(mode, "right", of_bound=0.5) if takes else Outcome(mode, "refused", f"nhead={heads}"))
            if takes:
                break
        return tuple(tried)

    def padded(self, heads: int, target: int, mode: str) -> Outcome:
        self.padded_calls.append((heads, target, mode))
        if self.wrong_padded:
            return Outcome(mode, "wrong", "off by 3")
        return Outcome(mode, "right", of_bound=0.25)

    def cell(self, heads: int, arch: str = "gfx950") -> Cell:
        return decide(arch, "bf16", DECODE, heads, self.native, self.padded)


def test_native_in_the_first_mode_has_no_reason() -> None:
    library = MadeUpLibrary({16: NON_PERSISTENT})
    cell = library.cell(16)
    assert (cell.verdict, cell.mode, cell.target) == ("native", NON_PERSISTENT, None)
    assert (cell.reasons, cell.of_bound) == ((), 0.5)
    assert not library.padded_calls


def test_native_in_the_second_mode_tells_what_the_first_said() -> None:
    cell = MadeUpLibrary({32: PERSISTENT}).cell(32)
    assert (cell.verdict, cell.mode, cell.reasons) == ("native", PERSISTENT, ("non-persistent: nhead=32",))


def test_padded_goes_to_the_smallest_right_head_count_in_its_mode() -> None:
    library = MadeUpLibrary({16: NON_PERSISTENT, 32: PERSISTENT, 128: NON_PERSISTENT}, wrong=(24,))
    cell = library.cell(20)
    assert (cell.verdict, cell.target, cell.mode, cell.of_bound) == ("padded", 32, PERSISTENT, 0.25)
    assert cell.reasons == ("non-persistent: nhead=20", "persistent: nhead=20")
    assert library.padded_calls == [(20, 32, PERSISTENT)]


def test_wrong_is_told_even_where_pads_help() -> None:
    cell = MadeUpLibrary({128: NON_PERSISTENT}, wrong=(16,)).cell(16)
    assert (cell.verdict, cell.target) == ("padded", 128)
    assert cell.reasons == ("non-persistent: wrong, off by 2", "persistent: wrong, off by 2")


@pytest.mark.parametrize(("wrong", "verdict"), [((), "refused"), ((20,), "wrong")])
def test_without_a_target_the_verdict_is_that_of_the_call_itself(wrong: tuple[int, ...], verdict: str) -> None:
    cell = MadeUpLibrary({16: NON_PERSISTENT}, wrong).cell(20)
    assert (cell.verdict, cell.target) == (verdict, None)
    assert cell.reasons[-1] == "no head count up to 128 is right"


def test_pads_that_do_not_help_are_told() -> None:
    library = MadeUpLibrary({16: NON_PERSISTENT, 32: NON_PERSISTENT}, wrong_padded=True)
    cell = library.cell(12)
    assert cell.verdict == "refused"
    assert cell.reasons[-1] == "padded to 16 heads: non-persistent: wrong, off by 3"
    assert library.padded_calls == [(12, 16, NON_PERSISTENT)]


def test_rows_merge_consecutive_head_counts_of_one_verdict() -> None:
    library = MadeUpLibrary({4: NON_PERSISTENT, 8: NON_PERSISTENT})
    made = rows([library.cell(heads) for heads in range(1, 11)])
    assert [(row.range, row.how) for row in made] == [
        ("1-3", "padded to 4, non-persistent"),
        ("4", "native, non-persistent"),
        ("5-7", "padded to 8, non-persistent"),
        ("8", "native, non-persistent"),
        ("9-10", "refused"),
    ]
    assert made[0].reason == "non-persistent: nhead=H; persistent: nhead=H"


def test_rows_do_not_bridge_a_gap() -> None:
    library = MadeUpLibrary({16: NON_PERSISTENT})
    assert [row.range for row in rows([library.cell(heads) for heads in (1, 2, 4, 5)])] == ["1-2", "4-5"]


def test_reasons_and_actions_that_differ_name_their_head_counts() -> None:
    library = MadeUpLibrary({16: NON_PERSISTENT})
    cells = [library.cell(heads) for heads in range(1, 6)]
    cells[3] = dataclasses.replace(cells[3], reasons=("KeyError: 4", cells[3].reasons[1]))
    cells = [dataclasses.replace(cell, sglang="repeat" if cell.heads == 4 else "tile") for cell in cells]
    (row,) = rows(cells)
    assert row.reason == "non-persistent: nhead=H (1-3, 5); persistent: nhead=H; KeyError: H (4)"
    assert row.sglang == "tile (1-3, 5); repeat (4)"


def test_equal_sections_of_two_architectures_are_shown_once() -> None:
    library = MadeUpLibrary({16: NON_PERSISTENT})
    both = [library.cell(heads, arch) for arch in ("gfx942", "gfx950") for heads in range(1, 17)]
    assert [row.arches for row in rows(both)] == [("gfx942", "gfx950")] * 2
    other = MadeUpLibrary({8: NON_PERSISTENT})
    differing = both[:16] + [other.cell(heads, "gfx950") for heads in range(1, 17)]
    assert [row.arches for row in rows(differing)] == [("gfx942",)] * 2 + [("gfx950",)] * 3


@pytest.mark.parametrize(
    ("reason", "heads", "queries", "text"),
    [
        ("nhead=1 and max_seqlen_q=1 not supported", 1, 1, "nhead=H and max_seqlen_q=1 not supported"),
        ("KeyError: 24", 12, 2, "KeyError: 2H"),
        ("KeyError: 12", 12, 1, "KeyError: H"),
        ("only support num_q_heads/num_kv_heads==16 or 128", 16, 1, "only support num_q_heads/num_kv_heads==16 or 128"),
    ],
)  # fmt: skip
def test_head_counts_in_words_become_h(reason: str, heads: int, queries: int, text: str) -> None:
    assert abstract(reason, heads, queries) == text


def test_heads_as_text() -> None:
    assert parse_heads("1-3,16, 2-4") == (1, 2, 3, 4, 16)
    assert ranges(parse_heads("1-3, 5,7-8")) == "1-3, 5, 7-8"
    assert parse_heads(ranges((1, 2, 9))) == (1, 2, 9)
    for text in ("0", "129", "5-3", "twelve", ""):
        with pytest.raises(HeadsNotUnderstood, match="no number or range within 1-128"):
            parse_heads(text)


def test_table_and_document() -> None:
    from rich.console import Console

    pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")
    cells = [MadeUpLibrary({16: NON_PERSISTENT}).cell(heads) for heads in range(1, 17)]
    console = Console(width=160, record=True)
    console.print(table(cells))
    lines = [line for line in console.export_text().splitlines() if "bf16" in line]
    assert [[word in line for word in ("1-15", "padded", "native")] for line in lines] == [
        [True, True, False],
        [False, False, True],
    ]
    read = json.loads(document(cells, ["a note"]))
    assert (len(read["cells"]), read["notes"]) == (16, ["a note"])
    assert read["cells"][11] | {"reasons": []} == {
        "arch": "gfx950", "dtype": "bf16", "phase": "decode", "heads": 12, "verdict": "padded", "mode": NON_PERSISTENT,
        "target": 16, "reasons": [], "of_bound": 0.25, "kernels": [], "sglang": "",
    }  # fmt: skip


# sglang ---------------------------------------------------------------------------------------------------------------


def test_what_the_installed_sglang_does() -> None:
    try:
        rule = sglang_heads()
    except SglangRuleNotFound as reason:
        pytest.skip(str(reason))
    if rule.version != "0.5.23":
        pytest.skip(f"sglang {rule.version}: what is said here is of 0.5.23")
    of = {heads: rule.action(heads, False, False).text for heads in range(1, 129)}
    assert of[12] == "zero-pad to 16, persistent"
    assert of[4] == of[8] == "repeat to 16, non-persistent"
    assert {of[heads] for heads in (*range(1, 4), 5, 11, 15)} == {"tile to 16, non-persistent"}
    assert of[16] == of[128] == "as it is, non-persistent"
    assert of[32] == of[112] == "as it is, persistent"
    assert {text for heads, text in of.items() if heads > 16 and heads % 16} == {"refuses"}
    assert rule.action(20, False, False).refusal.startswith("Aiter MLA supports num_head of 4, 8, 12, or multiples of")
    assert rule.action(16, True, False).text == "as it is, persistent"
    assert [rule.action(heads, False, True).text for heads in (4, 12)] == ["as it is", "zero-pad to 16"]


BACKEND = """
_use_mla_ps_kernel = get_bool_env_var("X", "True")
class Backend:
    def __init__(self):
        if self.use_mla:
            _low = 3
            _valid_heads = self.num_head == 8
            {assertion}
            self.num_head_padded = 16
            self.head_pad_mode = "zero"
            raise SystemExit("not a statement of the rule")
    def decode(self):
        self._mla_decode_fwd_with_head_pad(1, new=2, q=3)
    def prefill(self):
        if self.head_pad_mode == "zero":
            pass
        mla_prefill_fwd()
"""


def test_only_the_statements_of_the_rule_run(tmp_path: Path) -> None:
    file = tmp_path / "backend.py"
    file.write_text(BACKEND.format(assertion='assert _valid_heads, f"only 8, not {self.num_head}"'))
    rule = sglang_heads(file)
    assert rule.action(8, False, False).text == "zero-pad to 16, persistent"
    assert rule.action(8, False, True).text == "zero-pad to 16"
    assert (rule.action(9, False, False).text, rule.action(9, False, False).refusal) == ("refuses", "only 8, not 9")
    assert unknown_arguments(rule, ("q", "k")) == ("new",)


def test_a_source_without_the_rule_is_named(tmp_path: Path) -> None:
    file = tmp_path / "backend.py"
    file.write_text("_use_mla_ps_kernel = 1\n")
    with pytest.raises(SglangRuleNotFound, match=r"backend\.py of sglang \? has no rule for heads"):
        sglang_heads(file)


def test_parameters_of_decode(tmp_path: Path) -> None:
    file = tmp_path / "mla.py"
    file.write_text("def mla_decode_fwd(q, k, *, s=None): pass\n")
    assert decode_parameters(file) == ("q", "k", "s")


# The emulated device --------------------------------------------------------------------------------------------------

SPOT = (12, 16, 20, 128)
ALIKE = {
    ("bf16", "decode"): ("padded 16", "native", "padded 32 persistent", "native"),
    ("bf16", "verify 2"): ("padded 16", "native", "refused", "wrong"),
    ("bf16", "verify 4"): ("padded 16", "native", "refused", "wrong"),
    ("bf16", "prefill"): ("padded 16", "native", "padded 128", "native"),
    ("fp8", "decode"): ("padded 16", "native", "padded 32 persistent", "native"),
    ("fp8", "verify 2"): ("padded 16", "native", "padded 128 persistent", "native persistent"),
    ("fp8", "prefill"): ("refused", "refused", "refused", "refused"),
}
EXPECTED = {
    "gfx942": ALIKE | {("fp8", "verify 4"): ("padded 16", "native", "padded 128 persistent", "native persistent")},
    "gfx950": ALIKE
    | {
        ("fp8", "verify 4"): (
            "padded 128 persistent",
            "padded 128 persistent",
            "padded 128 persistent",
            "native persistent",
        )
    },
}
"""On amd-aiter 0.1.7.post2.dev18."""
FEW = {
    "gfx942": (("bf16", "verify 2"), ("fp8", "decode")),
    "gfx950": (("bf16", "decode"),),
}


def check(arch: str, sections: Sequence[tuple[str, str]]) -> dict[tuple[str, str, int], Cell]:
    """Decide in a process of its own, and hold the verdicts against what is expected."""
    pytest.importorskip("aiter_meta", reason="amd-aiter is not installed")
    found = [one for one in cells_of(arch, SPOT, sections) if isinstance(one, Cell)]
    cells = {(cell.dtype, cell.phase, cell.heads): cell for cell in found}
    assert list(cells) == [(*section, heads) for section in sections for heads in SPOT]
    for dtype, phase in sections:
        for heads, wanted in zip(SPOT, EXPECTED[arch][dtype, phase], strict=True):
            cell = cells[dtype, phase, heads]
            told = f"{cell.verdict} {cell.target or ''} {cell.mode if cell.mode == PERSISTENT else ''}"
            assert " ".join(told.split()) == wanted, cell
            right = cell.of_bound is not None and cell.of_bound <= 1
            assert right == (cell.verdict in ("native", "padded")), cell
            assert bool(cell.kernels) == (cell.verdict != "refused"), cell
    return cells


def test_gfx950() -> None:
    cells = check("gfx950", FEW["gfx950"])
    twelve = cells["bf16", "decode", 12]
    assert twelve.reasons == (
        "non-persistent: nhead=12 not supported",
        "persistent: nhead=12 and max_seqlen_q=1 not supported",
    )
    assert twelve.kernels == ("mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co", "_fwd_kernel_stage2_asm")
    assert cells["bf16", "decode", 20].kernels == ("mla_a16w16_qh16_m16x4_n16x1_coex0_mask1_ps.co",)


def test_gfx942() -> None:
    cells = check("gfx942", FEW["gfx942"])
    assert cells["fp8", "decode", 12].reasons[0] == "non-persistent: KeyError: 12"
    unmasked = cells["bf16", "verify 2", 128]
    assert unmasked.reasons[0].startswith("non-persistent: wrong, attention output off by 1.1 where")
    assert unmasked.of_bound is not None
    assert unmasked.of_bound > 100


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_all_phases(arch: str) -> None:
    cells = check(arch, SECTIONS)
    assert cells["bf16", "prefill", 12].mode == PREFILL
    assert cells["bf16", "prefill", 12].reasons[0].startswith("mla_prefill_asm_fwd:only support num_q_heads")
    assert "NaN or unwritten in 50% of the output (KV 129 and 129)" in cells["fp8", "verify 2", 128].reasons[0]
