"""What a user may get wrong with ``--provider``: each a clear verdict of its own, the rest of the run intact."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from waveproof.reports.verdicts import Verdict
from waveproof.selftest.suite_runs import Run, run_suite

PROVIDERS = """
    import ctypes, os, sys, time
    import torch

    def right(probs, top_k):
        k = torch.as_tensor(top_k).expand(probs.shape[0]).long()
        k = torch.where((k <= 0) | (k > probs.shape[1]), probs.shape[1], k)
        pivot = probs.sort(-1, descending=True).values.gather(1, k[:, None] - 1)
        kept = torch.where(probs >= pivot, probs, 0.0)
        return kept / kept.sum(-1, keepdim=True)

    def arity(probs):
        return probs

    def doubles(probs, top_k):
        return right(probs.double(), top_k)

    def raises(probs, top_k):
        raise KeyError("no such head count: 12")

    def prints(probs, top_k):
        print("chatter on stdout")
        os.write(1, b"raw chatter on file descriptor 1\\n")
        print("chatter on stderr", file=sys.stderr)
        return right(probs, top_k)

    def hangs(probs, top_k):
        time.sleep(3600)

    def leaves(probs, top_k):
        print("about to leave")
        os._exit(0)

    def segfaults(probs, top_k):
        ctypes.string_at(0)

    def lists(probs, top_k):
        return right(probs, top_k).tolist()

    not_a_function = 3
"""
NAMES = ("right", "arity", "doubles", "raises", "prints", "hangs", "leaves", "segfaults", "lists", "not_a_function")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("bad")
    file = directory / "mine.py"
    file.write_text(textwrap.dedent(PROVIDERS))
    broken = directory / "broken.py"
    broken.write_text("import nothing_of_that_name\n\ndef f(probs, top_k): ...\n")
    options = [f"--provider=top_k_renorm_prob={file}:{name}" for name in NAMES]
    options += [
        f"--provider=top_k_renorm_prob={broken}:f,name=broken",
        f"--provider=top_z_renorm={file}:right",
        f"--provider=top_k_renorm_prob={directory}/absent.py:right",
        f"--provider=top_k_renorm_prob={file}:absent",
        f"--provider=top_k_renorm_prob={file}:right,variant=exact-z",
        "--provider=nonsense",
    ]
    return run_suite(directory, "-k", "availability or of_row and one-hot", "--call-timeout=3", *options)


def test_exit_status_is_one(run: Run) -> None:
    assert run.exit_status == 1, run.printed


@pytest.mark.parametrize("name", ["right", "prints"])
def test_neighbours_pass(run: Run, name: str) -> None:
    assert {record.verdict for record in run.of(name)} == {Verdict.PASS}, run.printed
    assert sum(record.calls for record in run.of(name)) == 1


@pytest.mark.parametrize(
    ("name", "verdict", "says"),
    [
        ("doubles", Verdict.FAIL, "float64[3, 1000] where float32[3, 1000] is due"),
        ("raises", Verdict.FAIL, "raised KeyError: 'no such head count: 12'"),
        ("hangs", Verdict.TIMEOUT, "no answer after 3 s; its process was killed"),
        ("leaves", Verdict.CRASH, "exit status 0; it printed: about to leave"),
        ("segfaults", Verdict.CRASH, "signal SIGSEGV"),
        ("lists", Verdict.FAIL, "returned list where a tensor is due"),
    ],
)
def test_called_and_judged(run: Run, name: str, verdict: Verdict, says: str) -> None:
    called = [record for record in run.of(name) if record.calls]
    assert [record.verdict for record in called] == [verdict], run.printed
    assert called[0].failure is not None
    assert says in called[0].failure.message
    assert called[0].failure.repro_confirmed, called[0].failure


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("arity", "arity(probs) cannot be called as top_k_renorm_prob(probs, top_k)"),
        ("not_a_function", "not_a_function in mine.py is int, not a function"),
        ("broken", "importing broken.py failed: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    ],
)
def test_never_called(run: Run, name: str, says: str) -> None:
    assert {record.verdict for record in run.of(name)} == {Verdict.FAIL}
    for record in run.of(name):
        assert record.failure is not None
        assert says in record.failure.message


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("top_z_renorm", "unknown operator 'top_z_renorm'; known: accept_sampling, chain_verify, "),
        ("absent.py", "absent.py does not exist"),
        (":absent", "defines no 'absent'; it defines: "),
        ("exact-z", "top_k_renorm_prob has no variant 'exact-z'; it has: threshold, exact-k"),
        ("nonsense", "does not have the form OP=FILE.py:FUNC"),
    ],
)
def test_option_itself_is_wrong(run: Run, part: str, says: str) -> None:
    records = [
        record
        for record in run.records
        if record.test == "test_provider_option" and record.verdict is Verdict.FAIL and part in record.id
    ]
    assert len(records) == 1, run.printed
    assert records[0].failure is not None
    assert says in records[0].failure.message


def test_report_and_repro_are_written(run: Run, tmp_path: Path) -> None:
    assert "bug reports and repros" in run.printed
    assert "Traceback" not in run.printed.split("waveproof ===")[-1]
