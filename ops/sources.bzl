"""The sources of ops/, listed once for both builds.

The BUILD files load this file, and setup.py reads it (as Python), so it holds nothing but literal
lists. Paths are relative to the folder named by the prefix.
"""

# ops/core: the engine. No TensorFlow, no Python.
CORE_HDRS = [
    "dtype.h",
    "reduce.h",
    "reduce_variants.h",
    "status.h",
]

# Included in the middle of other files.
CORE_TEXTUAL_HDRS = ["reduce_kernels.inc"]

CORE_SRCS = [
    "dtype.cc",
    "reduce.cc",
    "reduce_kernels_avx2.cc",
    "reduce_kernels_avx512.cc",
    "reduce_kernels_baseline.cc",
    "status.cc",
]

CORE_TESTS = []

# ops/transport/shm: ranks on one host, through shared memory.
SHM_HDRS = []

SHM_SRCS = []

SHM_TESTS = []

# ops/world: the one object of a process that owns the engine and its transport.
WORLD_HDRS = []

WORLD_SRCS = []

WORLD_TESTS = []

# ops/tensorflow: one collective, one file.
TENSORFLOW_HDRS = []

TENSORFLOW_SRCS = []

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
