"""The planted faults of family ``verify`` and the right implementations beside them, as a table.

Each is a plain function with its operator's signature that anybody can put on trial alone, say with
``--provider chain_verify=selftest/mutants/verify_chain.py:greedy``; its docstring says what is wrong with it, which
public report it follows and, where it is not any, in which call it shows. Importing this table imports none of them.
"""

from __future__ import annotations

from waveproof.selftest.mutants.mutant import Mutant

CHAIN, TREE, GREEDY_TREE = "chain_verify", "target_only_verify", "tree_verify_greedy"
ACCEPT, TARGET_ONLY = "accept_sampling", "target_only_accept_sampling"
SEEDED = "seeded_chain_verify"

OUTCOME, LAW, FORM = "outcome", "law", "form"
SAMPLED, SAMPLES = "sampled law", "really samples"
ACCEPTED, REFUSED = "legal input accepted", "illegal input refused"
INPUT, REPEATS = "input unchanged", "repeat calls equal"
SURVIVES, RESULTS_STAY = "survives", "earlier results unchanged"

_CORRECT = "correct_verify.py"


_QUICK = {
    "verify_chain.py": """
        greedy threshold_nine_tenths nine_tenths_are_enough typical draft_ignored at_the_step counts_all_that_stand
        zero_q_accepted nan_q_accepted infinite_q_accepted negative_q_accepted one_coin_for_all coins_of_first_row
        rejecting_coin_draws target_of_slot_before target_of_request_before accepts_ten_thousandth_more
        ratio_in_bfloat16
        """,
    "verify_draw.py": """
        target_instead_of_residual absolute_difference residual_not_renormalised argmax_of_residual
        only_rejected_token_removed nan_q_poisons_residual empty_residual_gives_first empty_residual_gives_last
        bonus_from_slot_before bonus_from_root interval_closed_above last_token_for_high_coins
        edge_of_tile_counted_twice rest_of_vocabulary_dropped ten_thousandth_moved sums_in_bfloat16
        """,
    "verify_block.py": """
        judged_by_token prefix_not_clamped negative_q_twice prefix_as_threshold mass_unscaled coins_reversed
        one_coin_for_block residual_without_scale scale_of_prefix_before prefix_a_ten_thousandth_more shortest_prefix
        """,
    "verify_memory.py": """
        greedy_from_eight_rows rows_above_32 bad_row_spoils_batch ignores_strides_of_candidates
        ignores_strides_of_target ignores_strides_of_draft counts_root rejected_tokens_stay tail_unwritten
        same_buffer_again writes_candidates_in_place cleans_draft_in_place raises_on_nan_target aborts_on_nan_target
        returns_int64
        """,
    "verify_tree.py": """
        argmax_only threshold_single_ignored threshold_single_exclusive at_the_sum sum_not_accumulated sum_carried_down
        coin_of_root first_child_only links_of_first_row refused_stay refused_of_root_at_full_depth not_renormalised
        threshold_acc_ignored thresholds_swapped sum_a_ten_thousandth_more refused_cleared_in_place
        """,
    "verify_greedy_tree.py": """
        first_child_only last_match one_level_only last_from_root sibling_is_child counts_root ignores_strides
        """,
    "verify_accept.py": """
        greedy temperature_ignored temperature_of_first_request filters_of_first_request limits_repeated_by_slot
        top_k_ignored top_p_first draft_filtered_too target_instead_of_residual at_the_step last_token_for_high_coins
        cut_ignored cut_one_late cut_draws_from_target cut_draws_from_residual cut_counts_uncut ignores_strides
        int64_k_as_int32 unknown_path_is_dense divides_logits_in_place half_precision_logits
        """,
    "verify_target_only_accept.py": """
        greedy limits_repeated_by_slot refused_token_stays thresholds_ignored top_p_first
        """,
    "verify_seeded.py": """
        greedy seed_ignored same_noise_for_every_row same_noise_for_pairs_of_rows one_coin_for_all rejecting_coin_draws
        temperature_of_first_row target_instead_of_residual residual_not_renormalised
        """,
}
"""By file, the faults that stand for all of their kinds where there is no time for all: the quick profile."""


def _of(operator: str, file: str, variant: str, seen: dict[str, str]) -> tuple[Mutant, ...]:
    """Faults of one file, each rule with the names of those that break it."""
    quick = _QUICK[file].split()
    if unknown := set(quick) - {name for names in seen.values() for name in names.split()}:
        raise ValueError(f"{file} has no faults {sorted(unknown)}")
    return tuple(
        Mutant(name, operator, rule, variant, file, profile="quick" if name in quick else "default")
        for rule, names in seen.items()
        for name in names.split()
    )


