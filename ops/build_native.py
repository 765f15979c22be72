"""Compiles ops/ with the machine's C++ compiler, without Bazel.

setup.py builds the extension with it. Where Bazel is absent, the C++ tests run through it too:

    python ops/build_native.py test [--sanitize thread|address|undefined|address,undefined]

Objects are compiled in parallel, and again only when a source, a header, a flag or the compiler
has changed. Nothing but the standard library is needed.
"""

from __future__ import annotations

import argparse
import ast
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPS = ROOT / "ops"

# The prefixes of sources.bzl and the folders they speak of, from the bottom layer to the top.
FRAMEWORK_FREE = {
    "CORE": "ops/core",
    "SHM": "ops/transport/shm",
    "MPI": "ops/transport/mpi",
    "HOSTS": "ops/hosts",
    "WORLD": "ops/world",
}

# The first releases with a complete C++17 library, which TensorFlow's headers need.
MINIMUM_GCC = 9
MINIMUM_CLANG = 10

GOOGLETEST_FOLDERS = ("/usr/src/googletest", "/usr/src/gtest")
TEST_TIMEOUT_SECONDS = 300
SANITIZERS = ("thread", "address", "undefined", "address,undefined")


class BuildError(Exception):
    """The build cannot go on; the message says why and what to do."""


def read_sources(path: Path = OPS / "sources.bzl") -> dict[str, list[str]]:
    """The lists of ops/sources.bzl by name: a file that both Starlark and Python can read."""
    lists = {}
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            lists[statement.targets[0].id] = ast.literal_eval(statement.value)
    return lists


def default_jobs() -> int:
    """Compilers to run at once: HVD_BUILD_JOBS, else one per core and 2 GiB of memory."""
    asked = os.environ.get("HVD_BUILD_JOBS")
    if asked:
        if not asked.isdigit() or int(asked) == 0:
            raise BuildError(f"HVD_BUILD_JOBS must be a positive number, not {asked!r}.")
        return int(asked)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // (2 << 30)))


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that is new enough."""

    command: tuple[str, ...]
    description: str

    @staticmethod
    def find() -> Compiler:
        """$CXX, else g++, c++ or clang++. Raises BuildError when there is none or it is too old."""
        asked = os.environ.get("CXX")
        for name in [asked] if asked else ["g++", "c++", "clang++"]:
            command = tuple(shlex.split(name))
            if command and shutil.which(command[0]):
                return Compiler(command, _describe(command))
        raise BuildError(
            f"No C++ compiler found ({asked or 'g++'}): install g++ "
            "(Debian and Ubuntu: apt-get install g++), or set CXX to the compiler to use."
        )


def _describe(command: tuple[str, ...]) -> str:
    """'g++ 12.2.0', as the compiler's own macros tell."""
    answer = subprocess.run(
        [*command, "-dM", "-E", "-x", "c++", "/dev/null"], capture_output=True, text=True
    )
    if answer.returncode:
        raise BuildError(f"{shlex.join(command)} does not compile C++: {answer.stderr.strip()}")
    macros = {}
    for line in answer.stdout.splitlines():
        _, name, value = (line + " ").split(" ", 2)
        macros[name] = value.strip()
    clang = "__clang_major__" in macros
    keys = ["__clang_major__", "__clang_minor__", "__clang_patchlevel__"]
    if not clang:
        keys = ["__GNUC__", "__GNUC_MINOR__", "__GNUC_PATCHLEVEL__"]
    version = ".".join(macros[key] for key in keys)
    minimum = MINIMUM_CLANG if clang else MINIMUM_GCC
    name = "clang++" if clang else "g++"
    if int(macros[keys[0]]) < minimum:
        raise BuildError(
            f"{shlex.join(command)} is {name} {version}, which is too old for TensorFlow's "
            f"headers: install {name} {minimum} or later, or set CXX to a newer compiler."
        )
    return f"{name} {version}"


