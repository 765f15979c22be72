"""``python -m hvd_keras.launch`` is ``hvdrun``."""

import sys

from hvd_keras.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
