"""Builds hvd_keras/_core: TensorFlow ops, engine and Python module in one shared object.

Everything declarative is in pyproject.toml. This file finds the TensorFlow that the ops are for,
and compiles ops/ against it with the machine's C++ compiler (ops/build_native.py).

TensorFlow is the user's: the library fits one minor version of it, so it must be built against the
TensorFlow that will load it, not against a fresh one in pip's isolated build environment.
Variables: HVD_BUILD_PYTHON (the interpreter whose TensorFlow to build for), CXX, CXXFLAGS, LDFLAGS,
HVD_BUILD_JOBS, and HVD_BUILD_XLA: 1 stops where the collectives cannot be compiled for
jit_compile=True, 0 leaves that part out, and without it that part is left out where it has to be.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "ops"))

import build_native  # noqa: E402  (needs the path above: a PEP 517 build does not add it)

MINIMUM_TENSORFLOW = (2, 16)

# Folders inside TensorFlow's headers that XLA's headers take for granted, where they exist.
EXTRA_TENSORFLOW_INCLUDES = ("external/highwayhash", "external/farmhash_archive/src")


def probe(python: str, clean: bool) -> dict | None:
    """What `python` has to build against (third_party/probe.py), or None if it does not run.

    clean: without the variables by which pip hides the environment's packages from a build.
    """
    environment = dict(os.environ)
    if clean:
        environment.pop("PYTHONPATH", None)
        environment.pop("PYTHONNOUSERSITE", None)
    answer = subprocess.run(
        [python, str(ROOT / "third_party" / "probe.py")],
        capture_output=True,
        text=True,
        env=environment,
    )
    lines = answer.stdout.strip().splitlines()
    if answer.returncode or not lines:
        return None
    return json.loads(lines[-1]) | {"interpreter": python}


def candidates() -> Iterator[tuple[str, bool]]:
    """The interpreters that may be the one that hvd_keras is installed for, best guess first.

    pip runs this file with that very interpreter and hides its packages through PYTHONPATH;
    other front ends (uv, build) run it in an environment of their own, and leave the user's on
    the PATH when it is active.
    """
    asked = os.environ.get("HVD_BUILD_PYTHON")
    if asked:
        yield asked, True
        return
    yield sys.executable, False
    yield sys.executable, True
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = shutil.which("python3", path=folder)
        if path:
            yield path, True


def find_tensorflow() -> dict:
    """The answer of the first candidate that has TensorFlow and fits this Python."""
    refusals: dict[str, str] = {}
    for python, clean in candidates():
        try:
            found = probe(python, clean)
        except OSError as error:
            raise SetupError(f"HVD_BUILD_PYTHON: cannot run {python}: {error.strerror}.") from None
        if found is None:
            continue
        if found["extension_suffix"] != sysconfig.get_config_var("EXT_SUFFIX"):
            if os.environ.get("HVD_BUILD_PYTHON"):
                raise SetupError(
                    f"HVD_BUILD_PYTHON is {python}, a Python {found['python']}, but the build runs "
                    f"in Python {sys.version_info[0]}.{sys.version_info[1]}: run it with that "
                    "interpreter, or name one of the same version."
                )
        elif found["tensorflow"]:
            return found
        else:
            refusals[python] = found["tensorflow_error"]
    target = os.environ.get("HVD_BUILD_PYTHON") or sys.executable
    raise SetupError(
        "hvd_keras is built against the TensorFlow you use, and "
        f"{target} cannot import tensorflow ({refusals.get(target, 'it does not run')}): install "
        "it there first (pip install tensorflow, or tensorflow-cpu), then install hvd_keras "
        "again; if TensorFlow is in another environment, set HVD_BUILD_PYTHON to its python."
    )


def preflight() -> tuple[dict, build_native.Compiler]:
    """What to build against and with; raises SetupError with the exact cause if a part lacks."""
    if not sys.platform.startswith("linux"):
        raise SetupError(f"hvd_keras builds on Linux only, not on {sys.platform}.")
    found = find_tensorflow()
    version = tuple(int(part) for part in found["tensorflow"].split(".")[:2])
    if version < MINIMUM_TENSORFLOW:
        raise SetupError(
            "hvd_keras needs TensorFlow {}.{} or later; ".format(*MINIMUM_TENSORFLOW)
            + f"{found['interpreter']} has {found['tensorflow']}: upgrade it first."
        )
    header = Path(found["tensorflow_include"]) / "tensorflow/core/framework/op.h"
    if not header.is_file():
        raise SetupError(f"This TensorFlow has no C++ headers: {header} does not exist.")
    if not found["python_include"]:
        raise SetupError(
            "Python.h not found: install Python's headers (Debian and Ubuntu: "
            f"apt-get install python{found['python']}-dev)."
        )
    try:
        import pybind11  # of the build environment, before the one that the probe saw

        found["pybind11_include"] = pybind11.get_include()
    except ImportError:
        if not found["pybind11_include"]:
            raise SetupError("pybind11 not found: pip install pybind11.") from None
    return found, build_native.Compiler.find()


def tensorflow_flags(found: dict) -> list[str]:
    include = Path(found["tensorflow_include"])
    folders = [include, *(include / name for name in EXTRA_TENSORFLOW_INCLUDES)]
    flags = [f"-D{define}" for define in found["tensorflow_defines"]]
    for folder in folders:
        flags += ["-isystem", str(folder)] if folder.is_dir() else []
    # Not read by any source: makes a new TensorFlow in the same place recompile the objects.
    return [*flags, f'-DHVD_TENSORFLOW_VERSION="{found["tensorflow"]}"']


XLA_LIBRARY = "libtensorflow_cc.so.2"
XLA_HEADERS = (
    "tensorflow/compiler/tf2xla/xla_op_kernel.h",
    "xla/hlo/builder/xla_builder.h",
    "xla/ffi/api/ffi.h",
)


def build_xla(
    compiler: build_native.Compiler,
    found: dict,
    others: list[build_native.Unit],
    objects: Path,
    flags: list[str],
) -> list[Path]:
    """Compiles ops/xla, and makes sure that TensorFlow's libraries have all that it needs.

    others: what it uses; compiled at the same time, since one file of ops/xla takes long.
    Raises BuildError, which says what is missing.
    """
    include, folder = Path(found["tensorflow_include"]), Path(found["tensorflow_lib"])
    needed = [folder / XLA_LIBRARY, *(include / header for header in XLA_HEADERS)]
    missing = [path for path in needed if not path.is_file()]
    if missing:
        raise build_native.BuildError(
            f"TensorFlow {found['tensorflow']} comes without {missing[0].name}"
        )
    wanted = build_native.units("XLA", "ops/xla", objects, flags)
    build_native.compile_units(compiler, [*wanted, *others])
    compiled = [unit.object for unit in wanted]
    # A symbol that is not there would show when the library is loaded, which then fails altogether.
    link = ["-shared", "-Wl,-z,defs", *link_flags(found, xla=True)]
    everything = [*(unit.object for unit in others), *compiled]
    build_native.link(
        compiler, everything, objects / "_xla_check.so", link, objects / "_xla_check.link"
    )
    return compiled


def link_flags(found: dict, xla: bool) -> list[str]:
    libraries = [*found["tensorflow_link"], *([f"-l:{XLA_LIBRARY}"] if xla else [])]
    return [f"-L{found['tensorflow_lib']}", *libraries]


class BuildModules(build_py):
    """Copies the Python modules, and no module that an earlier build left behind."""

    def run(self) -> None:
        if not self.editable_mode:
            for path in Path(self.build_lib, "hvd_keras").rglob("*.py"):
                path.unlink()
        super().run()


class BuildOps(build_ext):
    """Builds the extension from ops/sources.bzl, and records what it was built against."""

    def run(self) -> None:
        try:
            self.found, self.cxx = preflight()
            print(
                f"Building against TensorFlow {self.found['tensorflow']} of "
                f"{self.found['interpreter']}, with {self.cxx.description}",
                flush=True,
            )
            super().run()
        except build_native.BuildError as error:
            raise SetupError(str(error)) from None

    def build_extension(self, ext: Extension) -> None:
        # Not build_temp: editable installs get a new one each time, and would compile everything.
        tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        objects = ROOT / "build" / f"native-{tag}"
        common = ["-fPIC", "-DNDEBUG"]
        tensorflow = [*common, *tensorflow_flags(self.found)]
        python = list(tensorflow)
        for key in ("pybind11_include", "python_include"):
            python += ["-isystem", self.found[key]]
        wanted: list[build_native.Unit] = []
        for prefix, folder in build_native.FRAMEWORK_FREE.items():
            wanted += build_native.units(prefix, folder, objects, common)
        wanted += build_native.units("TENSORFLOW", "ops/tensorflow", objects, tensorflow)
        module = build_native.units("PYTHON", "ops/python", objects, python)
        xla = self._build_xla(wanted, objects, tensorflow)
        build_native.compile_units(self.cxx, wanted + module)
        compiled = [*(unit.object for unit in wanted + module), *xla]
        library = Path(self.get_ext_fullpath(ext.name))
        flags = ["-shared", *link_flags(self.found, bool(xla))]
        build_native.link(self.cxx, compiled, library, flags, objects / "_core.link")
        self._write_build_info(library.parent)

    def _build_xla(
        self, others: list[build_native.Unit], objects: Path, flags: list[str]
    ) -> list[Path]:
        """The objects of ops/xla, or none, and then self.no_xla says why."""
        self.no_xla = ""
        asked = os.environ.get("HVD_BUILD_XLA", "")
        if asked == "0":
            self.no_xla = "hvd_keras was built with HVD_BUILD_XLA=0"
            return []
        try:
            return build_xla(self.cxx, self.found, others, objects, flags)
        except build_native.BuildError as error:
            if asked == "1":
                raise
            reason = str(error).splitlines()
            self.no_xla = f"hvd_keras was built without XLA ({reason[0]})"
            print(f"Without collectives for jit_compile=True: {error}", flush=True)
            return []

    def copy_extensions_to_source(self) -> None:
        """`build_ext --inplace` and editable installs: the record goes where the library goes."""
        super().copy_extensions_to_source()
        self._write_build_info(ROOT / "hvd_keras")

    def _write_build_info(self, folder: Path) -> None:
        info = {
            "tensorflow": self.found["tensorflow"],
            "python": self.found["python"],
            "compiler": self.cxx.description,
            "no_xla": self.no_xla,
        }
        (folder / "_build_info.json").write_text(json.dumps(info, indent=2) + "\n")


setup(
    ext_modules=[Extension("hvd_keras._core", sources=[])],
    cmdclass={"build_ext": BuildOps, "build_py": BuildModules},
)
