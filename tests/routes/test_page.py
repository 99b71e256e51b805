"""The page at /: one document that nothing else is needed for, and what may run in it."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.bench.stub import StubEngine
from service.config import Settings
from service.errors import NotFound
from service.routes.page import FOLDER, readme_text
from service.runtime import Runtime
from tests.engines import FakeEngine
from tests.servers import ServerThread, get
from tests.test_imports import ROOT

# Their reader may land apart from the page, which shows them once they are exposed.
NVML = {
    "mlp_gpu_utilization_ratio",
    "mlp_gpu_memory_used_bytes",
    "mlp_gpu_power_watts",
    "mlp_gpu_sm_clock_hertz",
}


@pytest.fixture(scope="module")
def answer(service):
    return service.client.get("/")


def policy(answer) -> dict[str, list[str]]:
    directives = answer.headers["content-security-policy"].split("; ")
    return {name: values for name, *values in map(str.split, directives)}


def inline(text: str, tag: str) -> list[str]:
    return re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", text, re.DOTALL)


def test_headers(answer):
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_head_has_the_same_headers_and_no_body(service, answer):
    head = service.client.head("/")
    assert head.status_code == 200
    assert head.content == b""
    varying = {"date"}
    assert {k: v for k, v in head.headers.items() if k not in varying} == {
        k: v for k, v in answer.headers.items() if k not in varying
    }


def test_other_methods_are_refused_in_the_form_of_every_error(service):
    refused = service.client.post("/")
    assert refused.status_code == 405
    assert refused.json()["code"] == "method_not_allowed"


def test_a_browser_that_has_it_is_not_sent_it_again(service, answer):
    etag = answer.headers["etag"]
    again = service.client.get("/", headers={"If-None-Match": f'W/"other", {etag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == etag
    assert service.client.get("/", headers={"If-None-Match": '"other"'}).content == answer.content


@pytest.mark.parametrize("tag", ["script", "style"])
def test_policy_allows_exactly_what_is_in_the_page(answer, tag):
    found = inline(answer.text, tag)
    expected = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in found
    ]
    assert len(expected) == len(list(FOLDER.glob("*.js" if tag == "script" else "*.css")))
    assert policy(answer)[f"{tag}-src"] == expected


def test_policy_forbids_everything_else(answer):
    found = policy(answer)
    del found["script-src"], found["style-src"]
    assert found == {
        "default-src": ["'none'"],
        "connect-src": ["'self'"],
        "img-src": ["data:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
        "frame-ancestors": ["'none'"],
    }


def test_nothing_comes_from_anywhere_else(answer):
    # A namespace is a name, not an address.
    text = answer.text.replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"\w+://|(?<=[\"'(])//|@import|url\(", text) == []
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["data:,", *_linked()]


def _linked() -> list[str]:
    return ["docs", "metrics", "readme", "metrics"]


def test_everything_it_links_to_is_there(service):
    for path in _linked():
        assert service.client.get(f"/{path}").status_code == 200, path


def test_no_inline_style_or_handler_that_the_policy_would_stop(answer):
    assert re.findall(r'\s(?:style|on\w+)="', answer.text) == []


def test_every_metric_it_names_is_exposed():
    named = set(re.findall(r"\b(?:mlp|process)_\w+", (FOLDER / "figures.js").read_text()))
    named |= set(re.findall(r"\bprocess_\w+", (FOLDER / "exposition.js").read_text()))
    engine = StubEngine()
    engine.peak_flops = 1.0
    text = Runtime(Settings(), engine).metrics.render().decode()
    families = list(text_string_to_metric_families(text))
    exposed = {sample.name for family in families for sample in family.samples}
    exposed |= {family.name for family in families}
    missing = named - exposed
    sources = "".join(path.read_text() for path in (ROOT / "service").rglob("*.py"))
    assert {name for name in missing if name not in sources} in (set(), NVML)
    assert missing <= NVML
    assert len(named) >= 17


def test_metrics_are_named_in_one_file_only():
    others = [path for path in FOLDER.iterdir() if path.name != "figures.js"]
    assert [path.name for path in others if re.search(r"\bmlp_\w", path.read_text())] == []


def test_a_page_needs_no_key():
    """Like health and metrics, of which it is a view."""
    with ServerThread(FakeEngine(), api_key="secret-key") as thread:
        assert get(thread.url, "/")[0] == 200
        assert get(thread.url, "/readme")[0] == 200


def test_readme_is_the_installed_one(service):
    answer = service.client.get("/readme")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.text == readme_text()
    assert answer.text.lstrip().startswith("# tilemlp\n")


def test_readme_of_a_tree_that_was_not_installed(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", missing)
    with pytest.raises(NotFound, match="must be installed"):
        readme_text()


def test_the_page_is_not_part_of_the_api(service):
    assert {"/", "/readme"}.isdisjoint(service.client.get("/openapi.json").json()["paths"])


def test_motion_is_left_to_nobody():
    """Nothing moves, so there is nothing that prefers-reduced-motion would have to stop."""
    assert re.findall(r"transition|animation|@keyframes|scroll-behavior", _all_text()) == []


def _all_text() -> str:
    return "".join(path.read_text() for path in sorted(FOLDER.iterdir()))