@dataclass(frozen=True)
class Unit:
    """One source file, what it is compiled to, and how."""

    source: Path
    object: Path
    flags: tuple[str, ...]

    def command(self, compiler: Compiler) -> list[str]:
        depfile = str(self.object.with_suffix(".d"))
        output = ["-c", str(self.source), "-o", str(self.object), "-MMD", "-MF", depfile]
        return [*compiler.command, *self.flags, *output]

    def fingerprint(self, compiler: Compiler) -> str:
        return f"{compiler.description}\n{shlex.join(self.command(compiler))}\n"

    def is_current(self, compiler: Compiler) -> bool:
        """Whether the object was made by this command from files that have not changed since."""
        record = self.object.with_suffix(".cmd")
        try:
            if record.read_text() != self.fingerprint(compiler):
                return False
            rule = self.object.with_suffix(".d").read_text().replace("\\\n", " ")
            made = self.object.stat().st_mtime_ns
            return all(
                Path(name).stat().st_mtime_ns < made for name in shlex.split(rule.partition(":")[2])
            )
        except OSError:
            return False

    def compile(self, compiler: Compiler) -> None:
        self.object.parent.mkdir(parents=True, exist_ok=True)
        record = self.object.with_suffix(".cmd")
        record.unlink(missing_ok=True)
        name = os.path.relpath(self.source, ROOT) if ROOT in self.source.parents else self.source
        print(f"  c++ {name}", flush=True)
        answer = subprocess.run(
            self.command(compiler), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if answer.stdout:
            print(answer.stdout, end="", flush=True)
        if answer.returncode:
            raise BuildError(f"{name} does not compile; the compiler's messages are above.")
        record.write_text(self.fingerprint(compiler))


def units(
    prefix: str, folder: str, output: Path, flags: list[str], suffix: str = "SRCS"
) -> list[Unit]:
    """The sources of one list of sources.bzl, to be compiled into `output`."""
    lists = read_sources()
    flags = [*lists["COPTS"], f"-I{ROOT}", *flags]
    flags += shlex.split(os.environ.get("CXXFLAGS", ""))
    names = [f"{folder}/{name}" for name in lists[f"{prefix}_{suffix}"]]
    return [Unit(ROOT / name, (output / name).with_suffix(".o"), tuple(flags)) for name in names]


def compile_units(compiler: Compiler, wanted: list[Unit]) -> None:
    """Compiles what is not current."""
    stale = [unit for unit in wanted if not unit.is_current(compiler)]
    with ThreadPoolExecutor(default_jobs()) as pool:
        list(pool.map(lambda unit: unit.compile(compiler), stale))


def link(
    compiler: Compiler, objects: list[Path], output: Path, flags: list[str], record: Path
) -> None:
    """Links `output`, unless it is newer than all objects and made by the command in `record`.

    It is linked under a temporary name first, so that a process using the old file keeps it whole.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(output.name + ".part")
    flags = [*flags, "-pthread", "-lrt", "-ldl", *shlex.split(os.environ.get("LDFLAGS", ""))]
    command = [*compiler.command, *map(str, objects), "-o", str(part), *flags]
    fingerprint = f"{compiler.description}\n{shlex.join(command)}\n"
    newest = max(path.stat().st_mtime_ns for path in objects)
    if (
        output.exists()
        and output.stat().st_mtime_ns > newest
        and record.exists()
        and record.read_text() == fingerprint
    ):
        return
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if answer.returncode:
        raise BuildError(f"{output.name} does not link:\n{answer.stdout}")
    os.replace(part, output)
    record.write_text(fingerprint)


def find_googletest() -> Path | None:
    """The sources of googletest: $GTEST_SOURCE, a system folder, or Debian's package, unpacked."""
    asked = os.environ.get("GTEST_SOURCE")
    package = ROOT / "build" / "googletest"
    unpacked = package / "usr" / "src" / "googletest"
    for folder in [asked] if asked else [*GOOGLETEST_FOLDERS, unpacked]:
        if (Path(folder) / "googletest" / "src" / "gtest-all.cc").is_file():
            return Path(folder)
    if asked or not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    # Neither command needs root.
    package.mkdir(parents=True, exist_ok=True)
    print("Fetching Debian's googletest package into build/ ...", flush=True)
    subprocess.run(["apt-get", "-q", "download", "googletest"], cwd=package, capture_output=True)
    for file in package.glob("googletest_*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(file), str(package)], check=False)
    return unpacked if unpacked.is_dir() else None


def _build_tests(compiler: Compiler, googletest: Path, sanitize: str | None) -> list[Path]:
    """Builds one program per *_test.cc; returns them in the order of sources.bzl."""
    output = ROOT / "build" / "cpp" / (sanitize or "release")
    flags = ["-DNDEBUG"]
    if sanitize:
        flags = ["-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitize}"]
        flags += ["-fno-sanitize-recover=all"] if "undefined" in sanitize else []
    library, tests = [], []
    includes = []
    for name in ("googletest", "googlemock"):
        includes += ["-isystem", f"{googletest / name}/include", "-isystem", f"{googletest / name}"]
    for prefix, folder in FRAMEWORK_FREE.items():
        library += units(prefix, folder, output, flags)
        tests += units(prefix, folder, output, [*flags, *includes], "TESTS")
    for source in ("googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc",
                   "googlemock/src/gmock_main.cc"):  # fmt: skip
        made = (output / source).with_suffix(".o")
        library.append(Unit(googletest / source, made, ("-std=c++17", "-O1", *flags, *includes)))
    compile_units(compiler, library + tests)
    programs = []
    for test in tests:
        program = test.object.with_suffix("")
        objects = [test.object, *(unit.object for unit in library)]
        options = [f"-fsanitize={sanitize}"] if sanitize else []
        link(compiler, objects, program, options, program.with_suffix(".link"))
        programs.append(program)
    return programs


def _passes(program: Path) -> bool:
    name = program.name
    options = {
        "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
        "ASAN_OPTIONS": "detect_leaks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    try:
        answer = subprocess.run(
            [program, "--gtest_brief=1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TEST_TIMEOUT_SECONDS,
            env={**options, **os.environ},
        )
    except subprocess.TimeoutExpired as stuck:
        print(stuck.output or "")
        print(f"FAIL  {name}: not finished after {TEST_TIMEOUT_SECONDS} s")
        return False
    if answer.returncode:
        print(answer.stdout, end="")
        print(f"FAIL  {name}: exit code {answer.returncode}")
        return False
    print(f"PASS  {name}")
    return True


def run_tests(sanitize: str | None) -> int:
    """Builds and runs every C++ test; returns the exit code."""
    googletest = find_googletest()
    if googletest is None:
        print(
            "SKIPPED: the C++ tests need the sources of googletest. Install them (Debian and "
            "Ubuntu: apt-get install googletest), or set GTEST_SOURCE to a checkout of googletest."
        )
        return 0
    compiler = Compiler.find()
    title = f"with -fsanitize={sanitize}" if sanitize else "without Bazel"
    print(f"C++ tests {title} ({compiler.description}):", flush=True)
    results = [_passes(program) for program in _build_tests(compiler, googletest, sanitize)]
    print(f"C++ tests: {results.count(True)} passed, {results.count(False)} failed", flush=True)
    return 0 if all(results) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    test = commands.add_parser("test", help="build and run the C++ tests")
    test.add_argument("--sanitize", choices=SANITIZERS)
    arguments = parser.parse_args()
    try:
        return run_tests(arguments.sanitize)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
