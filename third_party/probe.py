"""Prints, as one line of JSON, what this interpreter has for hvd_keras to be built against.

Both builds ask here, setup.py and Bazel (tf_configure.bzl), so that they agree. Keys:

    python                   "3.11"
    extension_suffix         ".cpython-311-x86_64-linux-gnu.so"
    python_include           the folder of Python.h, or null
    pybind11_include         the folder of pybind11/pybind11.h, or null
    tensorflow               "2.21.0", or null when `import tensorflow` fails; then
    tensorflow_error         says why
    tensorflow_lib           the folder of libtensorflow_framework.so.2
    tensorflow_include       the folder of tensorflow/core/framework/op.h
    tensorflow_defines       e.g. ["_GLIBCXX_USE_CXX11_ABI=1"]
    tensorflow_link          e.g. ["-l:libtensorflow_framework.so.2"]

It needs nothing but the standard library, and imports TensorFlow to learn the truth about it.
"""

import glob
import importlib.util
import json
import os
import sys
import sysconfig


def python_include(tensorflow_include):
    """Python's own headers, else the copy that TensorFlow's wheel holds.

    Debian and Ubuntu put Python.h into a package of its own, which needs root to install. Wheels
    are built for one minor version of Python, and ship that version's headers.
    """
    folders = [sysconfig.get_paths()["include"]]
    if tensorflow_include:
        external = os.path.join(tensorflow_include, "external")
        folders.append(os.path.join(external, "local_config_python", "python_include"))
        folders += sorted(glob.glob(os.path.join(external, "python_*", "include", "python3*")))
    for folder in folders:
        if _header_minor_version(folder) == sys.version_info[:2]:
            return folder
    return None


def _header_minor_version(folder):
    if not os.path.isfile(os.path.join(folder, "Python.h")):
        return None
    numbers = {}
    with open(os.path.join(folder, "patchlevel.h")) as lines:
        for line in lines:
            words = line.split()
            if len(words) >= 3 and words[1] in ("PY_MAJOR_VERSION", "PY_MINOR_VERSION"):
                numbers[words[1]] = int(words[2])
    return numbers.get("PY_MAJOR_VERSION"), numbers.get("PY_MINOR_VERSION")


def pybind11_include(tensorflow_include):
    """The installed pybind11, else the copy that TensorFlow's wheel holds."""
    folders = []
    spec = importlib.util.find_spec("pybind11")
    if spec and spec.submodule_search_locations:
        folders.append(os.path.join(list(spec.submodule_search_locations)[0], "include"))
    if tensorflow_include:
        folders.append(os.path.join(tensorflow_include, "external", "pybind11", "include"))
    for folder in folders:
        if os.path.isfile(os.path.join(folder, "pybind11", "pybind11.h")):
            return folder
    return None


def tensorflow():
    """What `import tensorflow` says about itself."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf

        compile_flags = tf.sysconfig.get_compile_flags()
        link_flags = tf.sysconfig.get_link_flags()
    except Exception as error:  # a broken installation raises anything at all
        missing = isinstance(error, ImportError) and error.name == "tensorflow"
        reason = "it is not installed" if missing else f"{type(error).__name__}: {error}"
        return {"tensorflow": None, "tensorflow_error": reason}
    return {
        "tensorflow": tf.__version__,
        "tensorflow_lib": tf.sysconfig.get_lib(),
        "tensorflow_include": tf.sysconfig.get_include(),
        "tensorflow_defines": [flag[2:] for flag in compile_flags if flag.startswith("-D")],
        "tensorflow_link": [flag for flag in link_flags if flag.startswith("-l")],
    }


def main():
    answer = {
        "python": "{}.{}".format(*sys.version_info[:2]),
        "extension_suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    }
    answer.update(tensorflow())
    include = answer.get("tensorflow_include")
    answer["python_include"] = python_include(include)
    answer["pybind11_include"] = pybind11_include(include)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
