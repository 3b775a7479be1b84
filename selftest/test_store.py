"""The golden store on trial: whatever is done to its files, a wrong tensor never comes out of it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from waveproof.golden.capture import provenance_of
from waveproof.golden.manifest import MANIFEST, BadManifest, Golden, describe_arguments, describe_outputs
from waveproof.golden.store import COMMITTED, GoldenStore, TamperedGolden, UnknownGolden
from waveproof.kernels.operators.contract import Call

FIRST, SECOND = "top-k-first", "top-k-second"

PROVENANCE = provenance_of("flashinfer", "0.5.0", "NVIDIA H200", "cuda", {"torch": "2.11.0", "triton": "3.6.0"})


def call_of(fill: float) -> Call:
    return Call("top_k_renorm_prob", {"probs": torch.full((2, 4), fill), "top_k": 3})


def golden_of(identifier: str, call: Call, outputs: tuple[torch.Tensor, ...]) -> Golden:
    return Golden(
        id=identifier,
        operator=call.operator,
        variant="threshold",
        provider="flashinfer",
        case="made-up",
        generator="made-up/1",
        seed=7,
        arguments=describe_arguments(call),
        outputs=describe_outputs(call, outputs),
        provenance=PROVENANCE,
    )


def add(store: GoldenStore, identifier: str, fill: float) -> None:
    call, outputs = call_of(fill), (torch.full((2, 4), fill * 2),)
    store.add(golden_of(identifier, call, outputs), call, outputs)


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    store = GoldenStore(tmp_path / "store")
    add(store, FIRST, 0.25)
    add(store, SECOND, 0.125)
    return store


def tensor_file(store: GoldenStore, identifier: str = FIRST) -> Path:
    return store.root / store.entry(identifier).file


def edit(store: GoldenStore, change: Callable[[Any], None]) -> None:
    """Change the manifest as somebody with an editor would."""
    path = store.root / MANIFEST
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def reseal(store: GoldenStore, content: bytes) -> None:
    """Put other content in the first golden's file and make size and sha256 agree."""
    path = tensor_file(store)
    path.write_bytes(content)

    def change(document: Any) -> None:
        document["goldens"][0] |= {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}

    edit(store, change)


def assert_only_first_is_refused(store: GoldenStore, match: str) -> None:
    with pytest.raises(TamperedGolden, match=match):
        store.load(FIRST)
    assert store.load(SECOND).golden.id == SECOND
    assert len(store.verify()) == 1


def test_what_was_added_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path)
    rows = torch.tensor([[0.0, -0.0, float("inf"), float("nan")]])
    call = Call("top_p_renorm_prob", {"probs": rows, "top_p": 0.1})
    store.add(golden_of("odd-values", call, (rows.double(),)), call, (rows.double(),))
    back = GoldenStore(tmp_path).load("odd-values")
    assert back.call.arguments["top_p"] == 0.1
    probs = back.call.arguments["probs"]
    assert isinstance(probs, torch.Tensor)
    assert torch.equal(probs.view(torch.int32), rows.view(torch.int32))
    assert torch.equal(back.outputs[0].view(torch.int64), rows.double().view(torch.int64))
    assert back.golden.provenance == PROVENANCE
    assert store.verify() == ()


def test_bfloat16_and_strided_inputs_are_stored_by_value(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path)
    logits = torch.arange(24).bfloat16().reshape(6, 4).t()
    ones, k = torch.ones(1).expand(4), torch.ones(4, dtype=torch.int32)
    call = Call("target_probs", {"logits": logits, "temperature": ones, "top_k": k, "top_p": ones, "path": "dense"})
    store.add(golden_of("strided", call, (logits.float(),)), call, (logits.float(),))
    back = store.load("strided").call.arguments
    assert isinstance(back["logits"], torch.Tensor)
    assert torch.equal(back["logits"], logits)
    assert back["path"] == "dense"


@pytest.mark.parametrize("position", [0, 20, -1], ids=["length", "header", "data"])
def test_a_flipped_byte_is_refused(store: GoldenStore, position: int) -> None:
    path = tensor_file(store)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    assert_only_first_is_refused(store, "sha256")


def test_a_truncated_file_is_refused(store: GoldenStore) -> None:
    path = tensor_file(store)
    path.write_bytes(path.read_bytes()[:-4])
    assert_only_first_is_refused(store, "bytes, the manifest has")


def test_a_missing_file_is_refused(store: GoldenStore) -> None:
    tensor_file(store).unlink()
    assert_only_first_is_refused(store, "missing")


def test_swapped_files_are_refused(store: GoldenStore) -> None:
    one, two = tensor_file(store, FIRST), tensor_file(store, SECOND)
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)
    for identifier in (FIRST, SECOND):
        with pytest.raises(TamperedGolden, match=r"sha256|bytes"):
            store.load(identifier)
    assert len(store.verify()) == 2


