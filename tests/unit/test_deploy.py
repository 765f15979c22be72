"""What deploy/ holds: well-formed, of one mind with itself, and with the package.

No container is built or run here; deploy/README.md says what was tried by hand.
"""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from mpijob_schema import problems

import hvd_keras

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "hvd-keras"
VERSION = hvd_keras.__version__
IMAGE = f"hvd-keras:{VERSION}"


def manifest() -> dict:
    return yaml.safe_load((DEPLOY / "mpijob.yaml").read_text())


def replicas(job: dict, kind: str) -> dict:
    return job["spec"]["mpiReplicaSpecs"][kind]


def container(job: dict, kind: str) -> dict:
    (only,) = replicas(job, kind)["template"]["spec"]["containers"]
    return only


def instructions(file: Path) -> list[tuple[str, str]]:
    """A Dockerfile's instructions and their arguments, with continued lines joined."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


DOCKERFILE = instructions(DEPLOY / "Dockerfile")
RUNS = [" ".join(rest.split()) for word, rest in DOCKERFILE if word == "RUN"]


def apt_packages(commands: str) -> set[str]:
    found: set[str] = set()
    for words in re.findall(r"apt-get install -y --no-install-recommends([^&\n]*)", commands):
        found |= set(words.split())
    return found


def test_the_manifest_is_an_mpijob():
    assert problems(manifest()) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda job: job.update(apiVersion="kubeflow.org/v1"), ".apiVersion is none of"),
        # Where the API had it before v2beta1.
        (lambda job: job["spec"].update(cleanPodPolicy="Running"), ".cleanPodPolicy is unknown"),
        (lambda job: job["spec"].update(slotsPerWorker="1"), ".slotsPerWorker is not a count"),
        (lambda job: replicas(job, "Worker").pop("template"), "Worker.template is missing"),
        (lambda job: job["spec"]["mpiReplicaSpecs"].pop("Launcher"), "Launcher is missing"),
        (lambda job: container(job, "Launcher")["args"].append(2), "args[8] is not a text"),
        (lambda job: container(job, "Worker").pop("image"), ".image is missing"),
        (
            lambda job: container(job, "Worker")["resources"]["limits"].update(memory="4GB"),
            ".memory is not an amount",
        ),
    ],
)
def test_a_wrong_manifest_is_noticed(change, complaint):
    job = copy.deepcopy(manifest())
    change(job)
    (found,) = problems(job)
    assert complaint in found


def test_the_manifest_fits_the_image():
    job = manifest()
    launcher, worker = container(job, "Launcher"), container(job, "Worker")
    assert launcher["image"] == worker["image"] == IMAGE
    users = [run for run in RUNS if "useradd" in run]
    assert len(users) == 1 and "--uid 1000 mpiuser" in users[0]
    for part in (launcher, worker):
        assert part["securityContext"] == {"runAsUser": 1000}
    # sshd gets the file that the image has, and looks for the key where mpi-operator puts it.
    config = worker["args"][worker["args"].index("-f") + 1]
    assert f">{config}" in users[0]
    assert f"HostKey {job['spec']['sshAuthMountPath']}/id_rsa" in users[0]
    # ssh and sshd talk through the same port.
    assert len(re.findall(r"'\s*Port 2222'", users[0])) == 2
    # The script is one that the image has.
    assert ("COPY", "examples /opt/examples") in DOCKERFILE
    script = Path(launcher["args"][-1])
    assert script.parent == Path("/opt/examples") and (ROOT / "examples" / script.name).exists()
    # As many ranks as slots.
    ranks = int(launcher["args"][launcher["args"].index("-np") + 1])
    assert ranks == replicas(job, "Worker")["replicas"] * job["spec"]["slotsPerWorker"]
    volumes = replicas(job, "Worker")["template"]["spec"]["volumes"]
    assert {m["name"] for m in worker["volumeMounts"]} == {v["name"] for v in volumes}


def test_the_dockerfile_copies_what_there_is_and_the_build_needs():
    sources: list[str] = []
    for word, rest in DOCKERFILE:
        if word == "COPY" and not rest.startswith("--from"):
            sources += rest.split()[:-1]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    needed = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"}
    needed |= {"hvd_keras", "ops", "third_party", "examples"}
    assert set(sources) == needed
    (ignored,) = DEPLOY.glob("Dockerfile.*")
    for line in (ROOT / ".gitignore").read_text().splitlines():
        if line.startswith("/hvd_keras/"):
            assert line[1:] in ignored.read_text().splitlines()


def test_stages_have_one_debian_and_the_tensorflow_of_the_makefile():
    bases = [rest.split()[0] for word, rest in DOCKERFILE if word == "FROM"]
    assert len(bases) == 2 and len(set(bases)) == 1
    (wanted,) = re.findall(
        r"^TENSORFLOW \?= (tensorflow-cpu\S*)$", (ROOT / "Makefile").read_text(), re.M
    )
    assert ("ARG", f'TENSORFLOW="{wanted}"') in DOCKERFILE
    assert f'"{wanted}"' in (DEPLOY / "apptainer.def").read_text()


def test_the_apptainer_definition_does_as_the_dockerfile():
    text = (DEPLOY / "apptainer.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.M | re.S))
    assert set(sections) == {"files", "post", "environment", "runscript", "test"}
    header = dict(re.findall(r"^(\w+): (.*)$", text, re.M))
    assert header == {"Bootstrap": "docker", "From": "debian:bookworm-slim"}
    assert ("FROM", "debian:bookworm-slim") in DOCKERFILE
    copied = {line.split()[0] for line in sections["files"].splitlines() if line.strip()}
    assert [source for source in copied if not (ROOT / source).exists()] == []
    from_docker = {
        source
        for word, rest in DOCKERFILE
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == from_docker
    # No sshd, which runs outside.
    packages = apt_packages(sections["post"].replace("\\\n", " "))
    assert packages == apt_packages("\n".join(RUNS)) - {"openssh-server", "python3"}
    assert subprocess.run(["sh", "-n"], input=sections["post"], text=True).returncode == 0


@pytest.mark.parametrize("run", RUNS)
def test_shell_of_the_dockerfile(run):
    result = subprocess.run(["sh", "-n"], input=run, text=True, capture_output=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_versions_of_the_chart():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["apiVersion"] == "v2" and chart["name"] == CHART.name
    assert chart["version"] == chart["appVersion"] == VERSION
    assert yaml.safe_load((CHART / "values.yaml").read_text())["image"] == IMAGE


def render(values: dict) -> str:
    """The chart's template, by someone who knows only what it uses of the template language."""
    text = (CHART / "templates" / "mpijob.yaml").read_text()
    text = text.replace("{{ .Release.Name }}", "keras-digits")
    ranks = values["workers"] * values["slotsPerWorker"]
    text = text.replace("{{ mul .Values.workers .Values.slotsPerWorker | quote }}", f'"{ranks}"')

    def each(match: re.Match[str]) -> str:
        items = values[match[1]]
        return "".join(match[2].replace("{{ . | quote }}", f'"{item}"') for item in items)

    text = re.sub(r"\n *{{- range \.Values\.(\w+) }}(.*?)\n *{{- end }}", each, text, flags=re.S)

    def block(match: re.Match[str]) -> str:
        lines = yaml.safe_dump(values[match[1]]).splitlines()
        return "".join(f"\n{' ' * int(match[2])}{line}" for line in lines)

    text = re.sub(r"\s*{{- toYaml \.Values\.(\w+) \| nindent (\d+) }}", block, text)
    text = re.sub(r"{{ \.Values\.(\w+) \| quote }}", lambda m: f'"{values[m[1]]}"', text)
    text = re.sub(r"{{ \.Values\.(\w+) }}", lambda m: str(values[m[1]]), text)
    assert "{{" not in text, text
    return text


