"""Whether a model with its KV pool fits into the memory of a GPU, and how large a pool would.

Bytes are counted per GPU, since a GPU is what overflows:

- Weights: what tensor parallelism splits, split; what it leaves on every rank, whole (low-rank projections, router).
- KV pool: latent attention (MLA) has one latent a token for all heads, so that heads cannot be split over ranks and
  **every rank of a TP group holds the whole pool**, unless its tokens are spread (DP attention, context parallelism).
- State of linear attention (KDA): for each request, split by heads, however long its context.
- Reserve: activations, graphs, communication.

GB is 10**9 bytes and GiB is 2**30: AMD's 192 GB are GiB, NVIDIA's 180 GB are GB (:mod:`waveproof.fixtures.products`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from waveproof.fixtures.deployment.huggingface import ConfigInvalid, read_config
from waveproof.fixtures.products import Product
from waveproof.fixtures.shapes.served_model import Format, ServedModel, built_in
from waveproof.fixtures.shapes.weights import Weight, weights

GB, GIB, TB = 10**9, 2**30, 10**12

KV_DTYPE_BYTES = {"bf16": 2, "fp8": 1}
"""Of a number of the latent. sglang 0.5.23 ``mem_cache/memory_pool.py`` (MLATokenToKVPool) stores 576 of them a token
in either; fp8 there has no scales besides."""

FORMAT_BYTES: dict[Format, Fraction] = {
    "bf16": Fraction(2),
    "fp8": Fraction(1),
    "fp8 blocks": 1 + Fraction(4, 128 * 128),
    "mxfp4": Fraction(1, 2) + Fraction(1, 32),
}
"""Of a weight, its share of the scales with it: a float32 for 128 x 128, an e8m0 byte for 32."""


class DoesNotApply(ValueError):
    """A fit cannot be computed; the message holds what is missing or wrong."""


@dataclass(frozen=True)
class LinearState:
    """Shape of a linear attention layer (KDA), whose state replaces a cache.

    For each request and layer: a ``head_dim`` x ``head_dim`` matrix a head in float32, and the last
    ``convolution - 1`` inputs of the short convolutions of q, k and v in bf16 (sglang 0.5.23,
    ``configs/mamba_utils.py``: KimiLinearStateShape and the default dtypes).
    """

    heads: int
    head_dim: int
    convolution: int = 4

    @property
    def bytes_per_request(self) -> int:
        """Of one layer, over all ranks."""
        matrices = self.heads * self.head_dim * self.head_dim * 4
        return matrices + (self.convolution - 1) * 3 * self.heads * self.head_dim * 2


LINEAR_STATES = {
    "moonshotai/Kimi-K3": LinearState(96, 128),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": LinearState(32, 128),
}
"""Kimi K3: 96 heads (``models/kimi_k3.py``: "K3's 96 beta rows") of 128 (its fused ``f_a`` of 128 outputs is one head
wide), the convolution of 4 the default of KimiLinearStateShape. Kimi Linear: transformers' KimiLinearConfig."""

OUTPUT_GATES = frozenset({"moonshotai/Kimi-K3"})
"""Models whose MLA layers have a gate as wide as the attention's output (``models/kimi_k3.py``: mla_use_output_gate)
and whose KDA layers have a full-rank one (use_full_rank_gate)."""


