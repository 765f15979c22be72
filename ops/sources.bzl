"""The sources of ops/, listed once for both builds.

The BUILD files load this file, and setup.py reads it (as Python), so it holds nothing but literal
lists. Paths are relative to the folder named by the prefix.
"""

# ops/core: the engine. No TensorFlow, no Python.
CORE_HDRS = [
    "adasum.h",
    "backoff.h",
    "clock.h",
    "communicator.h",
    "dtype.h",
    "engine.h",
    "execute.h",
    "exposure.h",
    "hash.h",
    "host_map.h",
    "messenger.h",
    "phases.h",
    "ranks.h",
    "recorder.h",
    "reduce.h",
    "reduce_variants.h",
    "request.h",
    "scheduler.h",
    "status.h",
    "stores.h",
    "stream.h",
    "timeline.h",
    "timeline_format.h",
    "trace_file.h",
]

# Included in the middle of other files.
CORE_TEXTUAL_HDRS = ["reduce_kernels.inc"]

CORE_SRCS = [
    "adasum.cc",
    "communicator.cc",
    "dtype.cc",
    "engine.cc",
    "execute.cc",
    "exposure.cc",
    "recorder.cc",
    "reduce.cc",
    "reduce_kernels_avx2.cc",
    "reduce_kernels_avx512.cc",
    "reduce_kernels_baseline.cc",
    "request.cc",
    "status.cc",
    "stores.cc",
    "timeline.cc",
    "timeline_format.cc",
    "trace_file.cc",
]

CORE_TESTS = [
    "exposure_test.cc",
    "recorder_test.cc",
    "reduce_test.cc",
    "timeline_test.cc",
    "trace_file_test.cc",
]

# ops/transport/shm: ranks on one host, through shared memory.
SHM_HDRS = [
    "board.h",
    "crossing.h",
    "futex.h",
    "layout.h",
    "process.h",
    "segment.h",
    "shm_communicator.h",
    "shm_scheduler.h",
    "stall_reporter.h",
    "store_choice.h",
    "stuck_detector.h",
    "waiter.h",
]

SHM_SRCS = [
    "board.cc",
    "crossing.cc",
    "process.cc",
    "segment.cc",
    "shm_communicator.cc",
    "shm_scheduler.cc",
    "stall_reporter.cc",
    "store_choice.cc",
    "stuck_detector.cc",
    "waiter.cc",
]

# Used by the tests alone.
SHM_TEST_HDRS = [
    "thread_world.h",
    "workload.h",
]

SHM_TESTS = [
    "failure_text_test.cc",
    "segment_test.cc",
    "shm_engine_test.cc",
    "shm_fault_test.cc",
    "shm_groups_test.cc",
    "shm_soak_test.cc",
    "shm_stall_test.cc",
    "shm_timeline_test.cc",
    "store_choice_test.cc",
]

# ops/transport/mpi: messages between hosts.
MPI_HDRS = [
    "mpi_library.h",
    "mpi_messenger.h",
]

MPI_SRCS = [
    "mpi_library.cc",
    "mpi_messenger.cc",
]

MPI_TESTS = []

# ops/hosts: the job as a whole, from shared memory within hosts and messages between them.
HOSTS_HDRS = [
    "abandon.h",
    "agent.h",
    "coordinator.h",
    "exchange.h",
    "hosts_communicator.h",
    "message.h",
    "plan_learner.h",
]

HOSTS_SRCS = [
    "agent.cc",
    "agent_clock.cc",
    "allreduce.cc",
    "coordinator.cc",
    "exchange.cc",
    "gather.cc",
    "hosts_communicator.cc",
    "message.cc",
    "plan_learner.cc",
]

# Used by the tests alone.
HOSTS_TEST_HDRS = ["thread_hosts.h"]

HOSTS_TESTS = [
    "hosts_engine_test.cc",
    "hosts_fault_test.cc",
    "plan_test.cc",
]

# ops/world: the one object of a process that owns the engine and its transport.
WORLD_HDRS = [
    "topology.h",
    "world.h",
]

WORLD_SRCS = [
    "topology.cc",
    "world.cc",
]

WORLD_TESTS = []

# ops/tensorflow: one collective, one file.
TENSORFLOW_HDRS = [
    "collective_kernel.h",
]

TENSORFLOW_SRCS = [
    "allgather.cc",
    "allreduce.cc",
    "alltoall.cc",
    "barrier.cc",
    "broadcast.cc",
    "collective_kernel.cc",
    "fence.cc",
    "join.cc",
    "reducescatter.cc",
    "topology.cc",
]

# ops/xla: the same collectives inside functions that XLA compiles. setup.py leaves them out where
# TensorFlow comes without XLA.
XLA_HDRS = [
    "attributes.h",
    "call_order.h",
    "collectives.h",
    "completion.h",
    "custom_calls.h",
]

XLA_SRCS = [
    "attributes.cc",
    "call_order.cc",
    "collectives.cc",
    "completion.cc",
    "handlers.cc",
    "lowering.cc",
]

# ops/python: the pybind11 module.
PYTHON_SRCS = ["module.cc"]

# How all of them are compiled. No -march: one build serves every processor of its kind, and
# the kernels choose their instruction set at run time. No contraction of a * b + c: results are
# the same with every instruction set.
COPTS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wextra",
]
