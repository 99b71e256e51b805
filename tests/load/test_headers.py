import pytest

from service.load.headers import describe_error, parse_server_timing, retry_after_s
from service.load.reader import Answer


@pytest.mark.parametrize(
    ("value", "metrics"),
    [
        (b"queue;dur=0.5, execute;dur=2.25", [("queue", 0.5), ("execute", 2.25)]),
        (b"a;dur=1,b;dur=2", [("a", 1.0), ("b", 2.0)]),
        (b'a;desc="x";dur=1, b;desc="y", c ; dur=3', [("a", 1.0), ("c", 3.0)]),
        (b"cache-read;dur=7", [("cache-read", 7.0)]),
        (b"miss", []),
        (b"", []),
        (b"a;dur=nonsense", []),
    ],
)
def test_server_timing(value, metrics):
    assert parse_server_timing(value) == metrics


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1", 1.0),
        (b"0", 0.0),
        (b"86400", 60.0),
        (b"Sun, 29 Nov 2026 21:31:35 GMT", 0.0),
        (None, 0.0),
    ],
)
def test_retry_after(value, seconds):
    headers = {} if value is None else {b"retry-after": value}
    assert retry_after_s(Answer(429, headers, memoryview(b""), True, 0)) == seconds


@pytest.mark.parametrize(
    ("body", "described"),
    [
        (b'{"error": "queue is full", "code": "queue_full"}', ("429 queue_full", "queue is full")),
        (b'{"code": "x"}', ("429 x", "")),
        (b'{"error": "no code"}', ("429", '{"error": "no code"}')),
        (b'{"code": 5}', ("429", '{"code": 5}')),
        (b"[]", ("429", "[]")),
        (b"<html>bad gateway</html>", ("429", "<html>bad gateway</html>")),
        (b"\xff\xfe", ("429", "��")),
        (b"", ("429", "")),
    ],
)
def test_errors_are_described(body, described):
    assert describe_error(Answer(429, {}, memoryview(body), True, 0)) == described


def test_a_description_is_short_however_long_the_body():
    status, message = describe_error(Answer(500, {}, memoryview(b"x" * 10**6), True, 0))
    assert (status, message) == ("500", "x" * 200)