@dataclass(frozen=True)
class Model:
    """What of a model takes memory."""

    served: ServedModel
    linear: LinearState | None = None
    """None where there are no linear layers, or nothing is known of them."""

    def kv_bytes_per_token(self, dtype: str = "bf16") -> int:
        """Of one copy of the pool: a latent in each layer with MLA.

        Raises:
            DoesNotApply: the number of layers or the dtype is not known.
        """
        if self.served.mla_layers is None:
            raise DoesNotApply(f"{self.served.name}: how many layers have MLA is not known")
        if dtype not in KV_DTYPE_BYTES:
            raise DoesNotApply(f"KV dtype {dtype!r}: known are {', '.join(KV_DTYPE_BYTES)}")
        return self.served.mla_layers * self.served.dimensions.latent * KV_DTYPE_BYTES[dtype]

    def state_bytes_per_request(self) -> int:
        """Of all linear layers, over all ranks; 0 without any.

        Raises:
            DoesNotApply: it has linear layers, and their shape is not known.
        """
        if not self.served.linear_layers:
            return 0
        if self.linear is None:
            raise DoesNotApply(
                f"{self.served.name}: {self.served.linear_layers} layers have linear attention of unknown shape"
            )
        return self.served.linear_layers * self.linear.bytes_per_request

    def weight_bytes_per_gpu(self, tp: int) -> int:
        """Of a rank, from the widths; norms, biases and a vision tower are left out, under 1 % together.

        Raises:
            DoesNotApply: a width or a format is not known, or TP does not divide it.
        """
        model = self.served
        layers, dense = model.widths.layers, model.widths.dense_layers
        if layers is None or dense is None or model.mla_layers is None:
            raise DoesNotApply(f"{model.name}: its numbers of layers are not known; give the bytes of its weights")
        experts = layers - dense if model.widths.experts else 0
        total = Fraction(0)
        for weight in weights(model, tp, shared_fused=False):
            if weight.name == "lm_head":
                # Embedding and head: two tables where they are not tied, as in all models here.
                times = 2
            elif weight.name.startswith("dense "):
                times = layers - experts
            elif weight.name in ("router", "experts") or weight.name.startswith(("latent ", "shared ")):
                times = experts
            else:
                times = model.mla_layers
            total += times * _bytes(model, weight)
        total += model.linear_layers * self._linear_layer_bytes(tp)
        if model.name in OUTPUT_GATES:
            total += model.mla_layers * self._projection(tp, model.heads * model.dimensions.v_head_dim)
        return int(total)

    def _projection(self, tp: int, width: int) -> Fraction:
        """From or to the hidden size, split over the ranks."""
        hidden, format = self.served.widths.hidden, self.served.dense_format
        if hidden is None or format not in FORMAT_BYTES:
            raise DoesNotApply(f"{self.served.name}: hidden_size {hidden} in format {format}")
        return hidden * Fraction(width, tp) * FORMAT_BYTES[format]

    def _linear_layer_bytes(self, tp: int) -> Fraction:
        """q, k, v and output of a KDA layer, its gate, and the low-rank projections of its decay."""
        if self.linear is None:
            return Fraction(self.state_bytes_per_request())
        width = self.linear.heads * self.linear.head_dim
        whole = self._projection(1, self.linear.head_dim)
        full_rank = self.served.name in OUTPUT_GATES
        low_rank = whole + self._projection(tp, width) * Fraction(self.linear.head_dim, self.served.widths.hidden or 1)
        return self._projection(tp, width) * (5 if full_rank else 4) + low_rank * (1 if full_rank else 2)


def _bytes(model: ServedModel, weight: Weight) -> Fraction:
    if weight.unknown or weight.n is None or weight.k is None or weight.format not in FORMAT_BYTES:
        why = weight.unknown or f"format {weight.format}"
        raise DoesNotApply(f"{model.name}: {weight.name} is not known: {why}; give the bytes of its weights")
    # An expert has a gate, an up and a down projection of the same size.
    return weight.n * weight.k * (3 * weight.experts if weight.experts else 1) * FORMAT_BYTES[weight.format]


class _LinearConfig(BaseModel):
    """``linear_attn_config`` of Kimi's hybrids."""

    num_heads: Annotated[int, Field(gt=0, strict=True)]
    head_dim: Annotated[int, Field(gt=0, strict=True)]
    short_conv_kernel_size: Annotated[int, Field(gt=0, strict=True)] = 4


def model_named(name: str) -> Model:
    """A built-in model, or that of a ``config.json`` (or of the folder that holds it).

    Raises:
        ModelUnknown: no built-in model goes by that name, and there is no such file.
        ConfigInvalid: the file describes no model with latent attention.
    """
    path = Path(name)
    if not path.exists():
        model = built_in(name)
        return Model(model, LINEAR_STATES.get(model.name))
    model = read_config(path)
    if not model.linear_layers:
        return Model(model)
    file = path / "config.json" if path.is_dir() else path
    whole = json.loads(file.read_text(encoding="utf-8"))
    text = whole["text_config"] if isinstance(whole.get("text_config"), dict) else whole
    try:
        linear = _LinearConfig.model_validate(text["linear_attn_config"])
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        key = ".".join(map(str, found["loc"]))
        raise ConfigInvalid(f"{file.name}: linear_attn_config.{key}: {found['msg'].lower()}") from None
    return Model(model, LinearState(linear.num_heads, linear.head_dim, linear.short_conv_kernel_size))


