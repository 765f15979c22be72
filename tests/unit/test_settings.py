"""Settings: names, synonyms, defaults, and messages that name what is wrong."""

import pytest

from hvd_keras.settings import Settings

JOB = {"HVD_RANK": "1", "HVD_SIZE": "4", "HVD_SEGMENT": "shm:x"}


def read(**variables):
    return Settings.from_environment(variables)


def test_defaults_are_a_single_process():
    settings = read()
    assert (settings.rank, settings.size) == (0, 1)
    assert (settings.local_rank, settings.local_size) == (0, 1)
    assert (settings.cross_rank, settings.cross_size) == (0, 1)
    assert settings.segment == "" and settings.start_timeout == 30.0


def test_all_variables():
    settings = read(
        HVD_RANK="5",
        HVD_SIZE="8",
        HVD_LOCAL_RANK="1",
        HVD_LOCAL_SIZE="4",
        HVD_CROSS_RANK="1",
        HVD_CROSS_SIZE="2",
        HVD_SEGMENT="/proc/1/fd/3",
        HVD_HOST_ID="a",
        HVD_HOST_TIMEOUT_SECONDS="9",
        HVD_START_TIMEOUT="2.5",
        HVD_FUSION_THRESHOLD="0",
        HVD_DEADLOCK_SECONDS="0.5",
        HVD_STALL_CHECK_TIME_SECONDS="20",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="30",
        HVD_FLIGHT_RECORDER_DIR="/var/flight",
        HVD_TIMELINE="/tmp/t.json",
        HVD_TIMELINE_MARK_CYCLES="1",
        HVD_TIMELINE_MAX_MB="3",
        HVD_CHUNK_BYTES="4096",
    )
    assert settings == Settings(
        rank=5,
        size=8,
        local_rank=1,
        local_size=4,
        cross_rank=1,
        cross_size=2,
        segment="/proc/1/fd/3",
        host_id="a",
        host_timeout=9.0,
        start_timeout=2.5,
        fusion_threshold=0,
        deadlock_seconds=0.5,
        stall_warning_seconds=20.0,
        stall_shutdown_seconds=30.0,
        flight_recorder_dir="/var/flight",
        timeline="/tmp/t.json",
        timeline_mark_cycles=True,
        timeline_max_bytes=3 << 20,
        chunk_bytes=4096,
    )


def test_stall_check():
    settings = read(HOROVOD_STALL_CHECK_TIME_SECONDS="5")
    assert (settings.stall_warning_seconds, settings.stall_shutdown_seconds) == (5, 0)
    for text in "1", "true", "YES":
        off = read(HOROVOD_STALL_CHECK_DISABLE=text, HVD_STALL_SHUTDOWN_TIME_SECONDS="1")
        assert (off.stall_warning_seconds, off.stall_shutdown_seconds) == (0, 0)
    assert read(HVD_STALL_CHECK_DISABLE="0").stall_warning_seconds == 60


def test_a_job_on_one_host_needs_no_local_and_cross_variables():
    settings = read(**JOB)
    assert (settings.local_rank, settings.local_size) == (1, 4)
    assert (settings.cross_rank, settings.cross_size) == (0, 1)


def test_horovods_names_are_synonyms_and_ours_count_first():
    settings = read(HOROVOD_RANK="0", HOROVOD_SIZE="1", HOROVOD_FUSION_THRESHOLD="1000")
    assert settings.fusion_threshold == 1000
    settings = read(HVD_FUSION_THRESHOLD="5", HOROVOD_FUSION_THRESHOLD="not looked at")
    assert settings.fusion_threshold == 5


