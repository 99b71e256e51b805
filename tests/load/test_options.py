import pickle

import pytest

from service.errors import ConfigError
from service.load.options import LoadOptions, parse_rows


@pytest.mark.parametrize(
    ("text", "mix"),
    [
        ("64", ((64, 1.0),)),
        ("1:0.7,64:0.25,512:0.05", ((1, 0.7), (64, 0.25), (512, 0.05))),
        (" 1 , 2:3", ((1, 1.0), (2, 3.0))),
    ],
)
def test_rows(text, mix):
    assert parse_rows(text) == mix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"rows: must be like 64 or 1:0.7,64:0.3, is ''"),
        ("x", "rows: must be like"),
        ("1:", "rows: must be like"),
        ("1:x", "rows: must be like"),
        ("1,,2", "rows: must be like"),
        ("0", "rows: must be between 1 and 1048576, is 0"),
        ("1048577", "rows: must be between"),
        ("1:0", "rows: a weight must be above 0 and finite, is 0.0"),
        ("1:nan", "rows: a weight"),
        ("1:inf", "rows: a weight"),
        ("1:1,1:2", r"rows: must name each count once, is \[1, 1\]"),
    ],
)
def test_wrong_rows(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_rows(text)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://localhost:9000", ("localhost", 9000, "localhost:9000", "")),
        ("http://h", ("h", 80, "h:80", "")),
        ("http://h:1/", ("h", 1, "h:1", "")),
        ("http://h:1/a/b/", ("h", 1, "h:1", "/a/b")),
        ("http://[::1]:5", ("::1", 5, "[::1]:5", "")),
    ],
)
def test_address(url, address):
    found = LoadOptions(url=url).address
    assert (found.host, found.port, found.authority, found.prefix) == address


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "https://h"}, r"url: must start with http:// \(TLS is not spoken\), is 'https"),
        ({"url": "localhost:8000"}, "url: must start with http://"),
        ({"url": "http://"}, "url: must name a host"),
        ({"url": "http://h:99999"}, "url: .*range.*99999"),
        ({"url": "http://h:x"}, "url: "),
        ({"url": "http://u:p@h"}, "url: must be host, port and path only"),
        ({"url": "http://h/?a=b"}, "url: must be host, port and path only"),
        ({"url": "http://h/a b"}, "url: the path must be printable ASCII without spaces"),
        ({"model": ""}, "model: must not be empty"),
        ({"layer": -1}, "layer: must be at least 0, is -1"),
        ({"rows": ()}, "rows: must not be empty"),
        ({"connections": 0}, "connections: must be between 1 and 16384, is 0"),
        ({"connections": 4, "processes": 5}, r"processes: must be at most connections \(4\), is 5"),
        ({"processes": 0}, "processes: must be between 1 and 256, is 0"),
        ({"duration_s": 0.0}, "duration_s: must be above 0 and finite, is 0.0"),
        ({"duration_s": float("inf")}, "duration_s: must be above 0 and finite, is inf"),
        ({"timeout_s": -1.0}, "timeout_s: must be above 0 and finite, is -1.0"),
        ({"warm_up_s": -0.1}, "warm_up_s: must be at least 0 and finite, is -0.1"),
        ({"warm_up_s": float("nan")}, "warm_up_s: must be at least 0 and finite, is nan"),
        ({"rate_per_s": 0.0}, "rate_per_s: must be above 0 and finite, is 0.0"),
        ({"max_backlog_requests": -1}, "max_backlog_requests: must be at least 0, is -1"),
        ({"seed": -1}, "seed: must be at least 0, is -1"),
        ({"api_key": "a\r\nX-Evil: 1"}, "api_key: must be printable ASCII without spaces"),
        ({"api_key": ""}, "api_key: must be printable"),
    ],
)
def test_wrong_options(changes, message):
    with pytest.raises(ConfigError, match=message):
        LoadOptions(**changes)


def test_the_key_is_never_shown():
    assert "hunter2hunter2" not in repr(LoadOptions(api_key="hunter2hunter2"))
    with pytest.raises(ConfigError) as caught:
        LoadOptions(api_key="hunter2 hunter2")
    assert "hunter2" not in str(caught.value)


def test_options_travel_between_processes():
    options = LoadOptions(rows=((3, 1.0),), api_key="k" * 8)
    assert pickle.loads(pickle.dumps(options)) == options