@dataclass(frozen=True)
class Demand:
    """What is to be held, and how it is spread.

    Raises:
        DoesNotApply: by the field's name.
    """

    tp: int
    pool_tokens: int
    kv_dtype: str = "bf16"
    pool_shards: int = 1
    """GPUs that share one copy of the pool. 1: each holds all of it, as tensor parallelism has it with MLA; with DP
    attention or context parallelism over all ranks, ``tp``."""
    requests: int = 0
    """At once, each with a state of its own in the linear layers. With speculative decoding or a prefix cache an
    engine holds several."""
    reserve_bytes: int | None = None
    """Not for weights, pool or state; None: as sglang reserves, by :func:`sglang_reserve`."""
    weight_bytes: int | None = None
    """Of the whole model, split evenly; None: from its widths. The first understates a GPU's by what is on every
    rank."""

    def __post_init__(self) -> None:
        for name in ("tp", "pool_shards"):
            if getattr(self, name) < 1:
                raise DoesNotApply(f"{name} = {getattr(self, name)}: must be 1 or more")
        for name in ("pool_tokens", "requests", "reserve_bytes", "weight_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise DoesNotApply(f"{name} = {getattr(self, name)}: must not be negative")
        if self.weight_bytes == 0:
            raise DoesNotApply("weight_bytes = 0: must be above 0")
        if self.tp % self.pool_shards:
            raise DoesNotApply(f"pool_shards = {self.pool_shards}: must divide tp = {self.tp}")


def sglang_reserve(tp: int, chunk_tokens: int = 4096) -> int:
    """Bytes that sglang keeps free of weights and pool, its reserve for captured graphs left out.

    0.5 GiB, 1.5 MiB a token of a prefill chunk, 1 GiB for each 8 ranks, in all 10 GiB or more on large GPUs (sglang
    0.5.23 ``arg_groups/memory_hook.py``, handle_gpu_memory_settings; its own default chunk on GPUs of 160 GiB and more
    is 16,384, for which this is 25.5 GiB).
    """
    return max((1 << 29) + max(chunk_tokens, 2048) * 3 * (1 << 19) + tp * (1 << 27), 10 * GIB)


@dataclass(frozen=True)
class Fit:
    """What a GPU is asked to hold, against what it has; all in bytes of one GPU."""

    product: str
    memory: int
    weights: int
    pool: int
    state: int
    reserve: int
    bytes_per_pool_token: Fraction
    """On one GPU."""

    @property
    def margin(self) -> int:
        """What is left; below 0, what is missing."""
        return self.memory - self.weights - self.pool - self.state - self.reserve

    @property
    def fits(self) -> bool:
        """All of it."""
        return self.margin >= 0

    @property
    def largest_pool_tokens(self) -> int:
        """Tokens of the largest pool that fits; 0 where none does."""
        return max(0, int((self.margin + self.pool) / self.bytes_per_pool_token))

    @property
    def static_fraction(self) -> float:
        """sglang's ``--mem-fraction-static`` that this split amounts to: weights, pool and state over memory."""
        return (self.weights + self.pool + self.state) / self.memory

    @property
    def verdict(self) -> str:
        """In words."""
        if self.fits:
            return "fits"
        if self.weights > self.memory:
            return "weights alone do not fit"
        if self.weights + self.reserve + self.state > self.memory:
            return "no pool fits"
        return "pool does not fit"


def fit(model: Model, product: Product, demand: Demand) -> Fit:
    """Hold a model and its pool against a GPU's memory.

    Raises:
        DoesNotApply: something that takes memory is not known.
    """
    given = demand.weight_bytes
    per_gpu = -(-given // demand.tp) if given else model.weight_bytes_per_gpu(demand.tp)
    per_token = Fraction(model.kv_bytes_per_token(demand.kv_dtype), demand.pool_shards)
    state = 0
    if demand.requests:
        # With DP attention the ranks of a shard hold the state of their own requests only, and their heads unsplit.
        state = -(-model.state_bytes_per_request() * demand.requests // demand.tp)
    return Fit(
        product.name,
        product.memory_bytes,
        per_gpu,
        -int(-per_token * demand.pool_tokens // 1),
        state,
        sglang_reserve(demand.tp) if demand.reserve_bytes is None else demand.reserve_bytes,
        per_token,
    )
