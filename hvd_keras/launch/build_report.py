"""``hvdrun --version`` and ``hvdrun --check-build``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hvd_keras

_PACKAGE_ROOT = Path(__file__).parents[2]
_CHECK_SECONDS = 120.0

# Runs in an interpreter of its own: the answer is what a rank would find, and hvdrun itself never
# imports TensorFlow.
_CHECK = """
import json, os, platform, sys
sys.path.insert(0, sys.argv[1])
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

def show(name, value):
    print(f"  {name:<11} {value}", flush=True)

show("python", f"{platform.python_version()} ({sys.executable})")
try:
    import tensorflow as tf
    show("tensorflow", f"found {tf.__version__} ({os.path.dirname(tf.__file__)})")
    import keras
    show("keras", f"found {keras.__version__}, backend {keras.backend.backend()}")
except Exception as error:
    show("tensorflow", f"does not import: {type(error).__name__}: {error}")
    sys.exit(1)
from hvd_keras import _library
try:
    path = _library.library_path()
    with open(path.with_name("_build_info.json"), encoding="utf-8") as file:
        built = json.load(file)
    show("built for", ", ".join(f"{key} {value}" for key, value in sorted(built.items())))
except Exception as error:
    show("built for", f"unknown: {error}")
try:
    _library.load()
    show("operations", f"loaded from {path}")
    show("transports", "shm (all ranks on one host)")
except Exception as error:
    show("operations", f"NOT loaded: {error}")
    show("transports", "none")
    sys.exit(1)
"""


def print_version() -> int:
    """Prints the version of hvd_keras; returns the exit code."""
    print(f"hvdrun (hvd_keras) {_version()}")
    return 0


def print_build() -> int:
    """Prints what was built for what, and whether it loads; returns 0 if it does, else 1."""
    print(f"hvd_keras {_version()} ({_PACKAGE_ROOT / 'hvd_keras'})", flush=True)
    command = [sys.executable, "-c", _CHECK, str(_PACKAGE_ROOT)]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=_CHECK_SECONDS
        )
    except subprocess.TimeoutExpired:
        print(f"  The check did not end within {_CHECK_SECONDS:g} s and was stopped.")
        return 1
    if child.returncode not in (0, 1):
        print(f"  The check ended with return code {child.returncode} and wrote to stderr:\n")
        print(child.stderr.decode(errors="replace"))
    return 0 if child.returncode == 0 else 1


def _version() -> str:
    return str(hvd_keras.__version__)
