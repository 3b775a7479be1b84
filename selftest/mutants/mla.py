"""The planted faults of family ``mla`` and the right implementations beside them, as a table.

Each is a plain function with its operator's signature that anybody can put on trial alone, say with
``--provider mla_decode=selftest/mutants/mla_decode.py:dead_head``; its docstring says what is wrong with it and which
public report it follows. Importing this table imports none of them.
"""

from __future__ import annotations

from waveproof.selftest.mutants.mutant import Mutant

DECODE, ABSORBED, EXTEND, PREFILL = "mla_decode", "mla_prefill_absorbed", "mla_extend", "mla_prefill"
MERGE, PAD, UNPAD = "merge_state", "pad_heads", "unpad_heads"

OUTPUT, LSE, FORM = "attention output", "natural LSE", "form"
HEAD_NORM, HEAD_SCALE = "head norm", "head scale"
MULTIPLE = "exact multiple"
MERGED, MERGED_LSE, PADDED = "merged output", "merged LSE", "padded heads"
ACCEPTED, REFUSED = "legal input accepted", "illegal input refused"
INPUT, BOUNDS, REPEATS = "input unchanged", "memory outside buffers unchanged", "repeat calls equal"
SURVIVES, RESULTS_STAY = "survives", "earlier results unchanged"

_CORRECT = "correct_mla.py"
_EIGHT_BIT = "bfloat16/bfloat16+float8_e4m3fn/float8_e4m3fn+float8_e4m3fnuz/float8_e4m3fnuz"


def _decode(name: str, seen_by: str = OUTPUT, declares: str = "", profile: str = "quick") -> Mutant:
    return Mutant(name, DECODE, seen_by, "wide", "mla_decode.py", declares=declares, profile=profile)


def _lse(name: str, seen_by: str = LSE) -> Mutant:
    return Mutant(name, DECODE, seen_by, "wide", "mla_decode_lse.py")


def _tokens(name: str, seen_by: str = OUTPUT, profile: str = "quick") -> Mutant:
    return Mutant(name, DECODE, seen_by, "wide", "mla_decode_tokens.py", profile=profile)


def _memory(name: str, seen_by: str, declares: str = "") -> Mutant:
    return Mutant(name, DECODE, seen_by, "wide", "mla_decode_memory.py", declares=declares)


def _absorbed(name: str, seen_by: str = OUTPUT) -> Mutant:
    return Mutant(name, ABSORBED, seen_by, "wide", "mla_prefill_absorbed.py")


def _extend(name: str, seen_by: str = OUTPUT) -> Mutant:
    return Mutant(name, EXTEND, seen_by, "wide", "mla_extend.py")


def _prefill(name: str, seen_by: str = OUTPUT) -> Mutant:
    return Mutant(name, PREFILL, seen_by, "wide", "mla_prefill.py")


def _merge(name: str, seen_by: str = MERGED) -> Mutant:
    return Mutant(name, MERGE, seen_by, "natural", "mla_merge.py")


def _pad(name: str, seen_by: str = PADDED) -> Mutant:
    return Mutant(name, PAD, seen_by, "exact", "mla_merge.py")


def _unpad(name: str, seen_by: str = PADDED) -> Mutant:
    return Mutant(name, UNPAD, seen_by, "exact", "mla_merge.py")


