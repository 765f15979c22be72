"""Loads the library that Bazel built, as hvd_keras does: first its ops, then the module."""

import importlib.util
import os
import sys

import tensorflow as tf


def main() -> None:
    path = os.path.abspath(sys.argv[1])
    ops = tf.load_op_library(path)
    spec = importlib.util.spec_from_file_location("_core", path)
    assert spec is not None and spec.loader is not None
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    missing = [name for name in ("hvd_allreduce", "hvd_barrier") if not hasattr(ops, name)]
    if missing or not hasattr(core, "init"):
        sys.exit(f"{path} lacks {missing or 'init'}")
    print(f"loaded {path} in TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
