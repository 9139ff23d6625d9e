"""Tests of the API that are not run on a cluster (`VIEWTIDE_TEST_ON_CLUSTER=1`), each with its reason.

docs/api.md has what users should know of the differences.
"""

from __future__ import annotations

_INSIDE = "looks into the node of one process: its store, its log, its pins"
_LATE = "a transaction that has read nothing hears of a key that exists at its commit"

#: By the name of the test.
REASONS = {
    "test_writes_of_one_row_follow_each_other": _LATE,
    "test_a_statement_that_fails_changes_nothing_and_the_transaction_goes_on": _LATE,
    "test_the_token_of_a_read_only_transaction_is_its_read_timestamp": "every reader has a timestamp of its own",
    "test_verify_reports": "every reader has a timestamp of its own",
    "test_many_rows_through_a_small_cache": _INSIDE,
    "test_verify_finds_a_wrong_row": _INSIDE,
    "test_an_entry_that_a_writer_and_the_builder_of_an_index_both_make_is_removed_once_and_for_all": _INSIDE,
    "test_a_view_row_that_a_writer_emptied_while_it_was_computed_is_stored": _INSIDE,
    "test_look_ups_larger_than_the_cache_end": _INSIDE,
    "test_scan_ranges_prefixes_and_limits": _INSIDE,
    "test_scans_longer_than_a_page": _INSIDE,
    "test_an_index_created_later_has_all_rows": _INSIDE,
    "test_a_transaction_that_is_older_than_the_drop_of_an_index_does_not_use_it": _INSIDE,
    "test_a_snapshot_keeps_what_is_dropped_or_says_so": _INSIDE,
    "test_row_ids_stay_above_stored_ones_when_the_clock_goes_back": "row ids are timestamps of the leader",
    "test_what_one_statement_drops_goes_in_one_change": _INSIDE,
    "test_a_unique_index_of_an_empty_table_is_one_change": _INSIDE,
    "test_a_bound_that_cannot_be_met_is_a_stale_read": _INSIDE,
    "test_tables_of_a_snapshot_are_at_its_timestamp": "nobody knows whether there are newer commits elsewhere",
    "test_common_watermarks_under_writers": "takes long; test_cluster_api has a shorter one",
    "test_pins_of_snapshots_go_with_them": _INSIDE,
    "test_a_view_is_not_listed_before_it_can_be_read": _INSIDE,
    "test_a_repair_is_a_change": _INSIDE,
    "test_a_step_that_is_open_or_dropped_does_not_count": _INSIDE,
    "test_a_follower_that_looks_in_the_middle_of_a_step": _INSIDE,
    "test_a_batch_refresh_is_an_error_with_the_way_out": _INSIDE,
    "test_without_history_bytes_a_checkpoint_takes_the_changes_along": _INSIDE,
    "test_what_is_older_than_the_history_is_refused_whether_the_log_has_it_or_not": _INSIDE,
    "test_with_no_history_only_the_newest_token_goes_on": _INSIDE,
    "test_who_follows_is_not_thrown_out": _INSIDE,
    "test_a_view_that_did_not_change_meanwhile_is_never_too_far_behind": _INSIDE,
    "test_history_is_longer_while_a_deferred_view_needs_it": _INSIDE,
    "test_a_follower_of_a_quiet_view_is_not_left_behind": "test_cluster_changes has one of its own",
    "test_tokens_of_one_flush": "nobody counts flushes of a cluster",
}