_CHAIN = _of(
    CHAIN,
    "verify_chain.py",
    "half-open",
    {
        OUTCOME: """
            greedy all_accepted none_accepted accepted_where_target_is_larger threshold_nine_tenths
            nine_tenths_are_enough typical draft_ignored ratio_inverted at_the_step counts_all_that_stand
            until_last_that_stands one_at_most last_draft_token_never zero_q_accepted nan_q_accepted infinite_q_accepted
            negative_q_accepted q_above_one_accepted q_of_one_rejected one_coin_for_all coins_of_first_row
            coins_of_next_position final_coin_judges_last rejecting_coin_draws first_coin_draws final_coin_of_first_row
            target_of_next_slot target_of_slot_before target_of_first_slot draft_of_slot_before target_of_request_before
            tokens_of_slot_before
            """,
        LAW: """
            epsilon_in_denominator ratio_in_bfloat16 ratio_in_float16 accepts_ten_thousandth_more
            accepts_ten_thousandth_less coins_in_bfloat16
            """,
    },
)

_DRAW = _of(
    CHAIN,
    "verify_draw.py",
    "half-open",
    {
        OUTCOME: """
            target_instead_of_residual draft_instead_of_residual absolute_difference difference_of_wrong_sign
            residual_not_renormalised argmax_of_residual argmax_after_rejection residual_made_uniform residual_squared
            only_rejected_token_removed nan_q_poisons_residual nan_q_leaves_nothing infinite_q_leaves_nothing
            negative_q_adds q_above_one_leaves_nothing empty_residual_gives_first empty_residual_gives_last
            bonus_from_slot_before bonus_from_root bonus_without_draft residual_of_slot_before draft_of_first_slot
            draft_of_request_before target_of_first_request interval_closed_above one_token_early
            last_token_for_high_coins coin_stretched rest_of_vocabulary_dropped edge_of_tile_counted_twice
            sum_of_first_tile index_within_tile
            """,
        LAW: """
            residual_with_floor residual_in_bfloat16 ten_thousandth_moved coin_in_float16 sums_in_float16
            sums_in_bfloat16
            """,
    },
)

_BLOCK = _of(
    CHAIN,
    "verify_block.py",
    "half-open",
    {
        OUTCOME: """
            judged_by_token always_a_block flag_inverted prefix_not_clamped prefix_clamped_at_end
            prefix_of_last_token_only prefix_outlives_what_is_no_probability negative_q_twice prefix_as_threshold
            threshold_without_complement mass_as_threshold mass_of_slot_before mass_unscaled mass_counts_negative_q
            mass_loses_what_is_no_probability at_the_threshold stops_at_first_failure shortest_prefix whole_or_nothing
            coins_reversed one_coin_for_block scale_of_whole_chain threshold_as_scale target_after_block
            rejected_prefix_gives_root_row probabilities_of_next_slot
            """,
        LAW: """
            residual_without_scale scale_of_prefix_before scale_on_draft prefix_a_ten_thousandth_more
            prefix_a_ten_thousandth_less prefix_in_float16
            """,
    },
)

_MEMORY = _of(
    CHAIN,
    "verify_memory.py",
    "half-open",
    {
        OUTCOME: """
            greedy_from_eight_rows rows_above_32 first_and_last_swapped lengths_of_first_row bad_row_spoils_batch
            bad_row_spoils_next token_beyond_vocabulary candidates_as_int32 stale_output ignores_strides_of_candidates
            ignores_strides_of_target ignores_strides_of_draft target_strides_for_draft ignores_strides_of_coins
            counts_root root_comes_first rejected_tokens_stay zeros_behind last_token_at_end
            """,
        REPEATS: "own_random_numbers tail_unwritten last_token_unwritten",
        RESULTS_STAY: "same_buffer_again",
        INPUT: "writes_candidates_in_place subtracts_in_place cleans_draft_in_place",
        ACCEPTED: "raises_on_zero_row raises_on_nan_target refuses_bad_q tokens_alone",
        SURVIVES: "aborts_on_nan_target",
        FORM: """
            returns_int64 returns_int64_lengths returns_column_of_lengths returns_flat_tokens returns_no_slot_for_last
            tokens_first
            """,
    },
)

_TREE = _of(
    TREE,
    "verify_tree.py",
    "half-open",
    {
        OUTCOME: """
            argmax_only threshold_single_ignored threshold_single_exclusive at_the_sum sum_not_accumulated
            sum_carried_down coin_of_root coin_of_child coin_of_level coins_of_first_row first_child_only
            last_sibling_missed children_in_reverse one_level_only last_level_missed links_of_first_row
            candidates_of_first_row target_of_root target_of_node_before refused_stay only_last_refused_removed
            refused_of_all_levels_removed refused_of_level_before_removed refused_of_root_at_full_depth not_renormalised
            interval_closed_above last_from_root last_from_parent argmax_after_walk nodes_for_tokens counts_root
            """,
        LAW: """
            threshold_acc_ignored thresholds_swapped threshold_acc_multiplies threshold_single_of_sum sum_in_float16
            sum_a_ten_thousandth_more
            """,
        INPUT: "refused_cleared_in_place",
        FORM: "as_wide_as_tree",
        ACCEPTED: "raises_on_zero_row",
    },
)