def without_pull_policy(job: dict) -> dict:
    for kind in ("Launcher", "Worker"):
        container(job, kind).pop("imagePullPolicy")
    return job


def test_the_chart_makes_the_manifest():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    job = yaml.safe_load(render(values))
    assert problems(job) == []
    assert without_pull_policy(job) == manifest()
    # Each value does something.
    for key, other in {
        "image": "other:1",
        "imagePullPolicy": "Always",
        "workers": 3,
        "slotsPerWorker": 4,
        "command": ["python3", "/data/train.py", "--epochs", "3"],
        "resources": {"limits": {"cpu": 7, "memory": "9Gi"}},
        "sharedMemory": "5Gi",
    }.items():
        changed = yaml.safe_load(render({**values, key: other}))
        assert problems(changed) == []
        assert changed != yaml.safe_load(render(values)), key
    assert len(values) == 7


def test_helm_agrees():
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("no helm here")
    lint = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout
    options = ["--set", "workers=3,slotsPerWorker=2,command={python3,train.py}"]
    for more, values in (
        ([], {}),
        (options, {"workers": 3, "slotsPerWorker": 2, "command": ["python3", "train.py"]}),
    ):
        command = [helm, "template", "keras-digits", CHART, *more]
        made = subprocess.run(command, capture_output=True, text=True, check=True)
        own = {**yaml.safe_load((CHART / "values.yaml").read_text()), **values}
        assert yaml.safe_load(made.stdout) == yaml.safe_load(render(own))
