"""Makes @local_tensorflow out of the TensorFlow of the machine's Python.

The interpreter is PYTHON_BIN_PATH, else .venv/bin/python of this workspace (`make build` creates
it), else python3. The rule runs when a target of the repository is first asked for, so the
framework-free packages build and test on a machine without TensorFlow.
"""

_BUILD = """\
load("@rules_cc//cc:defs.bzl", "cc_library")

# The wall between the layers: only these packages may include a TensorFlow or Python header.
package(default_visibility = [{visibility}])

# TensorFlow's headers and the library that defines its op registry.
cc_library(
    name = "tensorflow",
    srcs = ["libtensorflow_framework.so.2"],
    hdrs = glob(["include/**"]),
    defines = {defines},
    includes = {includes},
)

# The library that XLA is in. Its headers are among TensorFlow's.
cc_library(
    name = "xla",
    srcs = ["libtensorflow_cc.so.2"],
    deps = [":tensorflow"],
)

cc_library(
    name = "pybind11",
    hdrs = glob(["pybind11_include/pybind11/**"]),
    includes = ["pybind11_include"],
    deps = [":python"],
)

cc_library(
    name = "python",
    hdrs = glob(["python_include/**/*.h"]),
    includes = ["python_include"],
)

# The interpreter itself, for tests that load what was built.
exports_files(["python.sh"])
"""

# Both are needed by XLA's headers, which include them by their bare names.
_EXTRA_INCLUDES = [
    "include/external/highwayhash",
    "include/external/farmhash_archive/src",
]

_CONSUMERS = [
    Label("//ops/python:__pkg__"),
    Label("//ops/tensorflow:__pkg__"),
    Label("//ops/xla:__pkg__"),
]

def _interpreter(repository_ctx):
    asked = repository_ctx.os.environ.get("PYTHON_BIN_PATH")
    if asked:
        path = repository_ctx.which(asked) if "/" not in asked else repository_ctx.path(asked)
        if not path or not path.exists:
            fail("PYTHON_BIN_PATH is {}, which does not exist.".format(asked))
        return path
    workspace = repository_ctx.path(Label("//:BUILD.bazel")).dirname
    for path in [workspace.get_child(".venv/bin/python"), repository_ctx.which("python3")]:
        if path and path.exists:
            return path
    fail("No python3 found: set PYTHON_BIN_PATH to an interpreter that has TensorFlow.")

def _main_repository_label(label):
    """The label as the generated BUILD file must spell it: str(label) depends on Bazel's version."""
    text = str(label)
    return text if text.startswith("@") else "@" + text

def _probe(repository_ctx, python):
    script = repository_ctx.path(Label("//third_party:probe.py"))
    result = repository_ctx.execute([python, script], timeout = 120)
    if result.return_code:
        fail("{} could not be asked for its TensorFlow:\n{}".format(python, result.stderr))
    found = json.decode(result.stdout.strip().split("\n")[-1])
    if not found["tensorflow"]:
        fail(("{} cannot import tensorflow ({}): install it there, or set PYTHON_BIN_PATH to " +
              "an interpreter that has it.").format(python, found["tensorflow_error"]))
    for key, package in [("python_include", "python3-dev"), ("pybind11_include", "pybind11")]:
        if not found[key]:
            fail("{}: no headers of {} found; install them.".format(python, package))
    return found

def _tf_configure_impl(repository_ctx):
    python = _interpreter(repository_ctx)
    found = _probe(repository_ctx, python)
    for library in ["libtensorflow_framework.so.2", "libtensorflow_cc.so.2"]:
        repository_ctx.symlink(found["tensorflow_lib"] + "/" + library, library)
    for name in ["tensorflow_include", "python_include", "pybind11_include"]:
        repository_ctx.symlink(found[name], "include" if name == "tensorflow_include" else name)
    repository_ctx.file("python.sh", "#!/bin/sh\nexec '{}' \"$@\"\n".format(python))
    visibility = ["\"" + _main_repository_label(label) + "\"" for label in _CONSUMERS]
    extra = [path for path in _EXTRA_INCLUDES if repository_ctx.path(path).exists]
    repository_ctx.file("BUILD", _BUILD.format(
        defines = repr(found["tensorflow_defines"]),
        includes = repr(["include"] + extra),
        visibility = ", ".join(visibility),
    ))

tf_configure = repository_rule(
    implementation = _tf_configure_impl,
    configure = True,
    doc = "Symlinks the headers and libraries of the machine's TensorFlow, Python and pybind11.",
    environ = ["PYTHON_BIN_PATH"],
    local = True,
)
