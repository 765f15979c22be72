"""``hvdrun --config-file``: the settings of a YAML file, as the options that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hvd_keras.launch.errors import LaunchError

# For each section, its keys and the option that each stands for. Two options stand for true and
# false; one with no other for its value.
_SWITCHES = {
    ("params", "hierarchical_allreduce"): "hierarchical-allreduce",
    ("params", "hierarchical_allgather"): "hierarchical-allgather",
    ("params", "torus_allreduce"): "torus-allreduce",
    ("autotune", "enabled"): "autotune",
    ("timeline", "mark_cycles"): "timeline-mark-cycles",
    ("stall_check", "enabled"): "stall-check",
    ("library_options", "mpi_threads_disable"): "mpi-threads-disable",
}
_VALUES = {
    ("params", "fusion_threshold_mb"): "fusion-threshold-mb",
    ("params", "cycle_time_ms"): "cycle-time-ms",
    ("params", "cache_capacity"): "cache-capacity",
    ("autotune", "log_file"): "autotune-log-file",
    ("autotune", "warmup_samples"): "autotune-warmup-samples",
    ("autotune", "steps_per_sample"): "autotune-steps-per-sample",
    ("autotune", "bayes_opt_max_samples"): "autotune-bayes-opt-max-samples",
    ("autotune", "gaussian_process_noise"): "autotune-gaussian-process-noise",
    ("timeline", "filename"): "timeline-filename",
    ("stall_check", "warning_time_seconds"): "stall-check-warning-time-seconds",
    ("stall_check", "shutdown_time_seconds"): "stall-check-shutdown-time-seconds",
    ("library_options", "num_nccl_streams"): "num-nccl-streams",
    ("library_options", "thread_affinity"): "thread-affinity",
    ("library_options", "gloo_timeout_seconds"): "gloo-timeout-seconds",
    ("logging", "level"): "log-level",
}
_CONTROLLERS = ("mpi", "gloo", "jsrun")
_KEYS = {*_SWITCHES, *_VALUES, ("logging", "with_timestamp")}
_SECTIONS = tuple(dict.fromkeys(section for section, _ in _KEYS))


def read_config(path: str) -> list[str]:
    """The options that the file stands for; those of the command line come after them.

    Raises:
        LaunchError: PyYAML is missing, or the file cannot be read, is no YAML, or has settings that
            ``hvdrun`` does not know.
    """
    try:
        import yaml  # late: almost no job has such a file
    except ImportError as error:
        raise LaunchError(
            "--config-file needs PyYAML: pip install pyyaml (or hvd_keras[config]), or write its "
            "settings as options."
        ) from error
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"--config-file {path}: {error}.") from error
    except yaml.YAMLError as error:
        raise LaunchError(f"--config-file {path} is not YAML: {error}.") from error
    return options_of(content, path)


def options_of(content: Any, path: str) -> list[str]:
    """The options that the parsed file ``content`` stands for; see :func:`read_config`."""
    if content is None:
        return []
    if not isinstance(content, dict):
        raise LaunchError(f"--config-file {path}: expected sections, such as params:, at the top.")
    options: list[str] = []
    for section, settings in content.items():
        if section == "controller":
            options += _controller(settings, path)
        elif section not in _SECTIONS or not isinstance(settings, (dict, type(None))):
            raise LaunchError(
                f"--config-file {path}: {section!r} is not a section; "
                f"there are controller, {', '.join(sorted(_SECTIONS))}."
            )
        else:
            for key, value in (settings or {}).items():
                options += _option(section, key, value, path)
    return options


def _controller(value: Any, path: str) -> list[str]:
    if value not in _CONTROLLERS:
        raise LaunchError(
            f"--config-file {path}: controller is {value!r}; expected {', '.join(_CONTROLLERS)}."
        )
    return [f"--{value}"]


def _option(section: str, key: Any, value: Any, path: str) -> Sequence[str]:
    where = f"--config-file {path}: {section}.{key}"
    if (section, key) not in _KEYS:
        known = _names(name for of, name in _KEYS if of == section)
        raise LaunchError(f"{where} is not a setting; {section} has {known}.")
    if value is None:
        return []
    if (section, key) in _VALUES:
        if isinstance(value, (dict, list, bool)):
            raise LaunchError(f"{where} is {value!r}; expected one value.")
        return [f"--{_VALUES[section, key]}={value}"]
    if not isinstance(value, bool):
        raise LaunchError(f"{where} is {value!r}; expected true or false.")
    if key == "with_timestamp":
        return ["--log-with-timestamp" if value else "--log-without-timestamp"]
    return [f"--{'' if value else 'no-'}{_SWITCHES[section, key]}"]


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
