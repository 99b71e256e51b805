"""The manifests: valid by Kubernetes' schemas, at one with each other and with the service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from service import __version__
from service.config import Settings
from tests.deploy.files import KUBERNETES, ROOT, load_yaml, tool
from tests.engines import FakeEngine
from tests.servers import ServerThread, get

KUSTOMIZATIONS = sorted(KUBERNETES.rglob("kustomization.yaml"))
PATCHES = [KUBERNETES / "model" / "deployment-patch.yaml"]
OBJECTS = sorted(set(KUBERNETES.rglob("*.yaml")) - {*KUSTOMIZATIONS, *PATCHES})
# kubernetes-validate has no schema of it.
CUSTOM = {"PodMonitor"}
# The operator's fields that we use; it refuses others as well.
POD_MONITOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["selector", "podMetricsEndpoints"],
    "properties": {
        "selector": {
            "type": "object",
            "additionalProperties": False,
            "required": ["matchLabels"],
            "properties": {"matchLabels": {"additionalProperties": {"type": "string"}}},
        },
        "podMetricsEndpoints": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["port"],
                "properties": {
                    "port": {"type": "string"},
                    "path": {"type": "string", "pattern": "^/"},
                    "interval": {"type": "string", "pattern": "^[0-9]+s$"},
                    "scrapeTimeout": {"type": "string", "pattern": "^[0-9]+s$"},
                },
            },
        },
    },
}


def validate(*paths: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "kubernetes-validate"
    command = [str(program), "--strict", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def the(kind: str) -> dict[str, Any]:
    """The one object of a kind in the base."""
    (found,) = [o for o in map(load_yaml, OBJECTS) if o["kind"] == kind]
    return found


DEPLOYMENT = the("Deployment")
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.stem)
def test_an_object_is_valid_and_alone_in_its_file(path: Path):
    (only,) = yaml.safe_load_all(path.read_text())
    assert path.stem == only["kind"].lower()
    done = validate(path)
    assert done.returncode == 0, done.stdout + done.stderr
    warned = "WARN" in done.stdout + done.stderr
    assert warned is (only["kind"] in CUSTOM)


def test_the_validator_refuses_a_field_that_does_not_exist(tmp_path: Path):
    broken = tmp_path / "deployment.yaml"
    text = (KUBERNETES / "deployment.yaml").read_text()
    broken.write_text(text.replace("terminationGracePeriodSeconds", "gracePeriodSeconds"))
    assert validate(broken).returncode != 0


def test_the_pod_monitor_has_the_operators_shape():
    monitor = the("PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    jsonschema.validate(monitor["spec"], POD_MONITOR)


def test_kustomize_lists_every_file():
    for path in KUSTOMIZATIONS:
        found = load_yaml(path)
        listed = [
            *found.get("resources", ()),
            *(patch["path"] for patch in found.get("patches", ())),
        ]
        there = {file.name for file in path.parent.glob("*.yaml")} - {path.name}
        assert sorted(listed) == sorted(there)


@pytest.mark.parametrize("with_model", [False, True])
def test_kustomize_builds_what_the_validator_accepts(tmp_path: Path, with_model: bool):
    kubectl = tool("kubectl", "Debian has no package of it")
    folder = tmp_path / "kubernetes"
    for path in KUBERNETES.rglob("*.yaml"):
        copy = folder / path.relative_to(KUBERNETES)
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text()
        copy.write_text(text.replace("# components:", "components:") if with_model else text)
    built = subprocess.run(
        [kubectl, "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    result = tmp_path / "all.yaml"
    result.write_text(built.stdout)
    assert validate(result).returncode == 0
    objects = {o["kind"]: o for o in yaml.safe_load_all(built.stdout)}
    namespaced = [o for o in objects.values() if o["kind"] != "Namespace"]
    assert {o["metadata"]["namespace"] for o in namespaced} == {
        objects["Namespace"]["metadata"]["name"]
    }
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"tilemlp:{__version__}"
    names = [entry["name"] for entry in container["env"]]
    assert len(set(names)) == len(names)
    assert ("MLP_MODEL" in names) is with_model
    claims = [
        v
        for v in objects["Deployment"]["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in v
    ]
    assert len(claims) == with_model


def test_the_settings_are_valid_as_a_whole():
    given = {entry["name"]: entry.get("value") for entry in CONTAINER["env"]}
    ours = {name[4:].lower(): value for name, value in given.items() if name.startswith("MLP_")}
    settings = Settings(**{name: value for name, value in ours.items() if value is not None})
    assert set(ours) <= set(Settings.model_fields)
    assert settings.host == "0.0.0.0"
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == settings.port == the("Service")["spec"]["ports"][0]["port"]
    # The supervisor waits longer than the service does.
    assert POD["terminationGracePeriodSeconds"] >= settings.shutdown_grace_s + 5
    readiness = CONTAINER["readinessProbe"]
    notices_s = readiness["periodSeconds"] * readiness["failureThreshold"]
    assert settings.drain_delay_s > notices_s


def test_everything_points_at_the_pods():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    assert the("Service")["spec"]["selector"] == labels
    assert the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert the("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert the("PodMonitor")["spec"]["selector"]["matchLabels"] == labels
    (spread,) = POD["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels
    target = the("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", DEPLOYMENT["metadata"]["name"])
    assert POD["serviceAccountName"] == the("ServiceAccount")["metadata"]["name"]


def test_everything_uses_the_port_by_its_name():
    (port,) = CONTAINER["ports"]
    assert the("Service")["spec"]["ports"][0]["targetPort"] == port["name"]
    assert the("PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] == port["name"]
    (allowed,) = the("NetworkPolicy")["spec"]["ingress"]
    assert [entry["port"] for entry in allowed["ports"]] == [port["name"]]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[probe]["httpGet"]["port"] == port["name"]


def test_probes_and_scrapes_ask_for_paths_that_exist():
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    asked = [CONTAINER[probe]["httpGet"]["path"] for probe in probes]
    # A pod that is not ready must not be killed for it.
    assert asked == ["/health/live", "/health/live", "/health/ready"]
    (endpoint,) = the("PodMonitor")["spec"]["podMetricsEndpoints"]
    with ServerThread(FakeEngine()) as server:
        for path in [*asked, endpoint["path"]]:
            assert get(server.url, path)[0] == 200, path


def test_the_pod_may_do_nothing_but_serve():
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert POD["securityContext"]["runAsUser"] == 10001
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = CONTAINER["securityContext"]
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert POD["automountServiceAccountToken"] is False
    assert "Egress" in the("NetworkPolicy")["spec"]["policyTypes"]
    assert "egress" not in the("NetworkPolicy")["spec"]


def test_a_pod_gets_a_whole_gpu_and_is_bounded():
    limits, requests = CONTAINER["resources"]["limits"], CONTAINER["resources"]["requests"]
    assert limits["nvidia.com/gpu"] == requests["nvidia.com/gpu"] == 1
    assert "memory" in limits


def test_more_pods_start_before_the_queue_is_full():
    (metric,) = the("HorizontalPodAutoscaler")["spec"]["metrics"]
    # As the file says; the deployment sets neither of the two.
    target = int(metric["pods"]["target"]["averageValue"])
    assert target == 2 * Settings().max_batch_tokens == Settings().max_queue_tokens / 8
    given = {entry["name"] for entry in CONTAINER["env"]}
    assert not given & {"MLP_MAX_BATCH_TOKENS", "MLP_MAX_QUEUE_TOKENS"}
    # The autoscaler owns the number of replicas; a number here would fight with it.
    assert "replicas" not in DEPLOYMENT["spec"]


def test_the_image_has_the_projects_version():
    (image,) = load_yaml(KUBERNETES / "kustomization.yaml")["images"]
    assert image["newTag"] == __version__
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()
