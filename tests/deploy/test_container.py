"""The images and docker-compose.yml as users run them; `make container-test` starts these."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.reference import activations, assert_answers, post, tensor
from tests.deploy.stack import PROMETHEUS_URL, ROOT, SERVICE_URL, Stack, run
from tests.servers import get, is_ready, wait_until

if "TILEMLP_CONTAINER_TEST" not in os.environ:
    pytest.skip("make container-test runs these", allow_module_level=True)

pytestmark = [pytest.mark.container, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=[None, "cpu"], ids=["default", "cpu"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """`docker compose up` as it is, then with the profile for machines without a GPU."""
    with Stack(request.param) as running:
        yield running


def query(expression: str) -> list[dict]:
    """Prometheus's answer to an instant query."""
    status, body = get(
        PROMETHEUS_URL, "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    )
    document = json.loads(body)
    assert status == 200, f"{expression}: {document}"
    return document["data"]["result"]


def test_it_answers_what_numpy_computes(stack: Stack) -> None:
    for seed, tokens in enumerate((1, 3, 64)):
        x = activations(tokens, seed)
        status, body = post(SERVICE_URL, x)
        assert status == 200, body
        assert_answers(tensor(body), x)


def test_prometheus_sees_a_request(stack: Stack) -> None:
    before = get(SERVICE_URL, "/metrics")[1].decode()
    assert post(SERVICE_URL, activations(1, 0))[0] == 200
    counted = 'mlp_requests_total{api="mlp",outcome="ok"}'
    (line,) = [line for line in before.splitlines() if line.startswith(counted)]
    wanted = float(line.split()[-1]) + 1
    wait_until(lambda: [float(r["value"][1]) for r in query(counted)] == [wanted], 30)
    assert [r["value"][1] for r in query('up{job="tilemlp"}')] == ["1"]


def test_prometheus_evaluates_every_rule_and_every_query_of_the_dashboard(stack: Stack) -> None:
    groups = json.loads(get(PROMETHEUS_URL, "/api/v1/rules")[1])["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    wait_until(lambda: query("prometheus_rule_group_iterations_total"), 30)
    assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
    expressions = list(dashboard_expressions())
    assert expressions
    for expression in expressions:
        query(expression)


def dashboard_expressions() -> Iterator[str]:
    """Every PromQL expression of the dashboards, with Grafana's variables filled in."""

    def walk(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("expr"), str):
                yield node["expr"]
            node = list(node.values())
        if isinstance(node, list):
            for item in node:
                yield from walk(item)

    for path in (ROOT / "deploy/grafana/dashboards").glob("*.json"):
        for expression in walk(json.loads(path.read_text())):
            yield re.sub(r"\$__\w+", "1m", expression).replace("$instance", ".*")


def test_it_runs_as_its_user_without_capabilities(stack: Stack) -> None:
    # One may end between the listing and the reading, as health checks do.
    processes = stack.shell("cat /proc/[0-9]*/status || true").split("Name:")[1:]
    names = [text.split()[0] for text in processes]
    assert names[0] == "tini"
    assert "tilemlp" in names
    for text in processes:
        fields = dict(line.split(":", 1) for line in text.splitlines()[1:] if ":" in line)
        assert set(fields["Uid"].split()) == {"10001"}, text
        assert set(fields["Gid"].split()) == {"10001"}, text
        for capabilities in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
            assert int(fields[capabilities], 16) == 0, text
        assert fields["NoNewPrivs"].strip() == "1"


@pytest.mark.parametrize("service", ["the service", "prometheus"])
def test_the_root_is_read_only(stack: Stack, service: str) -> None:
    name = None if service == "the service" else service
    mounts = [line.split() for line in stack.shell("cat /proc/mounts", name).splitlines()]
    (root,) = [options for _, place, _, options, *_ in mounts if place == "/"]
    assert "ro" in root.split(",")


def test_tmp_is_writable(stack: Stack) -> None:
    assert stack.shell("echo kept > /tmp/probe && cat /tmp/probe").strip() == "kept"


def test_nothing_that_compiles_or_installs_is_in_the_image(stack: Stack) -> None:
    tools = "gcc g++ cc c++ clang nvcc ptxas cmake ninja make ld pip pip3 uv"
    assert stack.shell(f"for t in {tools}; do command -v $t; done; true") == ""
    headers = "find / -xdev -name '*.h' -path '*/include/*' 2>/dev/null | grep -v /numpy/ | head"
    assert stack.shell(headers) == ""


def test_only_the_full_image_holds_the_kernel_library(stack: Stack) -> None:
    line = stack.shell("tilemlp doctor | grep ^kernels")
    loaded = "service/kernels/libswiglu.so, ABI" in line
    assert loaded == (stack.service == "tilemlp-gpu"), line


def test_repeated_requests_have_their_library(stack: Stack) -> None:
    code = "from service.workers.lane_library import *; load_library(find_library())"
    stack.shell(f"python -c '{code}' || python3 -c '{code}'")


def test_ports_are_published_on_loopback_only(stack: Stack) -> None:
    for service in (None, "prometheus"):
        published = stack.inspect(service)["NetworkSettings"]["Ports"]
        hosts = {entry["HostIp"] for entries in published.values() for entry in entries or []}
        assert hosts == {"127.0.0.1"}


def test_the_load_profile_finds_the_service(stack: Stack) -> None:
    profile = ["--profile", "cpu"] if stack.service == "tilemlp-cpu" else []
    flags = ["--duration-s", "1", "--warm-up-s", "0.2", "--connections", "2", "--quiet"]
    done = stack.compose(*profile, "run", "--rm", "-T", "load", *flags)
    assert "p99" in done.stdout


class Client(threading.Thread):
    """POSTs half a second of work, again and again, until it is turned away."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self.x = activations(1024, seed)
        self.sent: list[float] = []
        self.answers: list[tuple[float, bytes]] = []
        self.ended_with = ""

    def run(self) -> None:
        while not self.ended_with:
            began = time.monotonic()
            try:
                status, body = post(SERVICE_URL, self.x)
            except ConnectionRefusedError:
                self.ended_with = "refused"
            except OSError as error:
                self.ended_with = repr(error)
            else:
                if status == 200:
                    self.sent.append(began)
                    self.answers.append((time.monotonic(), body))
                else:
                    self.ended_with = f"{status} {body.decode()}"


def test_sigterm_with_traffic_in_flight_answers_all_of_it() -> None:
    with Stack("cpu") as stack:
        clients = [Client(seed) for seed in range(4)]
        for client in clients:
            client.start()
        wait_until(lambda: all(client.answers for client in clients), 60)
        told = time.monotonic()
        stack.compose("stop", stack.service)
        stopped = time.monotonic()
        for client in clients:
            client.join(10)
        for client in clients:
            draining = client.ended_with.startswith("503") and "draining" in client.ended_with
            assert draining or client.ended_with == "refused", client.ended_with
            assert len({body for _, body in client.answers}) == 1
            assert_answers(tensor(client.answers[-1][1]), client.x)
        late = [
            done
            for client in clients
            for began, (done, _) in zip(client.sent, client.answers, strict=True)
            if began < told < done
        ]
        assert late, "no request was in flight at SIGTERM: nothing was tested"
        state = stack.inspect()["State"]
        assert state["ExitCode"] == 0, stack.logs()
        assert stopped - told < 35, "the engine had to kill it"


def image_healthcheck() -> list[str]:
    """The image's HEALTHCHECK, as compose writes it."""
    (found,) = json.loads(run("podman", "image", "inspect", "localhost/tilemlp:cpu").stdout)
    return found["Healthcheck"]["Test"]


def test_a_broken_health_endpoint_keeps_the_stack_from_coming_up(tmp_path: Path) -> None:
    """The check must not be one that always passes."""
    source = (ROOT / "service/routes/health.py").read_text()
    broken = source.replace('"ready", front.health.ready)', '"ready", False)')
    assert broken != source
    (tmp_path / "health.py").write_text(broken)
    place = "/opt/tilemlp/lib/python3.11/site-packages/service/routes/health.py"
    override = tmp_path / "broken.yml"
    override.write_text(
        "services:\n"
        "  tilemlp-cpu:\n"
        f"    volumes: ['{tmp_path}/health.py:{place}:ro']\n"
        # The image's check, but without the ten minutes in which failing does not count.
        f"    healthcheck: {{test: {image_healthcheck()}, start_period: 1s, interval: 1s}}\n"
    )
    stack = Stack("cpu", overrides=[override])
    try:
        done = stack.up(check=False, wait_s=60)
        assert done.returncode != 0
        assert "unhealthy" in done.stderr
        # It does run, and says no.
        wait_until(lambda: get(SERVICE_URL, "/health/live")[0] == 200, 20)
        assert not is_ready(SERVICE_URL)
        assert get(SERVICE_URL, "/health/ready")[0] == 503
    finally:
        stack.down()