MUTANTS = (
    _decode("zeros"),
    _decode("dead_head"),
    _decode("dead_last_head"),
    _decode("swapped_heads"),
    _decode("scale_percent", HEAD_SCALE),
    _decode("head_scale_percent", HEAD_SCALE),
    _decode("head_scale_half_percent", HEAD_SCALE),
    _decode("truncated_weights", HEAD_SCALE),
    _decode("rope_in_values"),
    _decode("last_value_tile_repeated"),
    _decode("half_scale"),
    _decode("scale_of_head_size"),
    _decode("constant_scale", MULTIPLE),
    _decode("no_rope"),
    _decode("bfloat16_scores"),
    _decode("soft_capped"),
    _decode("clipped_scores"),
    _decode("softmax_without_maximum"),
    _decode("softmax_in_base_two"),
    _decode("maximum_starts_at_zero"),
    _decode("sums_not_rescaled"),
    _decode("bfloat16_sums"),
    _decode("e4m3_weights"),
    _decode("flushed_weights"),
    _decode("other_fp8_format"),
    _decode("kv_scale_ignored"),
    _decode("kv_scale_on_scores_only"),
    _decode("kv_scale_on_values_only"),
    _decode("q_scale_ignored", declares=f"dtypes={_EIGHT_BIT}"),
    _decode("float16_as_bfloat16"),
    _decode("output_in_e4m3"),
    _decode("queries_in_fp8"),
    _decode("half_of_fp8_cache_at_odd_heads"),
    _lse("lse_in_base_two"),
    _lse("lse_without_maximum"),
    _lse("lse_of_maximum"),
    _lse("lse_of_unscaled_scores"),
    _lse("lse_in_bfloat16"),
    _lse("lse_of_rounded_weights"),
    _lse("lse_counts_hidden_keys"),
    _lse("empty_lse_is_zero"),
    _lse("last_split_dropped", OUTPUT),
    _lse("splits_weigh_the_same", OUTPUT),
    _lse("splits_merged_in_base_two", OUTPUT),
    _lse("split_weights_overflow", OUTPUT),
    _lse("empty_split_unwritten", OUTPUT),
    _lse("rest_of_splits_dropped", OUTPUT),
    _lse("heads_modulo_16", OUTPUT),
    _lse("heads_in_whole_groups_of_four", OUTPUT),
    _lse("padding_that_does_nothing", OUTPUT),
    _tokens("first_page_dropped"),
    _tokens("last_page_dropped"),
    _tokens("middle_page_dropped"),
    _tokens("tail_of_tile_dropped"),
    _tokens("last_256_tokens"),
    _tokens("last_page_taken_as_full"),
    _tokens("one_token_more"),
    _tokens("one_token_fewer"),
    _tokens("first_token_of_each_page"),
    _tokens("pages_taken_for_tokens"),
    _tokens("pages_taken_as_contiguous"),
    _tokens("pages_in_sorted_order"),
    _tokens("shared_pages_once"),
    _tokens("page_numbers_in_8_bits"),
    _tokens("offsets_in_31_bits", profile="default"),
    _tokens("previous_requests_pages"),
    _tokens("next_requests_first_page"),
    _tokens("first_requests_length"),
    _tokens("tail_times_zero"),
    _tokens("largest_of_pool"),
    _tokens("new_token_is_stale"),
    _tokens("one_future_key"),
    _tokens("own_key_hidden"),
    _tokens("not_causal"),
    _tokens("top_left"),
    _tokens("longest_query_for_all"),
    _tokens("equal_query_lengths"),
    _tokens("last_query_for_all"),
    _tokens("hidden_keys_weigh_little"),
    _tokens("nan_without_keys"),
    _tokens("nan_of_one_poisons_batch"),
    _memory("stale_output", OUTPUT),
    _memory("last_request_stale", REPEATS),
    _memory("same_buffer_again", RESULTS_STAY),
    _memory("last_request_unwritten", OUTPUT),
    _memory("empty_request_unwritten", OUTPUT),
    _memory("lse_unwritten", LSE),
    _memory("reads_unwritten_workspace", REPEATS),
    _memory("writes_past_output", BOUNDS),
    _memory("scales_queries_in_place", INPUT),
    _memory("clears_tail_of_last_page", INPUT),
    _memory("sorts_pages_in_place", INPUT),
    _memory("ignores_strides_of_queries", OUTPUT),
    _memory("ignores_storage_offset_of_queries", OUTPUT),
    _memory("last_bit_alternates", REPEATS),
    _memory("noise", REPEATS),
    _memory("returns_float32", FORM),
    _memory("bfloat16_for_float16", FORM),
    _memory("returns_heads_in_a_row", FORM),
    _memory("lse_of_heads_by_tokens", FORM),
    _memory("lse_in_wrong_order", LSE),
    _memory("lse_of_half_precision", FORM),
    _memory("lse_first", FORM),
    _memory("output_alone", ACCEPTED),
    _memory("writes_nowhere", ACCEPTED),
    _memory("refuses_larger_pages", ACCEPTED),
    _memory("refuses_unequal_queries", ACCEPTED),
    _memory("raises_on_empty_request", ACCEPTED),
    _memory("answers_any_heads", OUTPUT, "heads=16+128"),
    _memory("answers_larger_pages", OUTPUT, "page=1"),
    _memory("answers_longer_queries", OUTPUT, "query=1"),
    _memory("aborts_on_twelve_heads", SURVIVES, "heads=4+8+16+128"),
    _absorbed("causal_by_tiles"),
    _absorbed("not_causal"),
    _absorbed("top_left"),
    _absorbed("rest_of_queries_zero"),
    _absorbed("tile_overwrites_next_request"),
    _absorbed("last_four_queries"),
    _absorbed("rest_of_keys_dropped"),
    _absorbed("page_looked_up_once_a_tile"),
    _absorbed("kv_scale_ignored"),
    _absorbed("lse_of_last_tile", LSE),
    _extend("prefix_dropped"),
    _extend("new_dropped"),
    _extend("not_causal"),
    _extend("prefix_causal"),
    _extend("own_key_hidden"),
    _extend("tail_of_last_page"),
    _extend("prefix_of_neighbour"),
    _extend("new_from_cache"),
    _extend("new_scaled"),
    _extend("prefix_unscaled"),
    _extend("new_in_cache_format"),
    _extend("first_requests_prefix_length"),
    _extend("dead_last_head"),
    _extend("prefix_page_dropped"),
    _extend("nan_without_prefix"),
    _extend("lse_of_new", LSE),
    _extend("prefix_merged_in_base_two"),
    _prefill("zeros"),
    _prefill("dead_last_head"),
    _prefill("head_scale_percent", OUTPUT),
    _prefill("always_causal"),
    _prefill("never_causal"),
    _prefill("top_left"),
    _prefill("one_future_key"),
    _prefill("causal_by_tiles"),
    _prefill("heads_in_groups_of_two"),
    _prefill("no_rope"),
    _prefill("values_from_keys"),
    _prefill("constant_scale"),
    _prefill("scale_of_value_size"),
    _prefill("k_scale_ignored"),
    _prefill("v_scale_ignored"),
    _prefill("k_and_v_scales_swapped"),
    _prefill("e4m3_weights"),
    _prefill("keys_begin_with_queries"),
    _prefill("equal_lengths"),
    _prefill("next_requests_keys"),
    _prefill("rest_of_queries_unwritten"),
    _prefill("rest_of_keys_dropped"),
    _prefill("lse_in_base_two", LSE),
    _prefill("nan_without_keys"),
    _prefill("ignores_strides"),
    _merge("zeros"),
    _merge("scale_percent"),
    _merge("powers_of_two"),
    _merge("one_side_in_base_two"),
    _merge("lse_in_base_two", MERGED_LSE),
    _merge("nan_for_two_empty_sides"),
    _merge("zero_lse_for_two_empty_sides", MERGED_LSE),
    _merge("empty_side_times_zero"),
    _merge("sides_swapped"),
    _merge("mean_of_sides"),
    _merge("larger_side_alone"),
    _merge("far_side_dropped"),
    _merge("not_normalised"),
    _merge("without_maximum"),
    _merge("lse_is_larger", MERGED_LSE),
    _merge("lse_is_sum", MERGED_LSE),
    _merge("bfloat16_lse"),
    _merge("bfloat16_weights"),
    _merge("first_heads_lse"),
    _merge("lse_of_heads_by_tokens"),
    _merge("rest_of_head_from_first"),
    _merge("ignores_strides"),
    _merge("merges_in_place", INPUT),
    _merge("returns_float32", FORM),
    _merge("first_side_if_second_is_empty"),
    _pad("pads_by_whole_times", FORM),
    _pad("pads_with_garbage"),
    _pad("pads_with_ones"),
    _pad("pads_with_last_head"),
    _pad("pads_at_front"),
    _pad("pads_tile_as_repeat"),
    _pad("pads_repeat_as_tile"),
    _pad("pads_tile_uncut", FORM),
    _pad("pads_nothing_where_it_fits", RESULTS_STAY),
    _pad("pads_in_bfloat16"),
    _pad("pads_from_strides_ignored"),
    _pad("pads_by_cutting", REFUSED),
    _pad("pads_repeat_uneven", REFUSED),
    _pad("pads_unknown_mode_with_zeros", REFUSED),
    _unpad("unpads_first_heads"),
    _unpad("unpads_last_heads"),
    _unpad("unpads_with_fixed_step"),
    _unpad("unpads_mean_of_copies"),
    _unpad("unpads_outputs_only", ACCEPTED),
    _unpad("unpads_tokens_of_two_dimensions", FORM),
    _unpad("unpads_more_than_there_are", REFUSED),
    _unpad("unpads_unknown_mode_as_zero", REFUSED),
)
"""All that must be rejected."""

