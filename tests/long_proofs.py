"""The tests that are long proofs: `nox -s tests` runs them, `nox -s ci` leaves them out.

Each goes on where shorter tests of its file end: more captures, faults, endpoints, or ways to start a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

LONG: Mapping[str, str] = {
    "action/test_action.py": r"gates_a_server_that_conforms",
    "conformance/test_bounded_caches.py": r"\[with_keys_of_its_own\]",
    "conformance/test_evicted.py": r"same_report",
    "conformance/test_exploration_search.py": r"shapes_are_many",
    "conformance/test_null_targets.py": r"everything_is_asked\[(?!HTML)",
    "conformance/test_patterns.py": r"grow_as_their_text\[[1-5]\]",
    "conformance/test_reasons.py": (
        r"\[(?!transformers/5.23.0/live-serve|litellm/.*(before|quick)|vllm/.*interval-1)"
    ),
    "conformance/test_stopped_runs.py": r"until_a_signal.*\[15\]",
    "conformance/test_strangers_files.py": r"\[(.*many_values|merge-endless_line)\]|as_long_as_it_may_be",
    "conformance/test_vllm_front_ends.py": r"whole_run.*rust-standard",
    "docs/test_contributors_guide.py": r"new_requirement_ends_in_green_tests",
    "docs/test_first_command.py": r"installs_it_beside_itself.*\[ensurepip\]",
    "docs/test_smallest_server.py": r"smallest_server_conforms",
    "docs/test_tutorial.py": r"print_what_the_tutorial_shows",
    "end_to_end/test_blocks_and_ranks.py": r"",
    "end_to_end/test_combined_modes.py": r"shapes_of_vllm_with_parsers",
    "end_to_end/test_commands_on_a_server.py": r"somebody_elses_pytest|from_init_to_a_recording",
    "end_to_end/test_compare.py": r"two_servers_of_one_kind|faulty_fork",
    "end_to_end/test_dying_halves.py": r"the link-(before|after)|while it decodes",
    "end_to_end/test_dying_servers.py": r"\[(hangs|dies-of-an-unknown-id)-|started_again",
    "end_to_end/test_exploration.py": r"same_seed|one_field_shrinks|left_in_peace",
    "end_to_end/test_gateway_and_worker.py": r"defect_of_a_proxy_is_seen\[(loses|drops|renames|refuses)",
    "end_to_end/test_near_ties.py": r"",
    "end_to_end/test_plan.py": r"sends_more_than_its_plan\[flags[01]-",
    "end_to_end/test_profiles_answer_no.py": (
        r"no_profile_says_yes.*\[(cumulative|incremental|--tool-call|--test-retract|--lora)"
    ),
    "end_to_end/test_recorded_shapes.py": (
        r"alike\[(?!sglang/(I4_extra_mirror_incr|Q_queue|S2_retract_incr)|vllm/si3)"
        r"|every_deliberate_difference|goes_everywhere"
    ),
    # What these show of a row, FAIL or PASS, shorter ones show too, but for a verdict or two.
    "end_to_end/test_recorded_servers.py": (
        r"judged_as_before\[(sglang/0.5.1[23].*(incr_int|live-cumulative)"
        r"|sglang/0.5.23/(F3_|script-incremental)"
        r"|sglang/0.5.23/live-(cumulative-o|gentle|incremental|restarted|skip|standard|without-o)"
        r"|sglang-router/.*(before|died)|smg/.*(quick|grpc-before)"
        r"|transformers/.*continuous|llama-cpp-python/.*quick"
        r"|vllm/.*(/script|live-(interval|parrot-quick|sentencepiece|split|stock)))"
        r"|one_cause\[llama|(as_before|one_cause)\[litellm/.*four"
    ),
    "end_to_end/test_reference_conforms.py": (
        r"(violates_nothing|says_the_same|is_decided|preempted|are_none)\[(cumulative|vLLM's shapes|images"
        r"|experts|every fourth token|n-gram speculation|no tokenizer|storage tiers|its own worker"
        r"|retractions|parsers)\]|quick_budget|nothing_that_applies|every_requirement|table_of_traceability|each_requirement"
    ),
    "end_to_end/test_twin.py": r"^(?!test_every_endpoint)|\[(sglang|vllm)-(completions|chat)\]",
    "proofs/test_event_stream_proof.py": (
        r"read_alike_.*\[(?!sglang/0.5.23/(A_base|C_incr|items)|vllm/0.32.0-cpu/si3)"
    ),
    "proofs/test_fuzz_doors.py": r"fails_the_server\[sglang\]",
    "proofs/test_kill_matrix.py": r"agrees\[others\]|sees_nothing",
    "proofs/test_same_evidence.py": r"was_written_down\[sglang",
    "proofs/test_schedules.py": r"late_key_too_early|reader_that_loses",
    "proofs/test_small_scope.py": r"decided_for_every_delivery\[-3\]",
    "proofs/test_soak.py": r"counted_server",
    "proofs/test_twins_proof.py": r"through_two_servers",
    "proofs/test_vectors.py": r"judge_says_what.*\[(?!openai-completions)|100_000_events",
    "proofs/test_witness_audit.py": r"\[(cumulative|incremental|vllm)-.*-(all 400|status as it was)\]",
    "reference/faults/test_faulty_wire.py": r"over_with_its_request\[[d-z]",
    "reference/serving/test_serve.py": r"slow_reader.*\[True\]",
    "reference/serving/test_text_of_every_tokenizer.py": (
        r"a_stop_(string|pattern).*\[(?!byte-level\]|SentencePiece\])"
    ),
    "reference/test_attention.py": r"triton_kernel_is_attention\[(3-3-24|4-2-16)",
    "reference/test_batch_invariance.py": r"\[cpu-bfloat16",
    "reference/test_core_alone.py": r"",
    "reference/test_cuda_path.py": r"kernel_compiles|where_it_belongs\[(drafts|chunks)",
    "reference/test_decode_graphs.py": r"replayed_graphs",
    "reference/test_speculative_decoding.py": r"\[cpu-bfloat16",
    "spec/test_worked_examples.py": r"show_what_was_recorded",
    "twin/test_recorded_pairs.py": r"parsers\]|itself_are_the_same\[vllm",
}
"""A file below `tests`, and what the names of its long tests have in them."""


def mark_long(items: Sequence[pytest.Item], arguments: Sequence[str]) -> None:
    """Mark them. Raises UsageError for a row that names no test of a file that is run."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0].rpartition("tests/")[2], []).append(item)
    for file, pattern in LONG.items():
        of_file = by_file.get(file, [])
        long = [item for item in of_file if re.search(pattern, item.name)]
        if of_file and not long and not any("::" in argument for argument in arguments):
            raise pytest.UsageError(f"tests/long_proofs.py: {file} has no test whose name matches {pattern}")
        for item in long:
            item.add_marker(pytest.mark.long)
