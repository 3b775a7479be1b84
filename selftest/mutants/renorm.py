"""The planted faults of family ``renorm`` and the right implementations beside them, as a table.

Each is a plain function with its operator's signature that anybody can put on trial alone, say with
``--provider top_k_renorm_prob=selftest/mutants/renorm_top_k.py:zeros``; its docstring says what is wrong with it and
which public report it follows. Importing this table imports none of them.
"""

from __future__ import annotations

from waveproof.selftest.mutants.mutant import Mutant

TOP_K, TOP_P, LAW = "top_k_renorm_prob", "top_p_renorm_prob", "target_probs"

KEPT, VALUES, FORM = "kept set", "kept values", "form"
ACCEPTED, REFUSED = "legal input accepted", "illegal input refused"
INPUT, BOUNDS, REPEATS = "input unchanged", "memory outside buffers unchanged", "repeat calls equal"
BITS, LAUNCHED, SURVIVES = "same bits", "kernel launched", "survives"
OFFSETS, SPILLS = "offsets fit their type", "no spills"
RESULTS_STAY = "earlier results unchanged"


THRESHOLD = "threshold"
_TRITON = "renorm_triton.py"
_CORRECT = "correct_renorm.py"


def _top_k(name: str, seen_by: str, variant: str = THRESHOLD, profile: str = "quick") -> Mutant:
    return Mutant(name, TOP_K, seen_by, variant, "renorm_top_k.py", profile=profile)


def _top_p(name: str, seen_by: str, variant: str = THRESHOLD) -> Mutant:
    return Mutant(name, TOP_P, seen_by, variant, "renorm_top_p.py")


def _law(name: str, seen_by: str, variant: str = THRESHOLD) -> Mutant:
    return Mutant(name, LAW, seen_by, variant, "renorm_target_probs.py")


def _triton(
    name: str,
    seen_by: str,
    runtimes: tuple[str, ...] = ("interpret",),
    whole_rows: bool = False,
    profile: str = "quick",
) -> Mutant:
    return Mutant(name, TOP_K, seen_by, THRESHOLD, _TRITON, runtimes=runtimes, whole_rows=whole_rows, profile=profile)


