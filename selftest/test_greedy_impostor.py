"""The greedy impostor on trial: verdicts on releases made for it, and on the one that is installed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from waveproof.fixtures.eagle_draws import draws
from waveproof.fixtures.greedy_impostor import Verdict, bound_on_hip, installed, verdict_of
from waveproof.fixtures.hip_branches import NoSource
from waveproof.fixtures.strategies.verify_sampling import equal_logits
from waveproof.kernels.providers import pytorch_verify
from waveproof.kernels.runtimes.catalogue import installed as is_installed

needs_sglang = pytest.mark.skipif(not (is_installed("sglang") and is_installed("triton")), reason="sglang, triton")

EQUAL = {0, 1}
"""The tokens that ``equal_logits`` gives an even chance."""


UTILS = """
from sglang.srt.utils import is_cuda, is_hip
_is_cuda, _is_npu = is_cuda(), False
_is_hip = is_hip()
TREE_SPEC_KERNEL_AVAILABLE = _is_cuda
"""

DECISION = """
{head}
def sample(batch, sampling_info):
    if {test}:
        return verify_tree_greedy_func(batch)
    else:
        top_k_renorm_prob(batch)
        tree_speculative_sampling_target_only(batch)
"""

ONLY_CUDA = """
if is_cuda():
    from sgl_kernel import top_k_renorm_prob, tree_speculative_sampling_target_only
"""

NOTHING_ELSE = (
    ONLY_CUDA
    + """
else:
    top_k_renorm_prob = tree_speculative_sampling_target_only = None
"""
)

TRITON = "from .triton_kernels import top_k_renorm_prob, tree_speculative_sampling_target_only"


def release(folder: Path, text: str, name: str = "eagle.py") -> Path:
    """A tree that holds one verifier."""
    for file, content in (("spec_utils.py", UTILS), (name, text), ("triton_kernels.py", "")):
        path = folder / "sglang" / "srt" / "speculative" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def only_verdict(tree: Path) -> Verdict:
    (verdict,) = verdict_of(tree).verdicts
    return verdict


@pytest.mark.parametrize(
    ("head", "test", "outcome"),
    [
        (ONLY_CUDA, "sampling_info.is_all_greedy", "NameError"),
        (ONLY_CUDA, "sampling_info.is_all_greedy or is_hip()", "greedy"),
        (NOTHING_ELSE, "sampling_info.is_all_greedy", "TypeError"),
        (TRITON, "sampling_info.is_all_greedy", "samples"),
        (TRITON, "sampling_info is None or sampling_info.is_all_greedy", "samples"),
        (TRITON, "sampling_info.is_all_greedy or not TREE_SPEC_KERNEL_AVAILABLE", "greedy"),
        (TRITON, "sampling_info.is_all_greedy or is_cuda() and batch.odd", "samples"),
        (TRITON, "batch.odd", "samples"),
        (TRITON + "\ndef forced(hip):\n    return hip and not is_cuda()\n", "forced(hip=is_hip())", "greedy"),
    ],
)
def test_verdicts(tmp_path: Path, head: str, test: str, outcome: str) -> None:
    imports = "from .spec_utils import TREE_SPEC_KERNEL_AVAILABLE\n"
    verdict = only_verdict(release(tmp_path, DECISION.format(head=imports + head, test=test)))
    assert verdict.outcome == outcome
    assert verdict.verifier == "sglang/srt/speculative/eagle.py:sample"
    assert bool(verdict.unless) == (test == "batch.odd")
    line = (tmp_path / "sglang" / "srt" / "speculative" / "eagle.py").read_text().splitlines()[verdict.line - 1]
    assert ("sampling_info" in line or "forced" in line) == (outcome == "greedy")
    assert ("top_k_renorm_prob" in line) == (outcome != "greedy")


def test_rejection_sampling_is_asked_for_both_ways(tmp_path: Path) -> None:
    test = "is_hip() and not get_spec().speculative_use_rejection_sampling"
    tree = release(tmp_path, DECISION.format(head=TRITON, test=test))
    assert [(one.rejection_sampling, one.outcome) for one in verdict_of(tree).verdicts] == [
        (False, "greedy"),
        (True, "samples"),
    ]


def test_a_wheel_is_read_as_it_is(tmp_path: Path) -> None:
    release(tmp_path, DECISION.format(head=ONLY_CUDA, test="sampling_info.is_all_greedy"))
    wheel = tmp_path / "sglang-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path in (tmp_path / "sglang").rglob("*.py"):
            file.write(path, path.relative_to(tmp_path).as_posix())
    assert verdict_of(wheel).version == "9.9.9"
    assert only_verdict(wheel).outcome == "NameError"
    with pytest.raises(NoSource, match=r"no sglang/srt/speculative"):
        verdict_of(tmp_path / "sglang" / "srt" / "speculative")


@needs_sglang
def test_what_the_installed_release_binds_on_hip() -> None:
    names = ["chain_speculative_sampling_triton", "tree_speculative_sampling_target_only"]
    bound = bound_on_hip(installed(), "sglang.kernels.ops.speculative.verify_sampling", names)
    # Why target_only_verify has no runtime but cuda; a release that binds it on HIP gives it more.
    assert bound["tree_speculative_sampling_target_only"] == "None"
    assert bound["chain_speculative_sampling_triton"].endswith("reject_sampling:chain_speculative_sampling_triton")


@needs_sglang
def test_the_installed_release_is_greedy_without_rejection_sampling_and_only_then() -> None:
    read = {one.rejection_sampling: one.outcome for one in verdict_of(installed()).verdicts if "eagle" in one.verifier}
    assert read == {False: "greedy", True: "samples"}
    for seen in draws(temperature=0.7):
        assert sum(seen.counts.values()) == 64
        assert seen.counts.keys() <= {0, 1}
        assert seen.greedy == (read[seen.rejection_sampling] == "greedy")


def test_equal_logits_tell_a_sampler() -> None:
    tokens = pytorch_verify.accept_sampling(*equal_logits("accept_sampling").arguments.values())[1][:, 0]  # type: ignore[arg-type]
    assert set(tokens.tolist()) == {0, 1}
