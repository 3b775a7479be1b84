"""Dispatchers with a fault, and ones that only look altered: copies of the installed sources with a line changed.

Each copy is asked like the installed one and compared with the reviewed answers and rulings. Files that are not
altered are links, so that nothing but the anchors stands here.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from waveproof.fixtures.dispatch.oracle import DTYPES, INSTALLED, Question, Site, ask
from waveproof.fixtures.dispatch.rulings import Phase, Sources, Use
from waveproof.fixtures.dispatch.sglang_backend import sglang_backend
from waveproof.fixtures.dispatch.snapshot import (
    ANSWERS_AS_REVIEWED,
    OBJECTS_SHIP,
    RULINGS_AS_REVIEWED,
    compare,
    judge_objects,
    load,
    take,
)
from waveproof.selftest.planted import Planted

ARCH = "gfx950"
MLA, ATTENTION = "aiter/mla.py", "aiter/ops/attention.py"
METADATA, REDUCE = "aiter_meta/csrc/kernels/mla/metadata/v1_2_device.cuh", "aiter_meta/csrc/kernels/mla/reduce.cu"
ASM = "aiter_meta/csrc/py_itfs_cu/asm_mla.cu"
OBJECTS = f"aiter_meta/hsa/{ARCH}/mla"


class AnchorGone(LookupError):
    """The installed source does not have the text that a fault is planted at, or has it more than once."""


@dataclass(frozen=True)
class Edit:
    """One change of a source."""

    old: str
    new: str
    count: int = 1
    """How often ``old`` stands there, all of which are changed."""

    def applied(self, text: str, name: str) -> str:
        """The changed text.

        Raises:
            AnchorGone: see there.
        """
        if text.count(self.old) != self.count:
            raise AnchorGone(f"{name} has {self.old!r} {text.count(self.old)} times, not {self.count}")
        return text.replace(self.old, self.new)


Change = Edit | str | None
"""An edit; the installed file that takes the place, by its path below ``site-packages``; None: the file is gone."""


def overlay(changes: Mapping[str, Change], folder: Path) -> Site:
    """A copy of the installed AITER with some files changed, the others linked.

    Args:
        changes: by path below ``site-packages``.
        folder: empty; the copy goes there.

    Raises:
        AnchorGone: see there.
    """
    installation = INSTALLED.installation
    for source in (installation.package, installation.meta):
        _overlay(source, folder / source.name, source.name, changes)
    return Site(folder)


def _overlay(source: Path, target: Path, name: str, changes: Mapping[str, Change]) -> None:
    if name in changes:
        change = changes[name]
        if isinstance(change, Edit):
            target.write_text(change.applied(source.read_text(encoding="utf-8"), name), encoding="utf-8")
        elif change is not None:
            shutil.copyfile(_installed(change), target)
    elif not any(path.startswith(f"{name}/") for path in changes) and name not in ("aiter", "aiter_meta"):
        target.symlink_to(source)
    else:
        target.mkdir()
        for child in source.iterdir():
            _overlay(child, target / child.name, f"{name}/{child.name}", changes)
        for path, change in changes.items():
            if isinstance(change, str) and path.rpartition("/")[0] == name and not (source / Path(path).name).exists():
                shutil.copyfile(_installed(change), target / Path(path).name)


def _installed(name: str) -> Path:
    return INSTALLED.installation.package.parent / name


QUESTIONS = tuple(
    Question(ARCH, q, kv, heads, length, persistent, prefill=prefill)
    for (q, kv), heads, length, (persistent, prefill) in product(
        DTYPES, (8, 12, 16, 32, 48, 128), (1, 2, 3, 5), ((False, False), (True, False), (False, True))
    )
)
_PHASES: tuple[tuple[Phase, int], ...] = (("decode", 1), ("verify", 4), ("prefill", 5))
USES = (
    *(
        Use(ARCH, heads, kv, phase, length, dcp=dcp)
        for heads, kv, (phase, length), dcp in product((8, 12, 16), ("bf16", "fp8"), _PHASES, (1, 2))
    ),
    Use(ARCH, 12, "bf16", "decode", 1, page_size=64),
    Use(ARCH, 16, "bf16", "decode", 1, page_size=64),
    Use(ARCH, 16, "bf16", "prefill", 5, page_size=64),
    Use(ARCH, 24, "bf16", "decode", 1),
    Use(ARCH, 128, "bf16", "decode", 1),
)


def broken_rules(sources: Sources, ruled: bool) -> list[str]:
    """Names of the rules that a dispatcher breaks.

    Args:
        sources: its own.
        ruled: compare rulings; otherwise answers.
    """
    now = take((ARCH,), sources, () if ruled else QUESTIONS, USES if ruled else ())
    judgements = compare(load(), now)
    if not ruled:
        judgements.append(judge_objects(ask(QUESTIONS, sources.aiter).values(), sources.aiter))
    return [one.rule for one in judgements if not one.holds]


def aiter_with(changes: Mapping[str, Change]) -> Callable[[], Sequence[str]]:
    """Plants changes in AITER."""

    def broken() -> Sequence[str]:
        with tempfile.TemporaryDirectory() as folder:
            return broken_rules(Sources(aiter=overlay(changes, Path(folder))), ruled=False)

    return broken


def sglang_with(*edits: Edit) -> Callable[[], Sequence[str]]:
    """Plants edits in sglang's AITER backend."""

    def broken() -> Sequence[str]:
        with tempfile.TemporaryDirectory() as folder:
            return broken_rules(Sources(backend=edited_backend(Path(folder), edits)), ruled=True)

    return broken


