"""``python -m hvd_keras.runner FOLDER [RANK]``: one rank of a runner's job; see worker.py."""

import sys
from pathlib import Path

from hvd_keras.runner.worker import main

sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:3])))
