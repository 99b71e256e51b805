"""X-Request-Id: a good one comes back, a bad or missing one is replaced."""

from __future__ import annotations

import re

import pytest

from tests.routes.bodies import post, rows

_MADE_HERE = re.compile(r"[0-9a-f]{12}-[0-9a-f]+")


@pytest.mark.parametrize("given", ["a", "7f3c12ab-0001", "a.b:c/d+e=@f_g-h", "x" * 128])
def test_good_id_comes_back(service, given):
    assert post(service.client, rows(1), x_request_id=given).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "semi;colon", 'quo"te', "tab\tbed"])
def test_bad_id_is_replaced(service, given):
    found = post(service.client, rows(1), x_request_id=given).headers["x-request-id"]
    assert _MADE_HERE.fullmatch(found)


def test_made_ids_differ(service):
    found = {post(service.client, rows(1)).headers["x-request-id"] for _ in range(20)}
    assert len(found) == 20


def test_errors_carry_it_too(service):
    answer = post(service.client, rows(1), query="?layer=9", x_request_id="mine")
    assert answer.status_code == 404
    assert answer.headers["x-request-id"] == "mine"
