"""What a value of ``--provider`` may say of an implementation, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from waveproof.kernels.providers.external import BadProvider, parse_provider
from waveproof.selftest.mutants.mla import CORRECT, MUTANTS
from waveproof.selftest.suite_runs import ROOT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text("def f(*arguments): ...\n")
    return path


def test_limits_of_attention(file: Path) -> None:
    declared = parse_provider(
        f"mla_decode={file}:f,omits=lse,heads=16+128,dtypes=bfloat16/bfloat16+bfloat16/float8_e4m3fn,query=4,page=1+16"
    )
    assert declared.omits == ("lse",)
    assert declared.heads == (16, 128)
    assert declared.dtypes == ("bfloat16/bfloat16", "bfloat16/float8_e4m3fn")
    assert declared.longest_query == 4
    assert declared.page_sizes == (1, 16)


def test_nothing_declared_is_no_limit(file: Path) -> None:
    declared = parse_provider(f"mla_prefill={file}:f")
    assert (declared.omits, declared.heads, declared.dtypes) == ((), (), ())
    assert (declared.longest_query, declared.page_sizes) == (0, ())


def test_dtypes_of_keys_where_there_is_no_cache(file: Path) -> None:
    assert parse_provider(f"mla_prefill={file}:f,dtypes=float16/float16").dtypes == ("float16/float16",)


@pytest.mark.parametrize(
    ("operator", "key", "says"),
    [
        ("mla_decode", "omits=out", "mla_decode may omit lse, not 'out'"),
        ("pad_heads", "omits=padded", "pad_heads has no result that may be omitted, not 'padded'"),
        ("mla_decode", "heads=0", "heads takes whole numbers above 0, joined by +, got '0'"),
        ("mla_decode", "heads=16,128", "'128' is not one of variant=..., "),
        ("mla_decode", "heads=sixteen", "got 'sixteen'"),
        ("mla_decode", "query=1+2", "query takes one whole number above 0, got '1+2'"),
        ("mla_decode", "page=", "page takes whole numbers above 0, joined by +, got ''"),
        ("mla_decode", "dtypes=bfloat16", "dtypes takes pairs q/kv joined by +, "),
        ("mla_decode", "dtypes=bfloat16/int8", "got 'bfloat16/int8'"),
        ("mla_extend", "dtypes=float8_e4m3fn/float8_e4m3fn", "q of bfloat16, float16, kv of "),
        ("top_k_renorm_prob", "heads=16", "heads is for attention, not for top_k_renorm_prob"),
    ],
)
def test_refused(file: Path, operator: str, key: str, says: str) -> None:
    with pytest.raises(BadProvider) as refusal:
        parse_provider(f"{operator}={file}:f,{key}")
    assert says in str(refusal.value)
    assert str(file) in str(refusal.value)


def test_every_entry_of_the_table_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for mutant in MUTANTS + CORRECT:
        implementation = parse_provider(mutant.option(ROOT))
        assert (implementation.operator, implementation.variant) == (mutant.operator, mutant.variant)
        assert bool(mutant.declares) == any(
            (
                implementation.omits,
                implementation.heads,
                implementation.dtypes,
                implementation.longest_query,
                implementation.page_sizes,
            )
        )
