"""The programs in C++ of this folder, built when needed, from the library's own sources."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Where the C++ tests have their objects, which are the same.
OUTPUT = ROOT / "build" / "cpp" / "release"
FLAGS = ["-DNDEBUG"]


def build(name: str, with_library: bool = True) -> Path:
    """Builds benchmarks/NAME.cc, with what it uses of ops/, if it is not up to date."""
    sys.path.insert(0, str(ROOT / "ops"))
    import build_native

    options = build_native.read_sources()["COPTS"]
    source = Path(__file__).with_name(f"{name}.cc")
    made = OUTPUT / "benchmarks" / f"{name}.o"
    units = [build_native.Unit(source, made, (*options, f"-I{ROOT}", *FLAGS))]
    for prefix, folder in build_native.FRAMEWORK_FREE.items() if with_library else ():
        units += build_native.units(prefix, folder, OUTPUT, FLAGS)
    compiler = build_native.Compiler.find()
    build_native.compile_units(compiler, units)
    program = made.with_suffix("")
    record = program.with_suffix(".link")
    build_native.link(compiler, [unit.object for unit in units], program, [], record)
    return program
