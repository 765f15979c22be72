"""Atomic saving, in one process that has not called hvd.init()."""

import os
import stat
import subprocess
import sys
import time

import h5py
import keras
import numpy as np
import pytest

from hvd_keras.keras import legacy_h5, saving


class Model:
    """Writes a text where a model would write itself."""

    def __init__(self, text="new", error=None):
        self.text, self.error, self.path, self.options = text, error, None, None

    def save(self, path, **options):
        self.path, self.options = path, options
        with open(path, "w") as file:
            file.write(self.text)
        if self.error:
            raise self.error

    save_weights = save


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    return path


def test_file_is_written_beside_its_place_and_moved(tmp_path, old):
    model = Model()
    saving.save_model(model, old, include_optimizer=False)
    assert old.read_text() == "new"
    assert os.path.basename(model.path) == "model.keras"
    assert os.path.dirname(os.path.dirname(model.path)) == str(tmp_path)
    assert model.options == {"include_optimizer": False}
    assert os.listdir(tmp_path) == ["model.keras"]
    saving.save_weights(Model("weights"), str(tmp_path / "a.weights.h5"))
    assert (tmp_path / "a.weights.h5").read_text() == "weights"


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_old_file_stays_when_writing_fails(tmp_path, suffix):
    old = tmp_path / f"model.{suffix}"
    old.write_text("old")
    error = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="that was there is unchanged, .* MB are free") as caught:
        saving.save_model(Model(error=error), old)
    assert str(error) in str(caught.value) and str(old) in str(caught.value)
    assert caught.value.errno == 28
    assert old.read_text() == "old" and os.listdir(tmp_path) == [old.name]


def test_old_file_is_not_overwritten_unasked(old):
    with pytest.raises(FileExistsError, match="overwrite=False"):
        saving.save_model(Model(), old, overwrite=False)
    assert old.read_text() == "old"


def test_other_errors_pass_through(tmp_path, old):
    with pytest.raises(ValueError, match="not built"):
        saving.save_model(Model(error=ValueError("not built")), old)
    assert old.read_text() == "old" and os.listdir(tmp_path) == ["model.keras"]


def test_folder_that_does_not_exist(tmp_path):
    with pytest.raises(OSError, match="there is no file"):
        saving.save_model(Model(), tmp_path / "missing" / "model.keras")


def test_folder_in_the_way(tmp_path):
    (tmp_path / "model.keras").mkdir()
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        saving.save_model(Model(), tmp_path / "model.keras")


def test_links_and_permissions_stay(tmp_path, old):
    link = tmp_path / "latest.keras"
    link.symlink_to(old)
    old.chmod(0o640)
    saving.save_model(Model(), link)
    assert link.is_symlink() and old.read_text() == "new"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640


def test_new_file_has_ordinary_permissions(tmp_path):
    saving.save_model(Model(), tmp_path / "model.keras")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "model.keras").stat().st_mode) == 0o666 & ~umask


def test_remote_paths_are_written_directly(monkeypatch):
    written = []
    model = Model()
    monkeypatch.setattr(model, "save", lambda path: written.append(path))
    saving.save_model(model, "gs://bucket/model.keras")
    assert written == ["gs://bucket/model.keras"]


def test_what_dead_processes_left_is_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = os.uname().nodename

    def leave(name, age=0.0):
        folder = tmp_path / f".hvd-tmp-{name}-abc"
        folder.mkdir()
        (folder / "model.keras").write_text("half")
        then = time.time() - age
        os.utime(folder, (then, then))
        return folder

    gone = [
        leave(f"{host}-{dead.pid}"),
        leave(f"{host}-{os.getpid()}"),
        leave("other-host-1", age=2 * 24 * 3600),
    ]
    kept = [leave(f"{host}-{os.getppid()}"), leave("other-host-1-2")]
    saving.save_model(Model(), tmp_path / "model.keras")
    assert not any(folder.exists() for folder in gone)
    assert all(folder.exists() for folder in kept)


def test_legacy_file_does_not_spoil_a_later_one(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    saving.save_model(model, tmp_path / "model.h5")
    saving.save_model(model, tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.optimizer, keras.optimizers.SGD)


def test_weight_names_in_pieces(tmp_path):
    """Keras cuts the list of names where it is longer than HDF5's limit for attributes."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5, momentum=0.5), "mse")
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    path = tmp_path / "model.h5"
    model.save(path)
    with h5py.File(path, "r+") as file:
        group = file["optimizer_weights"]
        names = list(group.attrs["weight_names"])
        del group.attrs["weight_names"]
        group.attrs["weight_names0"], group.attrs["weight_names1"] = names[:1], names[1:]
    loaded = keras.saving.load_model(path, compile=False)
    legacy_h5.compile_from_file(loaded, path, {})
    for a, b in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_optimizer_that_does_not_fit_its_model(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5, momentum=0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.h5")
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="does not fit the model"):
        legacy_h5.compile_from_file(other, tmp_path / "model.h5", {})
