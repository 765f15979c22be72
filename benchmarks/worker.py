"""What each rank runs: python -m benchmarks.worker BACKEND JOB PREFIX.

BACKEND is a module of benchmarks/backends, JOB a JSON object whose "part" is a module of
benchmarks/parts, and PREFIX that of the files which the ranks write (see protocol.py).
"""

from __future__ import annotations

import importlib
import json
import sys

from benchmarks import protocol


def main() -> None:
    backend_name, text, prefix = sys.argv[1:]
    job = json.loads(text)
    part = importlib.import_module(f"benchmarks.parts.{job['part']}")
    backend = importlib.import_module(f"benchmarks.backends.{backend_name}").connect()
    series = part.measure(backend, job)
    protocol.write(prefix, backend.rank, backend.size, backend.versions(), series)
    backend.close()


if __name__ == "__main__":
    main()
