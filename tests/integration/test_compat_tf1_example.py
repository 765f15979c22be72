"""examples/tf1_mnist_style.py, as a user runs it."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tf1_mnist_style.py"
LAST_LINE = r"from step (\d+): loss (\d\.\d{4}) to (\d\.\d{4}), test accuracy (\d\.\d{4})"


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "hvd_keras.launch", "-np", "2"]
        + [sys.executable, str(EXAMPLE), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(LAST_LINE, done.stdout)
    assert len(found) == 1, done.stdout
    return [float(number) for number in found[0]]


def test_it_trains_and_goes_on_from_its_checkpoint(tmp_path):
    step, first, last, accuracy = run("--checkpoints", tmp_path, "--steps", 600)
    assert step == 0 and first > 1.5 and last < 0.5 and accuracy > 0.93
    step, first, _, again = run("--checkpoints", tmp_path, "--steps", 700)
    assert step == 300 and first < 0.5 and again > 0.93
