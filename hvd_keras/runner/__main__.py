"""``python -m hvd_keras.runner [FOLDER [RANK]]``: one rank of a runner's job; see worker.py."""

import sys
from pathlib import Path

from hvd_keras.runner.worker import main, main_over_network

if len(sys.argv) > 1:
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:3])))
sys.exit(main_over_network())
