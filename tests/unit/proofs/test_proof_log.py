"""Windows of cuts become records of the proofs topic, whatever the topic does meanwhile."""

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from schemas.flow.chain import check_chain
from schemas.flow.flow_sum import FlowSum
from schemas.flow.proof import ProofWindow, decode_proof
from schemas.ids import Ts
from sorters.run.proofs import proof_log
from sorters.run.proofs.proof_log import ProofLog

FEED, OTHER = ("default", "feed"), ("default", "other")


class Topic:
    """The proofs topic; says nothing while ``is_down``, and takes no more than ``takes`` records of a round."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.is_down, self.takes, self.made = False, 1_000, 0
        self.tries = threading.Semaphore(0)

    def ensure(self) -> None:
        self.tries.release()
        if self.is_down:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        self.made += 1

    # As producer.

    def produce(
        self, _topic: str, content: bytes, _key: bytes, _partition: int, acknowledged: Callable[..., None]
    ) -> None:
        error = None if self.takes else KafkaError(KafkaError._MSG_TIMED_OUT)
        if error is None:
            self.takes -= 1
            self.contents.append(content)
        acknowledged(error, None)

    def flush(self, _seconds: float) -> int:
        return 0

    def purge(self) -> None:
        pass

    def poll(self, _seconds: float) -> int:
        return 0

    # As reader.

    def bounds(self) -> tuple[int, int]:
        return 0, len(self.contents)

    def read(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        return iter(list(enumerate(self.contents))[start:end])

    def close(self) -> None:
        pass


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    monkeypatch.setattr(ProofLog, "_ensure_topic", lambda _: topic.ensure())
    monkeypatch.setattr(proof_log, "ordered_producer", lambda *_: topic)
    monkeypatch.setattr(proof_log, "TopicReader", lambda *_, **__: topic)
    monkeypatch.setattr(proof_log, "LOOK_S", 3_600.0)  # only what closes it writes
    return topic


def window(after_ts: int, upto_ts: int) -> ProofWindow:
    rows = FlowSum(upto_ts - after_ts, upto_ts)
    return ProofWindow(after_ts=Ts(after_ts), upto_ts=Ts(upto_ts), landed=rows, written=rows)


def tell(*windows: tuple[tuple[str, str], int, int]) -> None:
    """Let a process tell of windows, and end."""
    log = ProofLog({}, "proofs")
    for name in dict.fromkeys(name for name, _, _ in windows):
        log.begin(name)
    for name, after_ts, upto_ts in windows:
        log.note(name, window(after_ts, upto_ts))
    log.close()


def stand(topic: Topic) -> list[tuple[str, str, int, int]]:
    proofs = [decode_proof(content) for content in topic.contents]
    return [(each.changefeed_id, each.begins, each.window.after_ts, each.window.upto_ts) for each in proofs]


def test_cuts_that_follow_one_another_become_one_record_and_runs_one_chain(topic: Topic) -> None:
    tell((FEED, 0, 10), (OTHER, 5, 10), (FEED, 10, 20), (FEED, 20, 25))
    tell((FEED, 25, 30))
    tell((FEED, 20, 40), (FEED, 50, 60))
    assert stand(topic) == [
        ("feed", "first", 0, 25), ("other", "first", 5, 10), ("feed", "", 25, 30), ("feed", "run", 20, 40),
        ("feed", "run", 50, 60),
    ]  # fmt: skip
    report = check_chain(topic.contents)
    assert report.findings == []
    assert [(gap.after_ts, gap.upto_ts) for gap in report.unproved] == [(40, 50)]


def test_what_a_topic_does_not_take_waits_and_is_joined_to_what_comes(topic: Topic) -> None:
    log = ProofLog({}, "proofs")
    topic.is_down = True
    log.note(FEED, window(0, 10))
    with pytest.raises(KafkaException):
        log._publish(is_last=True)
    topic.is_down, topic.takes = False, 0
    log.note(FEED, window(10, 20))
    with pytest.raises(Exception, match="did not take proofs"):
        log._publish(is_last=True)
    topic.takes = 9
    log.note(FEED, window(20, 30))
    log.close()
    assert stand(topic) == [("feed", "first", 0, 30)]
    assert check_chain(topic.contents).findings == []


def test_of_several_windows_those_that_are_acknowledged_are_told_once(topic: Topic) -> None:
    log = ProofLog({}, "proofs")
    topic.takes = 1
    log.note(FEED, window(0, 10))
    log.note(FEED, window(20, 30))
    with pytest.raises(Exception, match="did not take proofs"):
        log._publish(is_last=True)
    topic.takes = 9
    log.close()
    assert stand(topic) == [("feed", "first", 0, 10), ("feed", "run", 20, 30)]
    assert check_chain(topic.contents).findings == []


def test_bytes_that_are_no_proof_are_passed_over(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    tell((FEED, 0, 10))
    topic.contents.append(b"{}")
    tell((FEED, 10, 20))
    assert [decode_proof(topic.contents[at]).number for at in (0, 2)] == [0, 1]
    assert "passed over" in caplog.text


def test_a_process_that_has_nothing_to_tell_asks_kafka_for_nothing(topic: Topic) -> None:
    log = ProofLog({}, "proofs")
    log.begin(FEED)
    log.close()
    assert (topic.made, topic.contents) == (0, [])


def test_a_topic_that_is_down_is_warned_of_once_and_stops_nobody(
    topic: Topic, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.is_down = True
    monkeypatch.setattr(proof_log, "LOOK_S", 0.001)
    log = ProofLog({}, "proofs")
    for at in range(3):
        log.note(FEED, window(at, at + 1))
    assert all(topic.tries.acquire(timeout=30) for _ in range(3))
    log.close()
    assert caplog.text.count("proofs are not written yet") == 1