def test_a_swap_in_the_manifest_is_refused(store: GoldenStore) -> None:
    """Files, sizes and hashes exchanged together: only the header still tells whose tensors these are."""

    def change(document: Any) -> None:
        one, two = document["goldens"]
        for key in ("file", "sha256", "size"):
            one[key], two[key] = two[key], one[key]

    edit(store, change)
    for identifier in (FIRST, SECOND):
        with pytest.raises(TamperedGolden, match="header"):
            store.load(identifier)


def _shape(golden: Any) -> None:
    golden["outputs"]["renormed"]["shape"] = [4, 2]


def _dtype(golden: Any) -> None:
    golden["arguments"][0]["tensor"]["dtype"] = "float64"


def _scalar(golden: Any) -> None:
    golden["arguments"][1]["scalar"] = 2


def _scalar_type(golden: Any) -> None:
    golden["arguments"][1]["scalar"] = 3.0


def _device(golden: Any) -> None:
    golden["provenance"]["device"] = "AMD Instinct MI355X"


def _provider(golden: Any) -> None:
    golden["provider"] = "aiter"


@pytest.mark.parametrize("change", [_shape, _dtype, _scalar, _scalar_type, _device, _provider])
def test_an_edited_manifest_is_refused(store: GoldenStore, change: Callable[[Any], None]) -> None:
    edit(store, lambda document: change(document["goldens"][0]["golden"]))
    assert_only_first_is_refused(store, "due|header")


@pytest.mark.parametrize(
    "file",
    ["../outside.safetensors", "/tmp/outside.safetensors", "a/b.safetensors", "..safetensors", "x.pt", ""],
)
def test_a_path_out_of_the_store_is_refused(store: GoldenStore, file: str) -> None:
    (store.root.parent / "outside.safetensors").write_bytes(tensor_file(store).read_bytes())
    edit(store, lambda document: document["goldens"][0].update(file=file))
    with pytest.raises(BadManifest, match="file"):
        store.load(FIRST)
    assert store.verify()


@pytest.mark.parametrize("name", ["tensors", "manifest"])
def test_a_link_is_refused_even_to_the_right_bytes(store: GoldenStore, name: str) -> None:
    path = tensor_file(store) if name == "tensors" else store.root / MANIFEST
    outside = store.root.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises((TamperedGolden, BadManifest), match="symbolic link"):
        store.load(FIRST)
    assert any("symbolic link" in problem for problem in store.verify())


def test_a_pipe_is_refused_without_waiting_for_a_writer(store: GoldenStore) -> None:
    path = tensor_file(store)
    path.unlink()
    os.mkfifo(path)
    assert_only_first_is_refused(store, "not a regular file")