MUTANTS = (
    _top_k("zeros", KEPT),
    _top_k("identity", KEPT),
    _top_k("greedy", KEPT),
    _top_k("uniform_over_kept", VALUES),
    _top_k("unnormalised", VALUES),
    _top_k("scale_thousandth", VALUES),
    _top_k("scale_ten_thousandth", VALUES),
    _top_k("bfloat16_sum", VALUES),
    _top_k("bfloat16_values", VALUES),
    _top_k("float16_values", KEPT),
    _top_k("flushes_tails", KEPT),
    _top_k("sums_over_batch", VALUES),
    _top_k("one_more", KEPT),
    _top_k("one_fewer", KEPT),
    _top_k("one_more_at_large_k", KEPT),
    _top_k("selects_from_thousand", KEPT),
    _top_k("smallest", KEPT),
    _top_k("zero_k_is_one", KEPT),
    _top_k("exact_k_as_threshold", KEPT),
    _top_k("threshold_as_exact_k", KEPT, "exact-k"),
    _top_k("ties_by_highest_index", KEPT, "exact-k"),
    _top_k("ties_at_random", KEPT, "exact-k"),
    _top_k("tie_rule_by_batch", KEPT),
    _top_k("exact_k_at_large_vocabulary", KEPT),
    _top_k("drops_last_chunk", KEPT),
    _top_k("drops_last_vector", KEPT),
    _top_k("columns_in_16_bits", KEPT, profile="default"),
    _top_k("negative_zero_is_largest", KEPT),
    _top_k("first_rows_k", KEPT),
    _top_k("int64_k_as_int32", KEPT),
    _top_k("no_filter_for_all", KEPT),
    _top_k("first_and_last_swapped", KEPT),
    _top_k("first_fifty_rows", KEPT),
    _top_k("bad_row_spoils_batch", KEPT),
    _top_k("raises_on_zero_row", ACCEPTED),
    _top_k("aborts_on_nan", SURVIVES),
    _top_k("stale_output", KEPT),
    _top_k("uncleared_buffer", KEPT),
    _top_k("same_buffer_again", RESULTS_STAY),
    _top_k("dropped_tokens_unwritten", VALUES),
    _top_k("last_row_unwritten", KEPT),
    _top_k("reads_unwritten_workspace", REPEATS),
    _top_k("overruns_workspace", BOUNDS),
    _top_k("masks_in_place", INPUT),
    _top_k("ignores_strides", KEPT),
    _top_k("ignores_storage_offset", KEPT),
    _top_k("last_bit_alternates", REPEATS),
    _top_k("noise", VALUES),
    _top_k("returns_float64", FORM),
    _top_k("returns_half", FORM),
    _top_k("returns_flat", FORM),
    _top_k("returns_none", ACCEPTED),
    _top_k("returns_list", ACCEPTED),
    _top_k("returns_workspace_too", ACCEPTED),
    _top_k("accepts_anything", REFUSED),
    _top_k("refuses_by_accident", REFUSED),
    _top_k("refuses_one_k_for_all", ACCEPTED),
    _top_k("raises_on_empty_batch", ACCEPTED),
    _top_p("zeros", KEPT),
    _top_p("unfiltered", KEPT),
    _top_p("uniform_over_kept", VALUES),
    _top_p("unnormalised", VALUES),
    _top_p("divided_by_top_p", VALUES),
    _top_p("scale_thousandth", VALUES),
    _top_p("float32_prefix_without_exemption", KEPT),
    _top_p("ascending_complement", KEPT),
    _top_p("boundary_token_dropped", KEPT),
    _top_p("one_token_more", KEPT),
    _top_p("top_token_unprotected", KEPT),
    _top_p("top_p_in_bfloat16", KEPT),
    _top_p("no_filter_above_0_998", KEPT),
    _top_p("bfloat16_prefix", KEPT),
    _top_p("thousand_candidates", KEPT),
    _top_p("left_in_sorted_order", KEPT),
    _top_p("exact_p_as_threshold", KEPT),
    _top_p("threshold_as_exact_p", KEPT, "exact-p"),
    _top_p("ties_by_highest_index", KEPT, "exact-p"),
    _top_p("tie_rule_by_batch", KEPT),
    _top_p("first_rows_p", KEPT),
    _top_p("largest_p_for_all", KEPT),
    _top_p("bad_row_spoils_batch", KEPT),
    _top_p("raises_on_zero_row", ACCEPTED),
    _top_p("sorts_in_place", INPUT),
    _top_p("ignores_strides", KEPT),
    _top_p("drops_last_chunk", KEPT),
    _top_p("dropped_tokens_unwritten", VALUES),
    _top_p("accepts_zero_top_p", REFUSED),
    _top_p("refuses_one_p_for_all", ACCEPTED),
    _top_p("accepts_any_number_of_limits", REFUSED),
    _law("greedy", KEPT),
    _law("temperature_ignored", VALUES),
    _law("temperature_inverted", VALUES),
    _law("temperature_last", KEPT),
    _law("temperature_at_least_half", VALUES),
    _law("first_rows_temperature", VALUES),
    _law("first_rows_filters", KEPT),
    _law("top_k_ignored", KEPT),
    _law("top_p_ignored", KEPT),
    _law("top_p_first", KEPT),
    _law("top_p_of_whole_mass", KEPT),
    _law("not_renormalised", VALUES),
    _law("logarithms", KEPT),
    _law("softmax_without_maximum", KEPT),
    _law("bfloat16_softmax", VALUES),
    _law("float16_logits", VALUES),
    _law("ties_cut_on_sparse_path", KEPT),
    _law("sparse_path_without_top_p", KEPT),
    _law("divides_logits_in_place", INPUT),
    _law("unknown_path_is_dense", REFUSED),
    _law("ignores_strides", KEPT),
    _law("bad_row_spoils_batch", KEPT),
    _law("raises_on_infinite_logit", ACCEPTED),
    _law("tie_rule_by_batch", KEPT),
    _law("int64_k_as_int32", KEPT),
    _triton("int32_offsets", ACCEPTED, whole_rows=True),
    _triton("int32_offsets", OFFSETS, ("compile",)),
    _triton("loads_past_row", VALUES),
    _triton("stores_past_row", BOUNDS),
    _triton("lanes_outside_count_as_one", VALUES),
    _triton("lanes_outside_are_nan", KEPT),
    _triton("first_rows_pivot", KEPT),
    _triton("dropped_tokens_unwritten", VALUES),
    _triton("sum_of_last_block", VALUES),
    _triton("sum_of_whole_blocks", VALUES),
    _triton("divides_before_sum_is_whole", VALUES),
    _triton("sums_onto_garbage", KEPT),
    _triton("falls_back_to_torch", LAUNCHED),
    _triton("spills", SPILLS, ("compile",)),
)
"""All that must be rejected."""

CORRECT = (
    Mutant("top_k_threshold", TOP_K, "", THRESHOLD, _CORRECT),
    Mutant("top_k_stable_sort", TOP_K, "", "exact-k", _CORRECT),
    Mutant("top_k_heap", TOP_K, "", "exact-k", _CORRECT),
    Mutant("top_k_reciprocal", TOP_K, "", THRESHOLD, _CORRECT),
    Mutant("top_p_threshold", TOP_P, "", THRESHOLD, _CORRECT),
    Mutant("top_p_numpy", TOP_P, "", "exact-p", _CORRECT),
    Mutant("top_p_bisection", TOP_P, "", THRESHOLD, _CORRECT),
    Mutant("target_probs_threshold", LAW, "", THRESHOLD, _CORRECT),
    Mutant("target_probs_selection", LAW, "", "any-k", _CORRECT),
    Mutant("right", TOP_K, "", THRESHOLD, _TRITON, runtimes=("interpret", "compile")),
    Mutant("right_bisection", TOP_K, "", THRESHOLD, _TRITON, runtimes=("interpret", "compile"), whole_rows=True),
)
"""All that must pass, and what each planted fault is a fault of among them."""
