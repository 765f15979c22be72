"""Checkpoints of whole jobs: one that is killed, one whose disk is full, one read elsewhere."""

import subprocess
import sys
import textwrap

import h5py
import keras
import numpy as np
import pytest

LAUNCH = [sys.executable, "-m", "hvd_keras.launch", "-np", "2", sys.executable]

SCRIPT = """
import os, signal, sys
import keras
import numpy as np
import hvd_keras as hvd

hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((50,)), keras.layers.Dense(200), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", metrics=["mae"])


class Harm(keras.callbacks.Callback):
    '''Before the second checkpoint is written.'''

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and hvd.rank() == 0:
            {harm}


x = np.random.default_rng(hvd.rank()).normal(size=(8, 50))
model.fit(x, x[:, :1], batch_size=4, epochs=3, verbose=0, callbacks=[
    hvd.callbacks.BroadcastGlobalVariablesCallback(0), Harm(),
    hvd.callbacks.RankZeroModelCheckpoint(sys.argv[1]),
])
if hvd.rank() == 0:
    np.savez(sys.argv[1] + ".npz", x=x, y=model.predict(x, verbose=0))
"""

KILL = "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)"
# Leaves 50 kB of the 1 MB that SMALL_DISK gives; the model takes more.
FILL = """
            with open(sys.argv[1] + ".filler", "wb") as file:
                file.write(bytes(os.statvfs(sys.argv[1]).f_bavail * 4096 - 50_000))
"""
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
SMALL_DISK = """
mount -t tmpfs -o size=1m tmpfs "$0" || exit 99
"$@"
code=$?
cp -r "$0" "$0.after"
exit $code
"""


def has_namespaces():
    try:
        return subprocess.run([*NAMESPACE, "mount -t tmpfs tmpfs /mnt"]).returncode == 0
    except OSError:
        return False


def run(tmp_path, harm, suffix, small_disk=False):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(harm=harm))
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    path = folder / f"model.{suffix}"
    disk = [*NAMESPACE, SMALL_DISK, str(folder)] if small_disk else []
    done = subprocess.run(
        [*disk, *LAUNCH, str(script), str(path)], capture_output=True, text=True, timeout=180
    )
    return done, path


def epochs_of(path):
    """How many epochs, of two steps, the model in the file was trained for."""
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            group = file["optimizer_weights"]
            return int(group[group.attrs["weight_names"][0]][()]) // 2
    return int(keras.saving.load_model(path).optimizer.iterations) // 2


def test_job_killed_while_it_writes_leaves_the_file_before(tmp_path):
    done, path = run(tmp_path, KILL, "keras")
    assert done.returncode != 0 and "SIGKILL" in done.stderr
    assert epochs_of(path) == 1
    left = [entry.name for entry in path.parent.iterdir() if entry != path]
    assert len(left) == 1 and left[0].startswith(".hvd-tmp-")
    # The next job removes what this one has left.
    from hvd_keras.keras.saving import save_model

    save_model(keras.saving.load_model(path), path)
    assert [entry.name for entry in path.parent.iterdir()] == ["model.keras"]


@pytest.mark.skipif(not has_namespaces(), reason="needs user namespaces, for a small disk")
@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_full_disk_ends_the_job_and_leaves_the_file_before(tmp_path, suffix):
    done, path = run(tmp_path, FILL, suffix, small_disk=True)
    assert done.returncode == 1, done.stderr
    assert f"rank 0: cannot save to {path} (OSError: [Errno 28] No space left" in done.stderr
    assert "the file that was there is unchanged, 0.0 MB are free" in done.stderr
    after = tmp_path / "checkpoints.after"
    assert sorted(entry.name for entry in after.iterdir()) == [path.name, f"{path.name}.filler"]
    assert epochs_of(after / path.name) == 1


def test_model_loads_where_this_package_does_not_exist(tmp_path):
    done, path = run(tmp_path, "pass", "keras")
    assert done.returncode == 0, done.stderr
    program = """
        import sys

        sys.modules["hvd_keras"] = None  # importing it fails
        import keras
        import numpy as np

        model = keras.saving.load_model(sys.argv[1])
        assert type(model.optimizer) is keras.optimizers.Adam
        assert int(model.optimizer.iterations) == 6
        data = np.load(sys.argv[1] + ".npz")
        np.testing.assert_allclose(model.predict(data["x"], verbose=0), data["y"], rtol=1e-5)
        model.fit(data["x"], data["y"], verbose=0)
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        check=True,
        cwd=tmp_path,
        timeout=180,
    )


def test_script_that_forgets_init(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(harm="pass").replace("hvd.init()", ""))
    done = subprocess.run(
        [*LAUNCH, str(script), "x.keras"], capture_output=True, text=True, timeout=180
    )
    assert done.returncode != 0
    assert "hvd.init() has not been called" in done.stderr


def test_legacy_model_keeps_its_optimizer(tmp_path):
    """Written by rank 0 of a job, read by one process."""
    done, path = run(tmp_path, "pass", "h5")
    assert done.returncode == 0, done.stderr
    import hvd_keras as hvd

    hvd.init()
    try:
        model = hvd.load_model(path)
    finally:
        hvd.shutdown()
    assert int(model.optimizer.iterations) == 6
    assert len(model.optimizer.variables) == 2 + 2 * 4
    data = np.load(f"{path}.npz")
    np.testing.assert_allclose(model.predict(data["x"], verbose=0), data["y"], rtol=1e-5)