def edited_backend(folder: Path, edits: Sequence[Edit]) -> Path:
    """A copy of ``aiter_backend.py`` with edits.

    Raises:
        AnchorGone: see there.
        SglangRuleNotFound: sglang is not installed.
    """
    file = sglang_backend().file
    text = file.read_text(encoding="utf-8")
    for edit in edits:
        text = edit.applied(text, file.name)
    (folder / file.name).write_text(text, encoding="utf-8")
    return folder / file.name


def _in_aiter(name: str, fault: str, changes: Mapping[str, Change], due: str = ANSWERS_AS_REVIEWED) -> Planted:
    return Planted(name, fault, due, aiter_with(changes))


def _in_sglang(name: str, fault: str, *edits: Edit, due: str = RULINGS_AS_REVIEWED) -> Planted:
    return Planted(name, fault, due, sglang_with(*edits))


FP8 = "mla_a8w8_qh16_qseqlen1_gqaratio16.co"
BF16 = "mla_dec_stage1_bf16_a16w16_subQ16_mqa16.co"
_PREFILL = "mla_prefill_fwd(\n                        q_in,\n                        "

PLANTED = (
    _in_aiter(
        "head-gate-loosened",
        "aiter/mla.py lets 12 heads pass, for which there is no code object.",
        {MLA: Edit("get_mgc = {16: 16,", "get_mgc = {16: 16, 12: 16,")},
    ),
    _in_aiter(
        "head-gate-tightened",
        "128 heads are not in the table of aiter/mla.py any more.",
        {MLA: Edit("get_mgc = {16: 16, 128: 16}", "get_mgc = {16: 16}")},
    ),
    _in_aiter(
        "fold-removed",
        "Multiples of 16 heads are not viewed as 16 any more.",
        {MLA: Edit("in range(32, 512 + 1, 16) and", "in range(0) and")},
    ),
    _in_aiter(
        "fold-for-verify",
        "Heads are folded with several queries too, where the folded rows are of other tokens.",
        {MLA: Edit("and persistent_mode and max_seqlen_q == 1:", "and persistent_mode:")},
    ),
    _in_aiter(
        "fp8-block-gone",
        "The fp8 table has no row for 16 heads and three queries: a KeyError.",
        {MLA: Edit("        48: 64,\n", "")},
    ),
    _in_aiter(
        "workspace-gate",
        "get_mla_metadata_info_v1 asserts a multiple of 32 heads.",
        {ATTENTION: Edit("num_head_qo % 16 == 0", "num_head_qo % 32 == 0")},
    ),
    _in_aiter(
        "schedule-gate",
        "The metadata does not fold heads any more and refuses what aiter/mla.py folds.",
        {METADATA: Edit("&& (num_heads < 128))", "&& (num_heads < 16))")},
    ),
    _in_aiter(
        "schedule-of-half",
        "The metadata schedules half the groups of heads that aiter/mla.py makes: all gates pass.",
        {METADATA: Edit("qk_batch_ratio = num_heads / 16;", "qk_batch_ratio = num_heads / 32;")},
    ),
    _in_aiter(
        "reduce-row-gone",
        "The merge kernel has no instance for 16 heads of 512 any more.",
        {REDUCE: Edit("NUM_HEAD,  16, HEAD_DIM, 512,", "NUM_HEAD,  64, HEAD_DIM, 512,", 4)},
    ),
    _in_aiter(
        "object-missing",
        "A code object that asm_mla.cu names is not in the wheel.",
        {f"{OBJECTS}/{FP8}": None},
        due=OBJECTS_SHIP,
    ),
    _in_aiter(
        "object-exchanged",
        "Under the name of the fp8 object stands the bf16 one, which has no kernel of the name.",
        {f"{OBJECTS}/{FP8}": f"{OBJECTS}/{BF16}"},
    ),
    _in_aiter(
        "comment",
        "A comment in aiter/mla.py: another source of the same version, the same answers.",
        {MLA: Edit("# user interface", "# the user's interface, explained anew")},
        due="",
    ),
    _in_aiter(
        "gates-in-another-order",
        "The persistent mode's two conditions stand the other way round.",
        {MLA: Edit("persistent_mode and max_seqlen_q == 1:", "max_seqlen_q == 1 and persistent_mode:")},
        due="",
    ),
    _in_aiter(
        "object-added",
        "A code object that nobody chooses yet.",
        {f"{OBJECTS}/mla_of_tomorrow.co": f"{OBJECTS}/{BF16}"},
        due="",
    ),
    _in_sglang(
        "repeat-for-zeros",
        "12 heads are repeated 16 // 12 = 1 times: no padding at all.",
        Edit("q_in[:, :num_head, :] = q\n", "q_in = q.repeat_interleave(16 // num_head, 1)\n"),
    ),
    _in_sglang(
        "tile-for-zeros",
        "12 heads are filled up with real heads, not with zeros.",
        Edit("_mla_low_head_zero_pad = (12,)", "_mla_low_head_zero_pad = ()"),
    ),
    _in_sglang(
        "prefill-unpadded",
        "The prefill leaves 12 heads as they are.",
        Edit("q_in = self._zero_pad_mla_q_heads(q, layer)", "q_in = q.view(-1, self.num_head, layer.qk_head_dim)"),
    ),
    _in_sglang(
        "refusal-gone",
        "24 heads are not refused when the server starts.",
        Edit("or (self.num_head % 16 == 0 and", "or (self.num_head % 8 == 0 and"),
    ),
    _in_sglang(
        "gather-forgotten",
        "With a sharded cache the work is scheduled for one rank's heads.",
        Edit("_gathered_num_head = self.num_head * self.dcp_world_size", "_gathered_num_head = self.num_head"),
    ),
    _in_sglang(
        "mode-of-fp8",
        "The persistent mode is given up for an fp8 cache too, where bf16 queries have no other.",
        Edit(") and self.kv_cache_dtype is not fp8_dtype:", "):"),
    ),
    _in_sglang(
        "pages-handed-on",
        "The prefill hands on pages of 64 tokens, of which the kernel reads one each.",
        Edit(f"{_PREFILL}K_Buffer.view(-1, 1, 1,", f"{_PREFILL}K_Buffer.view(-1, self.page_size, 1,"),
    ),
    _in_sglang(
        "comment-in-sglang",
        "Lines moved by a comment: every file:line is another, nothing else.",
        Edit("class AiterAttnBackend(", "# A comment\n# of two lines.\nclass AiterAttnBackend("),
        due="",
    ),
    _in_sglang(
        "heads-in-another-order",
        "The head counts that are repeated stand the other way round.",
        Edit("_mla_low_head_repeat = (4, 8)", "_mla_low_head_repeat = (8, 4)"),
        due="",
    ),
)

REBUILT = _in_aiter(
    "fp8-sent-to-bf16",
    "asm_mla.cu chooses the bf16 object for fp8 queries: the host code has to be built again, half a minute.",
    {
        ASM: Edit(
            f'"_ZN5aiter33mla_a8w8_qh16_qseqlen1_gqaratio16E",\n                        "/mla/{FP8}"',
            f'"_ZN5aiter39mla_dec_stage1_bf16_a16w16_subQ16_mqa16E",\n                        "/mla/{BF16}"',
        )
    },
)
"""Too slow for :data:`PLANTED`."""