CORRECT = (
    Mutant("decode_whole", DECODE, "", "wide", _CORRECT),
    Mutant("decode_by_tiles", DECODE, "", "wide", _CORRECT),
    Mutant("decode_by_splits", DECODE, "", "wide", _CORRECT),
    Mutant("decode_batch_dependent", DECODE, "", "wide", _CORRECT),
    Mutant("decode_narrow", DECODE, "", "narrow", _CORRECT, declares=f"dtypes={_EIGHT_BIT}"),
    Mutant("decode_without_lse", DECODE, "", "wide", _CORRECT, declares="omits=lse"),
    Mutant(
        "decode_one_query",
        DECODE,
        "",
        "wide",
        _CORRECT,
        declares="heads=16+128,dtypes=bfloat16/bfloat16,query=1,page=1",
    ),
    Mutant("decode_numpy", DECODE, "", "wide", _CORRECT),
    Mutant("decode_whole", ABSORBED, "", "wide", _CORRECT),
    Mutant("decode_by_tiles", ABSORBED, "", "wide", _CORRECT),
    Mutant("extend_whole", EXTEND, "", "wide", _CORRECT),
    Mutant("extend_merged", EXTEND, "", "wide", _CORRECT),
    Mutant("prefill_whole", PREFILL, "", "wide", _CORRECT),
    Mutant("prefill_by_tiles", PREFILL, "", "wide", _CORRECT),
    Mutant("prefill_by_torch", PREFILL, "", "wide", _CORRECT),
    Mutant("merge_by_maximum", MERGE, "", "natural", _CORRECT),
    Mutant("merge_by_sigmoid", MERGE, "", "natural", _CORRECT),
    Mutant("pad_by_index", PAD, "", "exact", _CORRECT),
    Mutant("pad_by_copy", PAD, "", "exact", _CORRECT),
    Mutant("unpad_by_index", UNPAD, "", "exact", _CORRECT),
    Mutant("unpad_by_slice", UNPAD, "", "exact", _CORRECT),
)
"""All that must pass, and what each planted fault is a fault of among them."""
