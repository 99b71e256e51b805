"""The OpenAPI document is valid, and says what the service does."""

from __future__ import annotations

import re

import numpy as np
import pytest
from openapi_spec_validator import validate

from tests.engines import expected
from tests.routes.bodies import decode, post, rows


@pytest.fixture(scope="module")
def document(service):
    return service.client.get("/openapi.json").json()


def test_document_is_valid(document):
    validate(document)


def test_content_types_of_mlp_are_those_it_reads_and_writes(service, document):
    operation = document["paths"]["/mlp"]["post"]
    read = operation["requestBody"]["content"].keys()
    written = operation["responses"]["200"]["content"].keys()
    assert (
        read
        == written
        == {
            "application/octet-stream",
            "application/x-npy",
            "application/json",
        }
    )
    x = rows(2)
    for media_type in read:
        answer = post(service.client, x, media_type)
        np.testing.assert_array_equal(decode(answer), expected(x, 0))
        assert answer.headers["content-type"] == media_type


def test_headers_of_an_answer_are_documented(service, document):
    documented = document["paths"]["/mlp"]["post"]["responses"]["200"]["headers"].keys()
    answer = post(service.client, rows(2))
    own = answer.headers.keys() - {"date", "content-length", "content-type"}
    assert {name.lower() for name in documented} == own


def test_parameters_of_mlp_are_those_it_takes(service, document):
    parameters = document["paths"]["/mlp"]["post"]["parameters"]
    names = [item["name"] for item in parameters if item["in"] == "query"]
    refusal = service.client.post("/mlp?nope=1").json()["error"]
    assert re.findall(r"\b(model|layer|output)\b", refusal) == names == ["model", "layer", "output"]


def test_every_path_that_is_documented_is_served(service, document):
    for path, operations in document["paths"].items():
        for method in operations:
            url = path.replace("{model}", "tiny").replace("{version}", "1")
            answer = service.client.request(method, url)
            assert answer.status_code not in (404, 405), (method, url)


def test_errors_are_documented_in_their_form(document):
    """FastAPI promises a 422 with {"detail": […]}, which is never sent."""
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert not [operation for operation in operations if "422" in operation["responses"]]
    for status, response in document["paths"]["/mlp"]["post"]["responses"].items():
        if status != "200":
            schema = response["content"]["application/json"]["schema"]
            assert schema["required"] == ["error", "code"]


def test_docs_page_loads(service):
    answer = service.client.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in answer.text
