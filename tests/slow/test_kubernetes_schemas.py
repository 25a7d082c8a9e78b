"""The manifests of examples/kubernetes against the schemas that Kubernetes and JobSet publish.

kubernetes-validate carries those of Kubernetes in its wheel; kubeflow-trainer-api carries models
that are generated from JobSet's. Both are installed into an environment of their own. No cluster
has seen the manifests.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.slow.test_versions import install, run
from tests.support import REPOSITORY

pytestmark = pytest.mark.slow

VERSIONS = ("1.31", "1.34", "1.37")
CHECK = """
import copy, json, sys
import kubernetes_validate, yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

path, versions = sys.argv[1], sys.argv[2:]

def lacking(given, kept, place):
    "Fields that the models do not know are dropped by them."
    if isinstance(given, dict):
        for name, value in given.items():
            if name not in kept:
                yield f"{place}.{name}"
            elif (place, name) != ("spec.replicatedJobs[0]", "template"):
                yield from lacking(value, kept[name], f"{place}.{name}".strip("."))
    elif isinstance(given, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lacking(one, other, f"{place}[{number}]")
    elif given != kept:
        yield f"{place} is {kept!r}"

def problems(document):
    found = []
    if document["kind"] == "JobSet":
        try:
            kept = JobsetV1alpha2JobSet.from_dict(document).to_dict()
            found += lacking(document, kept, "")
        except ValueError as error:
            found.append(str(error))
        (replicated,) = document["spec"]["replicatedJobs"]
        metadata = {"name": document["metadata"]["name"]}
        spec = replicated["template"]["spec"]
        document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    for version in versions:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{version}: {error.message}")
    return found

document = yaml.safe_load(open(path))
answer = {"as it is": problems(document)}
is_set = document["kind"] == "JobSet"
job = lambda one: one["spec"]["replicatedJobs"][0]["template"]["spec"] if is_set else one["spec"]
pod = lambda one: job(one)["template"]["spec"]["containers"][0]
for name, spoil in {
    "probe": lambda one: pod(one)["livenessProbe"].update(failureTreshold=3),
    "policy": lambda one: job(one)["podFailurePolicy"]["rules"][0].update(onExitCode={}),
    "volume": lambda one: job(one)["template"]["spec"]["volumes"][1].update(emptyDirs={}),
    **({
        "network": lambda one: one["spec"]["network"].update(subDomain="x"),
        "failure": lambda one: one["spec"]["failurePolicy"].update(maxRestart=1),
        "rule": lambda one: one["spec"]["failurePolicy"]["rules"][0].update(onJobFailureReason=[]),
        "restarts": lambda one: one["spec"]["failurePolicy"].update(maxRestarts="ten"),
    } if is_set else {}),
}.items():
    spoilt = copy.deepcopy(document)
    spoil(spoilt)
    answer[name] = problems(spoilt)
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that knows the schemas."""
    directory = tmp_path_factory.mktemp("kubernetes") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", directory)
    python = directory / "bin" / "python"
    install(python, "kubernetes-validate>=1.37", "kubeflow-trainer-api>=2.3")
    return python


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["job.yaml", "jobset.yaml"])
def test_the_manifest_is_valid(checker: Path, name: str) -> None:
    """Strictly, so with no unknown field; and a misspelt field would be found."""
    path = REPOSITORY / "examples" / "kubernetes" / name
    said = run(checker, "-c", CHECK, path, *VERSIONS)
    answer = json.loads(said.splitlines()[-1])
    assert answer.pop("as it is") == []
    assert len(answer) >= 3
    assert all(answer.values()), answer
