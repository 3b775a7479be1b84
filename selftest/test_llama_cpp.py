"""The GGUF files that llama.cpp is given, and the server that it is asked through."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

import gguf

from waveproof.fixtures.engines.llama_cpp import (
    Client,
    LlamaServer,
    ServerFailed,
    Settings,
    completion_request,
    sample,
    start_llama_server,
)
from waveproof.fixtures.models import gguf_file
from waveproof.fixtures.models.gguf_file import UnsuitableModel, Vocabulary, tiny_vocabulary, write_gguf
from waveproof.fixtures.models.tiny_llama import exact_logits, tiny_llama
from waveproof.golden.references.joint_law import TEMPERATURE_FIRST, TEMPERATURE_LAST, Filter
from waveproof.kernels.runtimes.catalogue import installed

PROMPT = (2, 3, 4, 5, 6, 7, 2, 3)
FILTER = Filter(order=TEMPERATURE_LAST, banned=(1,))
needs_server = pytest.mark.skipif(not installed("xllamacpp"), reason="xllamacpp is not installed")


# The file -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(8, seed=1)


@pytest.fixture(scope="module")
def file(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(model, path)
    return path


def test_file_is_small_and_float32(file: Path, model: Any) -> None:
    tensors = gguf.GGUFReader(file).tensors
    assert file.stat().st_size < 2**20
    assert {tensor.tensor_type for tensor in tensors} == {gguf.GGMLQuantizationType.F32}
    assert sum(tensor.n_elements for tensor in tensors) == sum(weight.numel() for weight in model.parameters())


def test_file_holds_the_weights(file: Path, model: Any) -> None:
    written = {tensor.name: tensor.data for tensor in gguf.GGUFReader(file).tensors}
    np.testing.assert_array_equal(written["output.weight"], model.lm_head.weight.numpy())
    np.testing.assert_array_equal(written["blk.1.ffn_down.weight"], model.model.layers[1].mlp.down_proj.weight.numpy())


def test_rows_are_interleaved_within_each_head() -> None:
    rows = np.arange(12, dtype=np.float32)[:, None]
    assert gguf_file.interleaved_for_rope(rows, heads=2)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_texts_and_ids_are_one_another() -> None:
    vocabulary = tiny_vocabulary(64)
    assert vocabulary.ids(vocabulary.text((0, 1, 2, 63))) == (0, 1, 2, 63)
    assert vocabulary.text((0, 1, 2, 12, 63)) == "^$0Az"


@pytest.mark.parametrize(
    ("texts", "bos", "eos"), [(("a", "a", "b"), 0, 1), (("a", "bc", "d"), 0, 1), (("a", "b"), 0, 0), (("a", "b"), 0, 2)]
)
def test_unusable_vocabulary_is_refused(texts: tuple[str, ...], bos: int, eos: int) -> None:
    with pytest.raises(UnsuitableModel):
        Vocabulary(texts, bos, eos)


def test_model_of_another_kind_is_refused(tmp_path: Path, model: Any) -> None:
    with pytest.raises(UnsuitableModel, match="9 token texts for a model of vocabulary 8"):
        write_gguf(model, tmp_path / "x.gguf", tiny_vocabulary(9))
    with pytest.raises(UnsuitableModel, match="vocabulary of 65"):
        tiny_vocabulary(65)


# The server ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[LlamaServer]:
    with start_llama_server(Settings(file)) as running:
        yield running


def _logprobs(server: LlamaServer) -> tuple[tuple[int, ...], np.ndarray]:
    """Six tokens, and float[6, V]."""
    body = {"prompt": list(PROMPT), "n_predict": 6, "n_probs": 8, "ignore_eos": True, "return_tokens": True, "seed": 0}
    answer = Client(server).completion(body)
    rows = [
        [entry["logprob"] for entry in sorted(step["top_logprobs"], key=lambda entry: int(entry["id"]))]
        for step in answer["completion_probabilities"]
    ]
    return tuple(answer["tokens"]), np.array(rows)


def _errors(server: LlamaServer, model: Any) -> float:
    tokens, got = _logprobs(server)
    law = exact_logits(model, PROMPT, 1)
    exact = [law(PROMPT).log_softmax(-1)]
    for place in range(1, len(tokens)):
        prefix = (*PROMPT, *tokens[:place])
        exact.append(exact_logits(model, prefix, 1)(prefix).log_softmax(-1))
    return float(np.abs(got - torch.stack(exact).numpy()).max())


@needs_server
def test_served_law_is_the_model(server: LlamaServer, model: Any) -> None:
    assert _errors(server, model) < 1e-3


@needs_server
def test_served_law_shows_a_wrong_order_of_rows(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "interleaved_for_rope", lambda weight, heads: weight)
    write_gguf(model, tmp_path / "x.gguf")
    with start_llama_server(Settings(tmp_path / "x.gguf")) as running:
        assert _errors(running, model) > 0.05


def _post(url: str, body: dict[str, Any], key: str = "") -> dict[str, Any]:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        answer: dict[str, Any] = json.loads(response.read())
        return answer


@needs_server
def test_openai_api_gives_text_and_whole_laws(server: LlamaServer) -> None:
    vocabulary = tiny_vocabulary(8)
    body = {"model": "tiny", "max_tokens": 4, "seed": 0, "ignore_eos": True}
    prompt = vocabulary.text(PROMPT)
    complete = _post(f"{server.base_url}/completions", {**body, "prompt": prompt, "logprobs": 8})["choices"][0]
    messages = [{"role": "user", "content": prompt}]
    chat = {**body, "messages": messages, "logprobs": True, "top_logprobs": 8}
    answer = _post(f"{server.base_url}/chat/completions", chat)["choices"][0]
    assert complete["text"] == answer["message"]["content"]
    assert len(vocabulary.ids(complete["text"])) == 4
    for step in (complete["logprobs"]["content"][0], answer["logprobs"]["content"][0]):
        assert sum(np.exp(entry["logprob"]) for entry in step["top_logprobs"]) == pytest.approx(1.0, abs=1e-5)


@needs_server
def test_text_outside_the_vocabulary_is_refused(server: LlamaServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        _post(f"{server.base_url}/completions", {"prompt": "!", "max_tokens": 1})
    assert server.alive


@needs_server
def test_equal_seeds_give_equal_texts(server: LlamaServer) -> None:
    first, again, other = (sample(server, PROMPT, FILTER, 40, 4, 1, seed).sequences for seed in (0, 0, 1))
    assert first == again != other
    assert all(1 not in text and len(text) == 4 for text in first)


@needs_server
def test_killed_server_fails_the_call_and_nothing_else(file: Path) -> None:
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(start_llama_server(Settings(file, api_key="k")))
        client = stack.enter_context(Client(running))
        request = completion_request(PROMPT, FILTER, 3, eos=1)
        assert len(client.completion(request)["tokens"]) == 3
        with pytest.raises(urllib.error.HTTPError, match="401"):
            _post(f"{running.base_url}/completions", {"prompt": "0", "max_tokens": 1})
        running.kill()
        assert not running.alive
        with pytest.raises(ServerFailed, match="exit status -9"):
            client.completion(request)


@needs_server
def test_server_without_a_model_fails(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF, but not really")
    with pytest.raises(ServerFailed, match="exit status"):
        start_llama_server(Settings(tmp_path / "x.gguf"))


def test_settings_that_contradict_themselves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="draft kind 'draft' with draft model None"):
        Settings(tmp_path, "draft")
    with pytest.raises(ValueError, match="is none of none, draft"):
        Settings(tmp_path, "eagle")  # type: ignore[arg-type]


def test_request_says_what_the_filter_says() -> None:
    filter = Filter(0.5, 3, 0.9, TEMPERATURE_FIRST, banned=(1,))
    request = completion_request(PROMPT, filter, 5, eos=1)
    assert request["samplers"] == ["temperature", "top_k", "top_p"]
    assert (request["temperature"], request["top_k"], request["top_p"], request["min_p"]) == (0.5, 3, 0.9, 0.0)
    assert "samplers" not in completion_request(PROMPT, FILTER, 5, eos=1, default_order=True)
    with pytest.raises(ValueError, match="own order"):
        completion_request(PROMPT, filter, 5, eos=1, default_order=True)
    with pytest.raises(ValueError, match="mask the EOS 1"):
        completion_request(PROMPT, Filter(), 5, eos=1)