_GREEDY_TREE = _of(
    GREEDY_TREE,
    "verify_greedy_tree.py",
    "first-match",
    {
        OUTCOME: """
            first_child_only last_sibling_missed any_child last_match one_level_only last_level_missed last_from_root
            last_from_parent matches_own_choice candidates_of_first_row target_of_row_before sibling_is_child
            counts_root without_last ignores_strides
            """,
        FORM: "returns_int64 depth_plus_one",
    },
)

_ACCEPT = _of(
    ACCEPT,
    "verify_accept.py",
    "half-open",
    {
        OUTCOME: """
            greedy temperature_ignored temperature_inverted temperature_of_first_request filters_of_first_request
            largest_top_k_for_all limits_repeated_by_slot top_k_ignored top_p_ignored
            filtered_not_renormalised sparse_path_without_top_p dense_path_unfiltered draft_filtered_too draft_heated
            target_of_next_slot slots_by_requests block_flag_dropped target_instead_of_residual draft_ignored
            at_the_step last_token_for_high_coins cut_ignored cut_one_late cut_one_early cut_of_first_request
            cut_of_request_before cut_draws_from_target cut_draws_from_residual cut_keeps_token_of_whole_chain
            cut_repeats_last_accepted cut_where_nothing_was_lost cut_counts_uncut ignores_strides
            int64_k_as_int32 bad_row_spoils_batch
            """,
        LAW: "temperature_last bonus_unfiltered half_precision_logits top_p_first",
        INPUT: "divides_logits_in_place",
        REFUSED: "unknown_path_is_dense",
        ACCEPTED: "raises_on_infinite_logit refuses_bfloat16_logits",
        FORM: "returns_int64",
    },
)

_TARGET_ONLY = _of(
    TARGET_ONLY,
    "verify_target_only_accept.py",
    "half-open",
    {
        OUTCOME: """
            greedy temperature_ignored temperature_of_first_request limits_repeated_by_slot always_lossy
            coin_of_judged_token refused_token_stays at_the_step last_slot_not_judged bonus_from_root argmax_after_walk
            ignores_strides
            """,
        LAW: "filters_ignored sparse_path_without_top_p top_p_first thresholds_ignored thresholds_swapped",
        REFUSED: "unknown_path_is_dense",
    },
)

_SEEDED = _of(
    SEEDED,
    "verify_seeded.py",
    "sampled",
    {
        SAMPLES: "greedy seed_ignored",
        SAMPLED: """
            same_noise_for_every_row same_noise_for_pairs_of_rows one_coin_for_all coin_by_token
            rejecting_coin_draws first_coin_draws coins_in_sixteenths final_coin_in_sixteenths normal_noise
            temperature_ignored temperature_of_first_row draft_temperature_ignored one_temperature_for_both all_accepted
            draft_ignored threshold_nine_tenths target_instead_of_residual residual_not_renormalised argmax_of_residual
            bonus_from_root
            """,
        REPEATS: "seed_by_the_clock",
    },
)

MUTANTS = (
    *_CHAIN,
    *_DRAW,
    *_BLOCK,
    *_MEMORY,
    *_TREE,
    *_GREEDY_TREE,
    *_ACCEPT,
    *_TARGET_ONLY,
    *_SEEDED,
)
"""All that must be rejected."""

CORRECT = (
    Mutant("chain_in_float64", CHAIN, "", "half-open", _CORRECT),
    Mutant("chain_by_division", CHAIN, "", "half-open", _CORRECT),
    Mutant("chain_by_reciprocal", CHAIN, "", "half-open", _CORRECT),
    Mutant("chain_by_rows", CHAIN, "", "half-open", _CORRECT),
    Mutant("tree_by_loops", TREE, "", "half-open", _CORRECT),
    Mutant("tree_by_recursion", TREE, "", "half-open", _CORRECT),
    Mutant("greedy_by_loops", GREEDY_TREE, "", "first-match", _CORRECT),
    Mutant("greedy_by_recursion", GREEDY_TREE, "", "first-match", _CORRECT),
    Mutant("accept_at_once", ACCEPT, "", "half-open", _CORRECT),
    Mutant("accept_by_requests", ACCEPT, "", "half-open", _CORRECT),
    Mutant("accept_by_division", ACCEPT, "", "half-open", _CORRECT),
    Mutant("target_only_at_once", TARGET_ONLY, "", "half-open", _CORRECT),
    Mutant("target_only_as_one_hot", TARGET_ONLY, "", "half-open", _CORRECT),
    Mutant("seeded_coins", SEEDED, "", "sampled", _CORRECT),
    Mutant("seeded_gumbel", SEEDED, "", "sampled", _CORRECT),
    Mutant("seeded_by_slots", SEEDED, "", "sampled", _CORRECT),
)
"""All that must pass, and what each planted fault is a fault of among them."""
