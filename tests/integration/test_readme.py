"""What README.md says is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_set_up_is_two_commands():
    section = README.split("## Set up")[1].split("\n## ")[0]
    commands = re.findall(r"^    (.*)$", section, re.MULTILINE)
    assert commands == ["make train", "make test"]
    targets = (ROOT / "Makefile").read_text()
    assert re.search(r"^train:", targets, re.MULTILINE)
    assert re.search(r"^test:", targets, re.MULTILINE)


@pytest.mark.parametrize(
    "page", ["README.md", *[f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")]]
)
def test_links_and_files_exist(page):
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    files = re.findall(r"`((?:hvd_keras|ops|examples|tests)/[\w/.]+\.\w+)`", text)
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    missing += [file for file in files if not (ROOT / file).exists()]
    assert not missing


def test_names_exist():
    import hvd_keras as hvd

    table = README.split("## What there is")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", table, re.MULTILINE))
    names = " ".join(re.findall(r"`([^`]+)`", f"{rows['Start']} {rows['Collectives']}")).split()
    assert "allreduce" in names and len(names) > 15
    assert [name for name in names if not hasattr(hvd, name) and name != "tf.function"] == []
    callbacks = re.findall(r"`([^`]+)`", rows["Callbacks"])[0].split()
    assert sorted(callbacks) == sorted(hvd.callbacks.__all__)


def test_script_runs(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    launch = [sys.executable, "-m", "hvd_keras.launch", "-np", "2"]
    done = subprocess.run(
        [*launch, sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss: (\d+\.\d+)", done.stdout)]
    assert len(losses) == 5 and losses[-1] < losses[0]
    assert (tmp_path / "model.keras").exists()
