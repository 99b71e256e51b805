"""docker-compose.yml, the Dockerfile and their settings, without running any of it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
import yaml

from service.config import Settings
from tests.deploy.stack import ROOT, run

DOCKERFILE = (ROOT / "Dockerfile").read_text()
# Fixed by the image: other containers and the port mapping rely on them.
SET_BY_IMAGE = {"MLP_HOST", "MLP_PORT"}


@functools.cache
def resolved(*flags: str, **environment: str) -> dict:
    """docker-compose.yml as compose understands it."""
    done = run("docker-compose", *flags, "config", **environment)
    return yaml.safe_load(done.stdout)


def test_up_alone_starts_the_gpu_service_prometheus_and_grafana() -> None:
    assert set(resolved()["services"]) == {"tilemlp-gpu", "prometheus", "grafana"}


def test_the_cpu_profile_replaces_the_gpu_service() -> None:
    services = resolved("--profile", "cpu")["services"]
    assert set(services) == {"tilemlp-cpu", "prometheus", "grafana"}
    assert "deploy" not in services["tilemlp-cpu"]


def test_the_override_of_the_container_test_fits() -> None:
    files = ("-f", "docker-compose.yml", "-f", "deploy/container/compose.test.yml")
    services = resolved(*files)["services"]
    assert "deploy" not in services["tilemlp-gpu"]
    # The rest is what users run.
    assert services["tilemlp-gpu"]["read_only"] is True


@pytest.mark.parametrize("change", ["    dependson: [prometheus]\n", "    volumes: ['lost:/x']\n"])
def test_compose_refuses_what_is_wrong(tmp_path: Path, change: str) -> None:
    """Or `config` would show nothing."""
    override = tmp_path / "wrong.yml"
    override.write_text(f"services:\n  prometheus:\n{change}")
    files = ("-f", "docker-compose.yml", "-f", str(override))
    assert run("docker-compose", *files, "config", "-q", check=False).returncode != 0


@pytest.mark.parametrize("service", ["tilemlp-gpu", "tilemlp-cpu"])
def test_every_setting_can_be_set_and_nothing_else(service: str) -> None:
    settings = {f"MLP_{name.upper()}" for name in Settings.model_fields}
    given = dict.fromkeys(settings, "set")
    found = resolved("--profile", "*", **given)["services"][service]["environment"]
    assert set(found) == settings - SET_BY_IMAGE


def test_settings_that_are_not_set_stay_out() -> None:
    """An empty MLP_API_KEY is refused by the service."""
    values = resolved()["services"]["tilemlp-gpu"]["environment"].values()
    assert set(values) <= {None}


def test_ports_are_on_loopback_unless_asked() -> None:
    for service in resolved("--profile", "*")["services"].values():
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1"
    asked = resolved(BIND_ADDRESS="0.0.0.0")["services"]["grafana"]["ports"]
    assert [port["host_ip"] for port in asked] == ["0.0.0.0"]


def test_every_container_is_read_only_and_without_capabilities() -> None:
    for name, service in resolved("--profile", "*")["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "cap_add" not in service, name
        assert "privileged" not in service, name


@pytest.mark.parametrize("service", ["tilemlp-gpu", "tilemlp-cpu"])
def test_the_grace_period_outlasts_the_drain(service: str) -> None:
    period = resolved("--profile", "*")["services"][service]["stop_grace_period"]
    # One second for connections to close and three for the engine come after the drain.
    assert int(period.removesuffix("s")) >= Settings().shutdown_grace_s + 5


def test_the_gpu_service_gets_a_gpu_and_may_lock_memory() -> None:
    service = resolved(GPU="3")["services"]["tilemlp-gpu"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["3"], "capabilities": ["gpu"]}
    assert service["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
    assert int(service["shm_size"]) >= 1 << 30
    # Or the size were the host's.
    assert "ipc" not in service


def test_models_are_a_folder_where_a_path_is_given() -> None:
    for given, kind in (("", "volume"), ("/data/models", "bind")):
        volumes = resolved(MODELS=given)["services"]["tilemlp-gpu"]["volumes"]
        (models,) = [volume for volume in volumes if volume["target"] == "/models"]
        assert models["type"] == kind
        assert models["read_only"] is True


def test_grafana_has_no_account_that_a_password_opens() -> None:
    environment = resolved()["services"]["grafana"]["environment"]
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_grafana_finds_what_is_provisioned() -> None:
    """The folder in the provider's file and the home page's path are places in the container."""
    grafana = resolved()["services"]["grafana"]
    places = {volume["target"]: volume["source"] for volume in grafana["volumes"]}
    folder = ROOT / "deploy/grafana/provisioning/dashboards"
    for path in folder.glob("*.yml"):
        for provider in yaml.safe_load(path.read_text())["providers"]:
            assert provider["options"]["path"] in places
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (Path(places[str(home.parent)]) / home.name).is_file()


@pytest.mark.parametrize("path", ["Dockerfile", "deploy/container/Dockerfile.prometheus"])
def test_hadolint_is_content(path: str) -> None:
    assert run("hadolint", path, check=False).stdout == ""


def test_hadolint_finds_something(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(DOCKERFILE.replace("USER 10001:10001", "USER root"))
    assert "DL3002" in run("hadolint", str(wrong), check=False).stdout


def test_both_images_are_configured_alike() -> None:
    """The final stages differ in their base and their description only."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    finals = [stage for stage in stages if re.match(r"(cpu|gpu)-base AS (cpu|gpu)\n", stage)]
    assert len(finals) == 2
    cpu, gpu = (
        [
            line.replace("gpu-", "cpu-")
            for line in stage.splitlines()[1:]
            if line and not line.startswith("#") and "description" not in line
        ]
        for stage in finals
    )
    assert cpu == gpu
    for line in ("USER 10001:10001", "STOPSIGNAL SIGTERM", 'ENTRYPOINT ["tini", "--", "tilemlp"]'):
        assert line in cpu
