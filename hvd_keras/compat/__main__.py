"""``python -m hvd_keras.compat``: runs a Horovod script; see the package."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from hvd_keras import compat
from hvd_keras.compat.main_module import run_as_main
from hvd_keras.launch import environment

USAGE = """\
usage: python -m hvd_keras.compat [-m MODULE | -c CODE | SCRIPT | -] [argument ...]
       python -m hvd_keras.compat --install-horovodrun [FOLDER]

Runs SCRIPT (or a module, or code) as python does, with hvd_keras in the place of Horovod:
"import horovod.tensorflow as hvd" and its like need not be changed. Options of python itself come
before -m hvd_keras.compat. On several ranks: hvdrun --compat -np N python SCRIPT.

--install-horovodrun makes horovodrun a name of "hvdrun --compat", in FOLDER or beside hvdrun."""


def main() -> None:
    """Replaces this module by the script, as far as the script can tell."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--install-horovodrun":
        _install_horovodrun(*arguments[1:2])
        return
    compat.install()
    environment.put_alias_first()  # for the processes that the script starts
    first, rest = arguments[0], arguments[1:]
    if first in ("-m", "-c"):
        if not rest:
            _refuse(f"{first} needs an argument")
        if first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *rest[1:]]
            run_as_main(rest[0], "<string>")
    elif first == "-":
        sys.argv = arguments
        run_as_main(sys.stdin.read(), "<stdin>")
    elif first.startswith("-"):
        _refuse(
            f"{first} is not an option here; options of python come before -m, as in "
            f"python {first} -m hvd_keras.compat ..."
        )
    else:
        _run_script(first, arguments)


def _install_horovodrun(folder: str | None = None) -> None:
    from hvd_keras.compat import horovodrun

    try:
        print(f"installed {horovodrun.install(folder)}")
    except OSError as error:
        _refuse(str(error))


def _run_script(script: str, arguments: list[str]) -> None:
    if not Path(script).exists():
        _refuse(f"there is no file {script!r}")
    sys.argv = arguments
    # -m has put the working directory first, where python puts the script's.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(script).resolve().parent)
    if Path(script).is_dir():
        runpy.run_path(script, run_name="__main__")
    else:
        run_as_main(Path(script).read_bytes(), script)


def _refuse(message: str) -> None:
    print(f"hvd_keras.compat: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
