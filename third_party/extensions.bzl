"""What MODULE.bazel takes from this machine (Bazel 7 and later)."""

load("//third_party:tf_configure.bzl", "tf_configure")

def _local_dependencies_impl(_module_ctx):
    tf_configure(name = "local_tensorflow")

local_dependencies = module_extension(implementation = _local_dependencies_impl)
