"""The reader of exact ranges, over a consumer that plays what brokers do."""

import time
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from consumers.control.log.frontier_topic import FrontierTopic, FrontierUnavailableError
from edges.kafka import offsets, tail
from edges.kafka.access import KafkaAccess
from edges.kafka.errors import HistoryLostError, KafkaUnreachableError
from edges.kafka.offsets import TopicReader
from edges.kafka.tail import SILENCE_S, FrontierTail
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.rawlog.frontier import NOBODYS, FrontierRecord, encode_frontier


class Message:
    """A record, or what stands for an error."""

    def __init__(self, offset: int, value: bytes = b"v", error: int | None = None) -> None:
        self._offset, self._value, self._error = offset, value, error

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value


class Consumer:
    """Hands out what it was given, once; then nothing."""

    def __init__(self, messages: Sequence[Message], bounds: Sequence[Any] = ((0, 9),)) -> None:
        self.messages, self.bounds, self.assigned = list(messages), list(bounds), 0

    def poll(self, _timeout_s: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None

    def consume(self, _count: int, timeout: float) -> list[Message]:
        assert timeout == 0
        taken, self.messages = self.messages, []
        return taken

    def assign(self, _partitions: object) -> None:
        self.assigned += 1

    def unassign(self) -> None:
        self.assigned -= 1

    def close(self) -> None:
        pass

    def get_watermark_offsets(self, _partition: object, timeout: float) -> tuple[int, int]:
        answer = self.bounds.pop(0)
        if isinstance(answer, int):
            raise KafkaException(KafkaError(answer))
        low, high = answer
        return low, high


@pytest.fixture(autouse=True)
def markers(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The offsets at which Kafka itself has put a record."""
    offsets_of_markers = set[int]()
    monkeypatch.setattr(offsets, "is_marker", lambda *where: where[-1] in offsets_of_markers)
    return offsets_of_markers


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    def with_consumer(consumer: Consumer) -> Consumer:
        monkeypatch.setattr(offsets, "kafka_consumer", lambda _config, _log: consumer)
        monkeypatch.setattr(offsets, "_LEADER_RETRY_S", 0.0)
        return consumer

    return with_consumer


def reader() -> TopicReader:
    """Return one that does not wait."""
    return TopicReader({}, "t", timeout_s=0.0)


def test_range_is_read_to_its_end_and_no_further(play: Any) -> None:
    consumer = play(Consumer([Message(3, b"c"), Message(4, b"d"), Message(5, b"e")]))
    with closing(reader()) as topic:
        assert list(topic.read(3, 5)) == [(3, b"c"), (4, b"d")]
    assert consumer.assigned == 0, "it would go on fetching what nobody reads"


def test_empty_range_asks_nobody(play: Any) -> None:
    play(Consumer([]))
    with closing(reader()) as topic:
        assert list(topic.read(5, 5)) == []


def test_gap_is_an_error_that_names_where(play: Any) -> None:
    consumer = play(Consumer([Message(3), Message(5)]))
    with closing(reader()) as topic, pytest.raises(KafkaUnreachableError, match="passed over") as gap:
        list(topic.read(3, 6))
    assert gap.value.fields["at"] == 4
    assert consumer.assigned == 0


def test_marker_of_a_strangers_transaction_is_handed_out_as_empty(play: Any, markers: set[int]) -> None:
    play(Consumer([Message(3), Message(5), Message(8)]))
    markers.update((4, 6, 7))
    with closing(reader()) as topic:
        handed = list(topic.read(3, 9))
    assert handed == [(number, b"v" if number in (3, 5, 8) else b"") for number in range(3, 9)]


def test_gap_that_is_no_marker_is_an_error_after_those_that_are(play: Any, markers: set[int]) -> None:
    play(Consumer([Message(3), Message(6)]))
    markers.add(4)
    with closing(reader()) as topic, pytest.raises(KafkaUnreachableError, match="were passed over") as caught:
        list(topic.read(3, 9))
    assert caught.value.fields["next_offset"] == 6


def test_marker_at_the_end_of_a_range_is_looked_for_where_nothing_comes(
    play: Any, markers: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "_STALL_S", 0.0)
    play(Consumer([Message(3)]))
    markers.add(4)
    with closing(TopicReader({}, "t", timeout_s=20.0)) as topic:
        assert list(topic.read(3, 5)) == [(3, b"v"), (4, b"")]


def test_marker_is_looked_for_once_nothing_came_for_a_while_also_after_others(
    play: Any, markers: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Silence()
    monkeypatch.setattr(offsets, "time", clock)
    consumer: Any = play(Consumer([]))
    polls, looked = count(1), list[float]()
    script = {2: [Message(3)], 70: [Message(4)]}

    def poll(_timeout_s: float) -> Message | None:
        clock.now_s += 0.1
        consumer.messages += script.pop(next(polls), [])
        return consumer.messages.pop(0) if consumer.messages else None

    def is_marker(*where: object) -> bool:
        looked.append(clock.now_s)
        return where[-1] == 5

    consumer.poll = poll
    monkeypatch.setattr(offsets, "is_marker", is_marker)
    with closing(TopicReader({}, "t", timeout_s=30.0)) as topic:
        assert list(topic.read(3, 6)) == [(3, b"v"), (4, b"v"), (5, b"")]
    assert [round(at) for at in looked] == [5, 12, 12]


def test_topic_that_ends_before_the_range_does_is_an_error(play: Any) -> None:
    play(Consumer([Message(3)]))
    with closing(reader()) as topic, pytest.raises(KafkaUnreachableError, match="did not come"):
        list(topic.read(3, 5))


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE])
def test_records_that_retention_has_passed_are_lost_history(play: Any, code: int) -> None:
    play(Consumer([Message(3, error=code)]))
    with closing(reader()) as topic, pytest.raises(HistoryLostError):
        list(topic.read(3, 5))


@pytest.mark.parametrize("code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION])
def test_damaged_batch_is_named_and_what_stands_before_it_comes_first(play: Any, code: int) -> None:
    # What librdkafka makes of the bytes behind a batch of a wrong checksum is anything: an offset that nobody has.
    gone = Message(2**53, error=KafkaError._AUTO_OFFSET_RESET)
    for behind in ([], [Message(7)], [Message(9, error=KafkaError._NOT_IMPLEMENTED), gone]):
        play(Consumer([Message(3), Message(4, error=code), *behind]))
        with closing(reader()) as topic:
            records = topic.read(3, 6)
            assert next(records) == (3, b"v")
            with pytest.raises(CorruptDataError, match="damaged") as caught:
                next(records)
        assert {name: caught.value.fields[name] for name in ("topic", "partition", "offset")} == {
            "topic": "t", "partition": 0, "offset": 4,
        }  # fmt: skip


def test_errors_that_heal_are_waited_out(play: Any) -> None:
    play(Consumer([Message(-1, error=KafkaError._TRANSPORT), Message(3)]))
    with closing(reader()) as topic:
        assert list(topic.read(3, 4)) == [(3, b"v")]


def test_bounds_are_asked_again_while_the_leader_moves_and_not_otherwise(play: Any) -> None:
    play(Consumer([], [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError._UNKNOWN_PARTITION, (2, 7)]))
    with closing(reader()) as topic:
        assert topic.bounds() == (2, 7)
    play(Consumer([], [KafkaError.TOPIC_AUTHORIZATION_FAILED, (2, 7)]))
    with closing(reader()) as topic, pytest.raises(KafkaUnreachableError):
        topic.bounds()


def test_owner_does_not_take_a_frontier_topic_that_was_cut_for_the_whole_one(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an unclean election the end that a broker told may be gone: the newest record is not the last one read."""
    monkeypatch.setattr("consumers.control.log.frontier_topic.READ_TIMEOUT_S", 0.0)
    record = FrontierRecord(owner_rev=1, resolved_ts=Ts(5), low=(0,), high=(0,), ddl_high=0, repeat_high=(0,))
    play(Consumer([Message(0, encode_frontier(record))], [(0, 2)]))
    with closing(FrontierTopic(KafkaAccess("k:1"), "t")) as topic, pytest.raises(FrontierUnavailableError):
        topic.newest()


class Two:
    """A consumer that compares no checksums of batches, and the one that does."""

    def __init__(self, unchecked: Consumer, checked: Consumer) -> None:
        self.made, self._consumers = list[object](), {False: unchecked, True: checked}

    def __call__(self, config: dict[str, object], _log: object) -> Consumer:
        self.made.append(config["check.crcs"])
        return self._consumers[bool(config["check.crcs"])]


@pytest.mark.parametrize("after", [[], [Message(6)]], ids=["nothing comes", "some are passed over"])
def test_records_that_are_missing_are_looked_for_by_who_compares_batches(
    monkeypatch: pytest.MonkeyPatch, after: list[Message]
) -> None:
    two = Two(Consumer([Message(3), *after]), Consumer([Message(3, error=KafkaError._BAD_MSG)]))
    monkeypatch.setattr(offsets, "kafka_consumer", two)
    with (
        closing(TopicReader({}, "t", timeout_s=0.0, are_checked=True)) as topic,
        pytest.raises(CorruptDataError, match="damaged") as caught,
    ):
        list(topic.read(3, 9))
    assert two.made == [False, True]
    assert {name: caught.value.fields[name] for name in ("partition", "offset")} == {"partition": 0, "offset": 4}


def test_records_that_are_missing_and_fit_their_batches_are_a_broker_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = Two(Consumer([Message(3)]), Consumer([Message(4)]))
    monkeypatch.setattr(offsets, "kafka_consumer", two)
    with (
        closing(TopicReader({}, "t", timeout_s=0.0, are_checked=True)) as topic,
        pytest.raises(KafkaUnreachableError, match="did not come"),
    ):
        list(topic.read(3, 9))
    assert two.made == [False, True]


def test_records_of_a_broker_in_trouble_are_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Two(Consumer([Message(-1, error=KafkaError._TRANSPORT)]), Consumer([]))
    monkeypatch.setattr(offsets, "kafka_consumer", two)
    with (
        closing(TopicReader({}, "t", timeout_s=0.0, are_checked=True)) as topic,
        pytest.raises(KafkaUnreachableError, match="did not come"),
    ):
        list(topic.read(3, 9))
    assert two.made == [False]


def test_records_of_other_partitions_keep_nobody_waiting_and_none_of_them_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    consumer: Any = Consumer([Message(number) for number in range(40)])
    consumer.consume = lambda _count, timeout: []
    at = {0: 0, 1: 7}
    records = offsets.NextRecords(consumer, "t", at, lambda: False, 10.0, config={"bootstrap.servers": "k:1"})
    taken = []
    with pytest.raises(KafkaUnreachableError, match="did not come"):
        while True:
            taken += records.take(1, {1})
    assert at == {0: len(taken), 1: 7} and 0 < len(taken) < 40


class Silence:
    """A clock that goes on by as much as each wait for a record takes."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def hear(self, follower: FrontierTail, seconds: float) -> list[FrontierRecord]:
        """Read for so long; return what has come."""
        heard = []
        for _ in range(round(seconds / 0.5)):
            self.now_s += 0.5
            heard += follower.read(10, 0.5)
        return heard


RECORD = FrontierRecord(owner_rev=1, resolved_ts=Ts(5), low=(0,), high=(0,), ddl_high=0, repeat_high=(0,))


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Silence:
    clock = Silence()
    monkeypatch.setattr(tail, "time", clock)
    return clock


def test_follower_that_does_not_get_what_there_is_asks_by_another_consumer(
    monkeypatch: pytest.MonkeyPatch, silence: Silence, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = [Consumer([], [(0, 9), (0, 12)]), Consumer([], []), Consumer([], [(0, 14)]), Consumer([], [])]
    deaf[1].messages = [Message(number, encode_frontier(RECORD)) for number in range(9, 12)]
    made = iter(deaf)
    monkeypatch.setattr(offsets, "kafka_consumer", lambda _config, _log: next(made))
    with FrontierTail({"bootstrap.servers": "k:9092"}, "f", 9) as follower:
        assert silence.hear(follower, 2 * SILENCE_S + 0.5) == [], "it had all that there was"
        assert silence.hear(follower, SILENCE_S + 0.5) == [RECORD] * 3
        (said,) = caplog.records
        assert (said.levelname, vars(said)["at"], vars(said)["end"]) == ("WARNING", 9, 12)
        deaf[1].bounds = [(0, 14)]
        with pytest.raises(KafkaUnreachableError, match="did not come") as caught:
            silence.hear(follower, 6 * SILENCE_S)
    assert (caught.value.fields["at"], caught.value.fields["end"]) == (12, 14)
    assert next(made) is deaf[3], "only one took the place of the second"


def test_follower_of_a_topic_that_was_made_anew_is_told_by_another_consumer(
    monkeypatch: pytest.MonkeyPatch, silence: Silence
) -> None:
    gone = Message(9, error=KafkaError.OFFSET_OUT_OF_RANGE)
    made = iter([Consumer([], [(0, 5)]), Consumer([gone], [])])
    monkeypatch.setattr(offsets, "kafka_consumer", lambda _config, _log: next(made))
    with FrontierTail({}, "f", 9) as follower, pytest.raises(HistoryLostError, match="records are gone"):
        silence.hear(follower, 2 * SILENCE_S)


def test_follower_passes_a_marker_behind_which_nothing_is_published(
    play: Any, silence: Silence, markers: set[int]
) -> None:
    consumer = play(Consumer([], [(0, 11), (0, 11)]))
    markers.update((9, 10))
    with FrontierTail({}, "f", 9) as follower:
        assert silence.hear(follower, 3 * SILENCE_S) == [NOBODYS, NOBODYS]
        consumer.messages = [Message(11, encode_frontier(RECORD))]
        assert silence.hear(follower, SILENCE_S) == [RECORD]
    assert consumer.assigned == 1, "no other consumer was asked"


def test_silence_ends_with_a_record_and_a_broker_that_does_not_answer_is_waited_for(
    play: Any, silence: Silence
) -> None:
    consumer = play(Consumer([], [KafkaError._ALL_BROKERS_DOWN, (0, 10), (0, 11), (0, 11)]))
    with FrontierTail({}, "f", 9) as follower:
        assert silence.hear(follower, 2 * SILENCE_S + 0.5) == []
        consumer.messages = [Message(9, encode_frontier(RECORD))]
        assert silence.hear(follower, SILENCE_S) == [RECORD]
        consumer.messages = [Message(10, encode_frontier(RECORD))]
        assert silence.hear(follower, 2 * SILENCE_S) == [RECORD]
    assert consumer.bounds == [(0, 11)]