class _Loud:
    """Unpickling this would leave a trace."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (os.environ["WAVEPROOF_TRACE"],)


def test_a_pickle_with_the_right_sha256_is_refused_and_not_run(
    store: GoldenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "unpickled"
    monkeypatch.setenv("WAVEPROOF_TRACE", str(trace))
    reseal(store, pickle.dumps(_Loud()))
    assert_only_first_is_refused(store, "not safetensors")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"input.probs": torch.zeros(2, 4)}, "output.renormed"),
        ({"input.probs": torch.zeros(2, 4), "output.renormed": torch.zeros(2, 4), "more": torch.zeros(1)}, "more"),
        ({"input.probs": torch.zeros(2, 4), "output.renormed": torch.zeros(8)}, "is due"),
        ({"input.probs": torch.zeros(2, 4).double(), "output.renormed": torch.zeros(2, 4)}, "is due"),
        ({"input.probs": torch.zeros(2, 4), "output.renormed": torch.zeros(2, 4)}, "header"),
    ],
    ids=["missing", "surplus", "shape", "dtype", "no header"],
)
def test_other_tensors_with_the_right_sha256_are_refused(
    store: GoldenStore, tensors: dict[str, torch.Tensor], match: str
) -> None:
    reseal(store, save(tensors))
    assert_only_first_is_refused(store, match)


def test_a_header_whose_metadata_is_null_is_refused(store: GoldenStore) -> None:
    content = tensor_file(store).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]) | {"__metadata__": None}).encode()
    reseal(store, len(header).to_bytes(8, "little") + header + content[8 + length :])
    assert_only_first_is_refused(store, "header")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda document: document["goldens"].append(document["goldens"][0]), "twice"),
        (lambda document: document["goldens"][1].update(file=document["goldens"][0]["file"]), "twice"),
        (lambda document: document.update(schema_version=2), "schema 2"),
        (lambda document: document.pop("schema_version"), "schema None"),
        (lambda document: document["goldens"][0].update(surprise=1), "surprise"),
        (lambda document: document["goldens"][0]["golden"].update(variant="loose"), "variant"),
        (lambda document: document["goldens"][0]["golden"].update(operator="matmul"), "unknown operator"),
        (lambda document: document["goldens"][0]["golden"]["arguments"].pop(), "arguments"),
        (lambda document: document["goldens"][0]["golden"]["provenance"]["versions"].pop("torch"), "torch"),
        (lambda document: document["goldens"][0].update(sha256="0"), "sha256"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_manifest_that_breaks_a_rule_is_refused(
    store: GoldenStore, change: Callable[[Any], None], match: str
) -> None:
    edit(store, change)
    with pytest.raises(BadManifest, match=match):
        store.entries()
    assert store.verify()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"schema_version": 1, "schema_version": 1}', '{"schema_version": NaN}', "[" * 9999]
)
def test_a_manifest_that_is_no_manifest_is_refused(store: GoldenStore, text: str) -> None:
    (store.root / MANIFEST).write_text(text)
    with pytest.raises(BadManifest):
        store.entries()


def test_files_that_the_manifest_does_not_know_are_reported(store: GoldenStore) -> None:
    (store.root / "stray.safetensors").write_bytes(b"")
    (store.root / "deeper").mkdir()
    (store.root / "deeper" / "stray.pt").write_bytes(b"")
    assert store.verify() == ("deeper/stray.pt: not in the manifest", "stray.safetensors: not in the manifest")
    assert store.load(FIRST).golden.id == FIRST


def test_an_id_is_stored_once(store: GoldenStore) -> None:
    with pytest.raises(BadManifest, match="already stored"):
        add(store, FIRST, 0.5)
    assert store.verify() == ()


def test_a_golden_that_does_not_describe_its_tensors_is_not_stored(store: GoldenStore) -> None:
    call, outputs = call_of(0.5), (torch.zeros(2, 4),)
    golden = golden_of("third", call, outputs)
    for other_call, other_outputs, match in (
        (call, (torch.zeros(2, 5),), "is due"),
        (call, (), "0 outputs"),
        (call.with_arguments(top_k=4), outputs, "top_k"),
        (call.with_arguments(probs=torch.zeros(2, 4).double()), outputs, "is due"),
        (Call("top_p_renorm_prob", call.arguments), outputs, "top_p_renorm_prob"),
    ):
        with pytest.raises(BadManifest, match=match):
            store.add(golden, other_call, other_outputs)
    assert len(store.entries()) == 2
    assert store.verify() == ()


def test_what_json_cannot_hold_is_not_stored() -> None:
    for value in (float("inf"), float("nan"), True):
        with pytest.raises(BadManifest):
            describe_arguments(Call("top_p_renorm_prob", {"probs": torch.zeros(1, 1), "top_p": value}))
    with pytest.raises(BadManifest, match="dtype"):
        describe_arguments(Call("top_p_renorm_prob", {"probs": torch.zeros(1, 1, dtype=torch.complex64), "top_p": 1.0}))


def test_an_unknown_id_is_named(store: GoldenStore) -> None:
    with pytest.raises(UnknownGolden, match="'none-such' among the 2"):
        store.load("none-such")


_KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from waveproof.golden import store as room
from waveproof.selftest.test_store import add

def killed(path, content, write=room._write_whole):
    if path.name == room.MANIFEST:
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content)

room._write_whole = killed
add(room.GoldenStore(Path(sys.argv[1])), "third", 0.5)
"""


def test_a_writer_killed_before_the_manifest_leaves_the_store_valid(store: GoldenStore) -> None:
    before = (store.root / MANIFEST).read_bytes()
    code = subprocess.run([sys.executable, "-c", _KILLED_WRITER, str(store.root)], check=False).returncode
    assert code == -signal.SIGKILL
    assert (store.root / MANIFEST).read_bytes() == before
    assert [entry.golden.id for entry in store.entries()] == [FIRST, SECOND]
    assert store.load(FIRST).golden.id == FIRST
    assert store.verify() == ("third.safetensors: not in the manifest",)
    add(store, "third", 0.5)
    assert store.verify() == ()


def test_a_write_that_fails_halfway_leaves_the_old_file(store: GoldenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        add(store, "third", 0.5)
    assert [entry.golden.id for entry in store.entries()] == [FIRST, SECOND]
    assert store.verify() == ("third.safetensors.partial: not in the manifest",)


def test_a_left_over_link_is_not_written_through(store: GoldenStore) -> None:
    victim = store.root.parent / "victim"
    victim.write_text("mine")
    (store.root / "third.safetensors.partial").symlink_to(victim)
    add(store, "third", 0.5)
    assert victim.read_text() == "mine"
    assert store.verify() == ()


def test_the_committed_goldens_are_in_order_and_small() -> None:
    store = GoldenStore()
    assert store.root == COMMITTED
    assert store.verify() == ()
    entries = store.entries()
    assert len(entries) > 60
    assert sum(entry.size for entry in entries) < 2_000_000