def test_empty_means_not_set():
    assert read(HVD_FUSION_THRESHOLD="", HOROVOD_FUSION_THRESHOLD="7").fusion_threshold == 7
    assert read(HVD_RANK="", HVD_SIZE=" ").size == 1


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        # What Horovod 0.28.1's own launcher exports, and reads as 0.
        (
            {"HOROVOD_FUSION_THRESHOLD": "(None,)"},
            ["HOROVOD_FUSION_THRESHOLD is '(None,)'", "a whole number of at least 0"],
        ),
        ({"HVD_FUSION_THRESHOLD": "64MB"}, ["HVD_FUSION_THRESHOLD is '64MB'", "whole number"]),
        ({"HVD_FUSION_THRESHOLD": "-1"}, ["HVD_FUSION_THRESHOLD is '-1'", "at least 0"]),
        ({"HVD_START_TIMEOUT": "soon"}, ["HVD_START_TIMEOUT is 'soon'", "number of seconds"]),
        ({"HVD_START_TIMEOUT": "-1"}, ["HVD_START_TIMEOUT is '-1'", "0 or more"]),
        ({"HVD_START_TIMEOUT": "nan"}, ["HVD_START_TIMEOUT is 'nan'"]),
        (
            {"HVD_STALL_SHUTDOWN_TIME_SECONDS": "30"},
            ["HVD_STALL_SHUTDOWN_TIME_SECONDS is 30", "than HVD_STALL_CHECK_TIME_SECONDS (60)"],
        ),
        ({"HVD_STALL_CHECK_DISABLE": "maybe"}, ["HVD_STALL_CHECK_DISABLE is 'maybe'", "0 or 1"]),
        ({"HVD_CHUNK_BYTES": "0"}, ["HVD_CHUNK_BYTES is '0'", "at least 64"]),
        ({**JOB, "HVD_RANK": "4"}, ["HVD_RANK is '4'", "less than HVD_SIZE (4)"]),
        ({**JOB, "HVD_RANK": "-1"}, ["HVD_RANK is '-1'", "at least 0"]),
        ({**JOB, "HVD_SIZE": "0"}, ["HVD_SIZE is '0'", "at least 1"]),
        ({**JOB, "HVD_RANK": "one"}, ["HVD_RANK is 'one'"]),
        (
            {**JOB, "HVD_LOCAL_SIZE": "2", "HVD_LOCAL_RANK": "2"},
            ["HVD_LOCAL_RANK is '2'", "less than HVD_LOCAL_SIZE (2)"],
        ),
        ({"HVD_RANK": "0"}, ["HVD_SIZE is not set, but HVD_RANK is", "hvdrun"]),
        ({"HOROVOD_SIZE": "2"}, ["HVD_RANK is not set, but HOROVOD_SIZE is", "hvdrun"]),
        (
            {"HVD_RANK": "0", "HVD_SIZE": "2"},
            ["HVD_SEGMENT is not set", "hvdrun"],
        ),
        ({"HVD_EXPECTED_SIZE": "-2"}, ["HVD_EXPECTED_SIZE is '-2'", "at least 0"]),
    ],
)
def test_messages(variables, parts):
    with pytest.raises(ValueError) as caught:
        read(**variables)
    for part in parts:
        assert part in str(caught.value)


def test_mpirun_with_one_process_is_a_single_process():
    settings = read(OMPI_COMM_WORLD_SIZE="1")
    assert (settings.size, settings.mpi_size) == (1, 0)


@pytest.mark.parametrize(
    "variables",
    [
        {"OMPI_COMM_WORLD_SIZE": "3"},
        {"PMI_SIZE": "3"},
        {"MV2_COMM_WORLD_SIZE": "3"},
        {"JSM_NAMESPACE_SIZE": "3"},
        {"PMIX_RANK": "1", "SLURM_NTASKS": "3"},
        {"HVD_EXPECTED_SIZE": "3"},
        # hvdrun has started three, but this process's MPI knows of itself alone.
        {"HVD_EXPECTED_SIZE": "3", "PMI_SIZE": "1"},
    ],
)
def test_mpi_launchers(variables):
    assert read(**variables).mpi_size == 3


def test_an_allocation_alone_is_no_mpi_launcher():
    assert read(SLURM_NTASKS="3").mpi_size == 0


def test_hvdrun_on_one_host_counts_more_than_the_mpirun_around_it():
    assert read(**JOB, OMPI_COMM_WORLD_SIZE="16").mpi_size == 0
