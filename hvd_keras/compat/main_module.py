"""Running a script in ``__main__``, where what it pickles is looked for."""

from __future__ import annotations

import sys
from importlib.machinery import BuiltinImporter, SourceFileLoader

__all__ = ["run_as_main"]


def run_as_main(source: str | bytes, name: str) -> None:
    """Runs ``source``, of the file ``name``, in the emptied module ``__main__``.

    A name like "<string>" is that of no file.
    """
    namespace = sys.modules["__main__"].__dict__
    for own in [key for key in namespace if not key.startswith("__")]:
        del namespace[own]
    namespace.update(__spec__=None, __package__=None, __doc__=None, __cached__=None)
    if name.startswith("<"):
        namespace.pop("__file__", None)
        namespace["__loader__"] = BuiltinImporter
    else:
        namespace["__file__"] = name
        namespace["__loader__"] = SourceFileLoader("__main__", name)
    exec(compile(source, name, "exec", dont_inherit=True), namespace)
