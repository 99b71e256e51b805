import pickle

from service.load.faults import Fault
from service.load.histogram import LogHistogram
from service.load.tally import Tally


def make_tally(rows, latency_ns, fault, status):
    tally = Tally(requests=1, tokens=rows, sent_bytes=2 * rows, received_bytes=3 * rows, sent=5)
    tally.latency_ns[rows] = LogHistogram()
    tally.latency_ns[rows].record(latency_ns)
    tally.wait_ns.record(latency_ns // 2)
    tally.batch_tokens.record(rows)
    tally.kernels["k"] += 1
    tally.note_timing("queue", 2.0 * rows)
    tally.statuses["200"] += 2
    tally.note_status(status, f"message of {rows}")
    tally.note_fault(fault, f"fault of {rows}")
    tally.compared_fully, tally.compared_in_part, tally.most_backlog = 1, 2, 3
    tally.cpu_shares = (0.25 * rows,)
    return tally


def test_merging_adds_everything():
    total = Tally()
    total.merge(make_tally(1, 1000, Fault.TIMEOUT, "429 queue_full"))
    total.merge(pickle.loads(pickle.dumps(make_tally(2, 3000, Fault.NOT_FINITE, "500"))))
    total.merge(make_tally(2, 5000, Fault.NOT_FINITE, "500"))
    assert (total.requests, total.tokens, total.sent_bytes, total.received_bytes) == (3, 5, 10, 15)
    assert {rows: h.count for rows, h in total.latency_ns.items()} == {1: 1, 2: 2}
    assert (total.latency().count, total.latency().total) == (3, 9000)
    assert (total.wait_ns.count, total.wait_ns.total) == (3, 4500)
    assert total.batch_tokens.total == 5
    assert total.kernels == {"k": 3}
    assert total.server_timing == {"queue": (10.0, 3)}
    assert total.statuses == {"200": 6, "429 queue_full": 1, "500": 2}
    assert total.faults == {Fault.TIMEOUT: 1, Fault.NOT_FINITE: 2}
    assert total.sent == 15
    assert (total.compared_fully, total.compared_in_part, total.most_backlog) == (3, 6, 9)
    assert total.cpu_shares == (0.25, 0.5, 0.5)


def test_merging_keeps_the_first_message_of_each_kind():
    total = make_tally(1, 1, Fault.TIMEOUT, "500")
    total.merge(make_tally(2, 1, Fault.TIMEOUT, "503"))
    assert total.examples == {
        "500": "message of 1",
        "timeout": "fault of 1",
        "503": "message of 2",
    }


def test_errors_are_all_but_right_answers():
    tally = make_tally(1, 1, Fault.TIMEOUT, "500")
    assert (tally.errors, tally.wrong_answers) == (2, 0)
    tally.note_fault(Fault.WRONG_VALUES, "")
    tally.note_fault(Fault.WRONG_SHAPE, "")
    assert (tally.errors, tally.wrong_answers) == (4, 2)
    assert Tally().errors == 0


def test_wrong_answers_are_the_faults_that_come_with_status_200():
    wrong = {fault for fault in Fault if fault.is_wrong_answer}
    assert wrong == set(Fault) - {
        Fault.CONNECT,
        Fault.TIMEOUT,
        Fault.RESET,
        Fault.PROTOCOL,
        Fault.BACKLOG,
    }
