import httptools
import pytest

from service.load.reader import AnswerReader

HEAD = b"HTTP/1.1 200 OK\r\nX-Tensor-Shape: 1,2\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n3\r\nefg\r\n0\r\n\r\n"


def feed(reader, data, step=None):
    """Deliver bytes as a transport would: into the reader's buffer, as many as fit."""
    answers = []
    while data:
        buffer = reader.buffer()
        count = min(len(buffer), len(data), step or len(data))
        buffer[:count] = data[:count]
        data = data[count:]
        answer = reader.received(count)
        if answer is not None:
            answers.append((answer.status, bytes(answer.body), answer.keep_alive))
            reader.expect()
    return answers


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, None])
def test_an_answer_in_pieces_is_the_same_answer(step):
    data = HEAD % 10 + b"0123456789"
    assert feed(AnswerReader(), data, step) == [(200, b"0123456789", True)]


def test_headers_are_kept_by_lower_case_name():
    reader = AnswerReader()
    data = HEAD % 0
    reader.buffer()[: len(data)] = data
    answer = reader.received(len(data))
    assert answer.headers == {b"x-tensor-shape": b"1,2", b"content-length": b"0"}
    assert answer.at_ns > 0


@pytest.mark.parametrize("step", [1000, 65536, None])
@pytest.mark.parametrize("size", [0, 1, 65536, 300_000])
def test_answers_of_any_size_follow_each_other(size, step):
    body = bytes(range(256)) * (size // 256 + 1)
    reader = AnswerReader()
    for length in (size, 5, size, size // 2):
        assert feed(reader, HEAD % length + body[:length], step) == [(200, body[:length], True)]


def test_the_body_of_a_large_answer_is_received_in_place():
    reader = AnswerReader()
    data = HEAD % 300_000
    reader.buffer()[: len(data)] = data
    assert reader.received(len(data)) is None
    assert len(reader.buffer()) == 300_000


def test_an_answer_given_out_survives_until_the_next_is_sent():
    reader = AnswerReader()
    data = HEAD % 4 + b"abcd"
    reader.buffer()[: len(data)] = data
    first = reader.received(len(data))
    reader.expect()
    assert bytes(first.body) == b"abcd"


@pytest.mark.parametrize("step", [1, 5, None])
def test_chunked(step):
    reader = AnswerReader()
    for _ in range(2):
        assert feed(reader, CHUNKED, step) == [(200, b"abcdefg", True)]


def test_connection_close():
    data = b"HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"
    assert feed(AnswerReader(), data) == [(503, b"no", False)]


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
        HEAD % 2 + b"ab" + HEAD % 2 + b"cd",
        HEAD % 2 + b"abc",
    ],
    ids=["not http", "bad length", "huge length", "two answers", "a byte too many"],
)
def test_what_is_not_one_answer_is_refused(data):
    with pytest.raises(httptools.HttpParserError):
        feed(AnswerReader(), data)


@pytest.mark.parametrize(
    ("data", "progress"),
    [
        (b"HTTP/1.1 20", "no head"),
        (HEAD % 10 + b"abc", "3 of 10 body bytes"),
        (HEAD % 100_000 + b"abc", "3 of 100000 body bytes"),
        (CHUNKED[:-7], "7 body bytes"),
    ],
)
def test_progress_is_told(data, progress):
    reader = AnswerReader()
    assert feed(reader, data) == []
    assert reader.progress() == progress
