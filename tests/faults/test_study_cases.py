"""Which test stands for which case of the reliability study, where that is not a job of its own
(test_faults.py).
"""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CASES = {
    "7: a rank is killed, training is resumed": """
        checkpoint/test_protocol.py::test_processes_killed_by_the_system_go_on_bit_for_bit
        checkpoint/test_background.py::test_processes_killed_by_the_system_go_on_bit_for_bit
        examples/test_examples.py::test_training_that_was_killed_goes_on_bit_for_bit_and_on_other_numbers_of_ranks
        training/test_parallel_training.py::test_a_resumed_training_over_ranks_is_bit_for_bit_the_same""",
    "13: SIGTERM": """
        checkpoint/test_notice.py::test_a_job_that_is_told_to_end_saves_and_goes_on_bit_for_bit""",
    "34: two jobs on one folder": """
        checkpoint/test_checkpointer.py::test_a_second_job_in_one_folder_is_refused_and_hears_of_the_first
        checkpoint/test_protocol.py::test_what_a_living_job_is_writing_is_left_alone""",
    "35: a full or closed disk": """
        checkpoint/test_damage.py::test_a_full_disk_is_an_error_on_all_ranks_and_leaves_no_trace
        checkpoint/test_damage.py::test_a_closed_disk_is_an_error_and_the_older_checkpoint_stays
        checkpoint/test_background.py::test_a_full_disk_is_an_error_on_all_ranks_at_the_next_call_and_leaves_no_trace
        serializers/test_npz.py::test_a_full_disk_is_an_error_and_the_old_file_stays
        training/test_snapshots.py::test_an_error_of_a_writer_is_one_of_training""",
    "36: kill -9 at every step of the protocol": """
        checkpoint/test_protocol.py::test_a_job_killed_at_any_step_goes_on_bit_for_bit
        checkpoint/test_background.py::test_a_job_killed_at_any_step_goes_on_bit_for_bit""",
    "37: damaged checkpoints": """
        checkpoint/test_damage.py::test_a_damaged_checkpoint_is_refused_and_an_older_one_is_taken
        checkpoint/test_damage.py::test_every_flipped_bit_is_noticed
        checkpoint/test_damage.py::test_another_model_is_refused_by_name""",
    "38: other numbers of ranks": """
        checkpoint/test_layouts.py::test_each_tensor_is_whole_on_any_number_of_ranks
        checkpoint/test_layouts.py::test_ranks_that_differ_cannot_be_other_ranks
        checkpoint/test_divided_links.py::test_training_goes_on_with_the_losses_of_one_process""",
    "39: damaged data sets": """
        datasets/test_idx.py::test_a_damaged_file_is_refused_with_file_offset_expected_and_found
        datasets/test_idx.py::test_a_bomb_costs_an_error_and_no_memory
        datasets/test_mnist.py::test_a_damaged_or_mislabelled_file_is_named
        datasets/test_mnist.py::test_a_missing_file_is_named_with_where_it_was_looked_for_and_the_remedy
        datasets/test_scatter.py::test_indices_are_cut_as_chainermn_cuts_them""",
    "40: hostile files": """
        serializers/test_npz.py::test_a_hostile_or_damaged_file_is_refused
        serializers/test_npz.py::test_names_that_point_elsewhere_are_only_names
        serializers/test_safetensors.py::test_a_hostile_or_damaged_file_is_refused
        checkpoint/test_damage.py::test_a_manifest_of_anything_with_the_right_digest_is_read_or_refused
        datasets/test_cifar.py::test_an_archive_is_never_unpacked_to_the_disk""",
    "41: bad flags": """
        examples/test_examples.py::test_bad_flags_are_one_usage_error
        examples/test_training_examples.py::test_a_bad_number_is_one_usage_error
        communicators/test_contract.py::test_bad_arguments_of_create_communicator
        examples/test_spatial_examples.py::test_bad_flags_are_usage_errors""",
}


@pytest.mark.parametrize("case", CASES)
def test_a_case_of_the_study_has_its_tests(case):
    for test in CASES[case].split():
        file, name = test.split("::")
        assert re.search(rf"^def {name}\(", (TESTS / file).read_text(), re.MULTILINE), test
