"""The part of Kubeflow's MPIJob (kubeflow.org/v2beta1) and of Kubernetes' pods that deploy/ uses.

Written down from the API's documentation: a cluster refuses a field that it does not know only
where it is asked to, and otherwise drops it without a word.
"""

from __future__ import annotations

import re
from typing import Any

QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "is not a text"


def name(value: Any) -> str | None:
    return text(value) or (None if NAME.fullmatch(value) else "is not a name for Kubernetes")


def count(value: Any) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return None if whole and value >= 0 else "is not a count"


def flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "is not true or false"


def quantity(value: Any) -> str | None:
    right = not isinstance(value, bool) and QUANTITY.fullmatch(str(value))
    return None if right else "is not an amount"


def path(value: Any) -> str | None:
    return text(value) or (None if value.startswith("/") else "is not an absolute path")


def one_of(*choices: str) -> Any:
    return lambda value: None if value in choices else f"is none of {', '.join(choices)}"


AMOUNTS = {"cpu": quantity, "memory": quantity}
CONTAINER = {
    "name!": name,
    "image!": text,
    "imagePullPolicy": one_of("Always", "IfNotPresent", "Never"),
    "command": [text],
    "args": [text],
    "securityContext": {"runAsUser": count},
    "resources": {"limits": AMOUNTS, "requests": AMOUNTS},
    "volumeMounts": [{"name!": name, "mountPath!": path}],
}
VOLUME = {"name!": name, "emptyDir": {"medium": one_of("", "Memory"), "sizeLimit": quantity}}
REPLICAS = {
    "replicas": count,
    "restartPolicy": one_of("Never", "OnFailure", "Always", "ExitCode"),
    "template!": {
        "metadata": {"labels": dict, "annotations": dict},
        "spec!": {"containers!": [CONTAINER], "volumes": [VOLUME]},
    },
}
MPIJOB = {
    "apiVersion!": one_of("kubeflow.org/v2beta1"),
    "kind!": one_of("MPIJob"),
    "metadata!": {"name!": name, "namespace": name, "labels": dict, "annotations": dict},
    "spec!": {
        "slotsPerWorker": count,
        "runLauncherAsWorker": flag,
        "sshAuthMountPath": path,
        "launcherCreationPolicy": one_of("AtStartup", "WaitForWorkersReady"),
        "mpiImplementation": one_of("OpenMPI", "Intel", "MPICH"),
        "runPolicy": {
            "cleanPodPolicy": one_of("None", "Running", "All"),
            "ttlSecondsAfterFinished": count,
            "activeDeadlineSeconds": count,
            "backoffLimit": count,
            "suspend": flag,
        },
        "mpiReplicaSpecs!": {"Launcher!": REPLICAS, "Worker!": REPLICAS},
    },
}


def problems(value: Any, schema: Any = MPIJOB, where: str = "") -> list[str]:
    """What is wrong with ``value``, a line each.

    Args:
        value: what a YAML file has.
        schema: a dict from field names, with "!" where there has to be one, to schemas; a list with
            the schema of its elements; ``dict``; or a function that says what is wrong.
        where: what ``value`` is, in messages.
    """
    if schema is dict:
        return [] if isinstance(value, dict) else [f"{where} is not a mapping"]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{where} is not a list with something in it"]
        each = (problems(item, schema[0], f"{where}[{i}]") for i, item in enumerate(value))
        return [problem for found in each for problem in found]
    if not isinstance(schema, dict):
        complaint = schema(value)
        return [f"{where} {complaint}: {value!r}"] if complaint else []
    if not isinstance(value, dict):
        return [f"{where} is not a mapping"]
    known = {field.rstrip("!"): inner for field, inner in schema.items()}
    demanded = [field[:-1] for field in schema if field.endswith("!")]
    found = [f"{where}.{field} is unknown" for field in value if field not in known]
    found += [f"{where}.{field} is missing" for field in demanded if field not in value]
    for field, inner in known.items():
        if field in value:
            found += problems(value[field], inner, f"{where}.{field}")
    return found
