"""Publishes what cuts have come to as records of the proofs topic, for all changefeeds of an upstream in this process.

A thread of its own writes: no cut waits for a proof, and a topic that cannot be written stops no changefeed. What
cannot be written yet is joined to what comes, so it takes no more room, and is told when the topic can be written.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from edges.kafka.clients import kafka_admin
from edges.kafka.errors import address_of
from edges.kafka.offsets import TopicReader
from edges.kafka.producer import ordered_producer
from edges.kafka.topics import await_topics, create_topics, partition_counts
from schemas.errors import BusError, CorruptDataError
from schemas.flow.proof import Proof, ProofWindow, decode_proof, follow_up, join_windows
from sorters.core.flow.proof_pace import takes
from sorters.log.failures import KafkaUnreachableError

log = logging.getLogger(__name__)

FeedName = tuple[str, str]
"""Namespace and id of a changefeed."""
LOOK_S: Final = 1.0
"""Between two rounds of publishing: a changefeed has one record a round at most."""
HEAD_RECORDS: Final = 5_000
"""How far back the newest record of a changefeed is looked for; where it is not, its chain begins anew."""
RETENTION_MS: Final = 30 * 24 * 3600 * 1000
ANSWER_S: Final = 10.0
WINDOWS_MAX: Final = 100
"""That wait and do not join: of a changefeed whose runs keep failing while the topic cannot be written."""
WARN_S: Final = 60.0
"""Between two warnings that proofs cannot be written."""


class ProofLog:
    """From any thread. :meth:`close` must be called; it writes what there is still to tell."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL. Nothing is asked of Kafka before the first window comes."""
        self._config, self.topic = config, topic
        self._where = {"topic": topic, "address": address_of(config)}
        self._lock = threading.Lock()
        self._waiting: dict[FeedName, list[ProofWindow]] = {}
        """Windows that join are one; several are of runs that did not follow one another."""
        self._heads: dict[FeedName, Proof | None] = {}
        """Of chains whose newest record is known."""
        self._published: dict[FeedName, float] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._producer: Any = None
        self._warned_at = -WARN_S

    def begin(self, name: FeedName) -> None:
        """A run of a changefeed begins: another process may have told of it meanwhile."""
        with self._lock:
            self._heads.pop(name, None)

    def note(self, name: FeedName, window: ProofWindow) -> None:
        """Take what a cut has come to; it stands in a record some time later."""
        with self._lock:
            self._waiting[name] = _joined([*self._waiting.get(name, ()), window])
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._serve, name="proof-log", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write what waits, if Kafka takes it, and end."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(2 * ANSWER_S)

    def _serve(self) -> None:
        while True:
            is_last = self._closing.wait(LOOK_S)
            try:
                self._publish(is_last=is_last)
            except (BusError, KafkaException) as error:
                if time.monotonic() >= self._warned_at + WARN_S:
                    self._warned_at = time.monotonic()
                    log.warning("proofs are not written yet", extra={"topic": self.topic, "reason": str(error)})
                self._producer = None
            if is_last:
                return

    def _publish(self, *, is_last: bool) -> None:
        """Write a record for each changefeed whose turn it is.

        Raises:
            BusError, KafkaException: some are not written; they wait on.
        """
        now_s = time.monotonic()
        with self._lock:
            due = {
                name: windows
                for name, windows in self._waiting.items()
                if is_last or len(windows) > 1 or takes(windows[0], now_s - self._published.get(name, -WARN_S))
            }
            for name in due:
                del self._waiting[name]
        written: dict[FeedName, int] = dict.fromkeys(due, 0)
        try:
            if due:
                self._write(due, written)
        finally:
            with self._lock:
                for name, windows in due.items():
                    self._published[name] = now_s
                    if left := [*windows[written[name] :], *self._waiting.get(name, ())]:
                        self._waiting[name] = _joined(left)

    def _write(self, due: Mapping[FeedName, list[ProofWindow]], written: dict[FeedName, int]) -> None:
        """Write records, and count in ``written`` how many of each are acknowledged, which are its first ones."""
        if self._producer is None:
            self._ensure_topic()
            self._producer = ordered_producer({**self._config, "compression.type": "zstd", "linger.ms": 5})
        self._learn_heads(due.keys())
        failed = list[KafkaError]()
        heads = dict[FeedName, Proof]()
        for name, window in ((name, window) for name, windows in due.items() for window in windows):
            content, heads[name] = follow_up(heads.get(name) or self._heads.get(name), name, window)

            def acknowledged(error: KafkaError | None, _: object, name: FeedName = name) -> None:
                if error is None:
                    written[name] += 1
                else:
                    failed.append(error)

            self._producer.produce(self.topic, content, "/".join(name).encode(), 0, acknowledged)
        if self._producer.flush(ANSWER_S) or failed:
            # Whether what was not acknowledged stands there is asked of the topic.
            self._producer.purge()
            self._producer.poll(0)
            for name in due:
                self._heads.pop(name, None)
            raise KafkaUnreachableError(
                "kafka did not take proofs", **self._where, reason=failed[0] if failed else "no answer in time"
            )
        self._heads |= heads

    def _learn_heads(self, names: Iterable[FeedName]) -> None:
        unknown = {name for name in names if name not in self._heads}
        if not unknown:
            return
        seen = dict.fromkeys(unknown)
        reader = TopicReader(self._config, self.topic, timeout_s=ANSWER_S)
        try:
            low, high = reader.bounds()
            for offset, content in reader.read(max(low, high - HEAD_RECORDS), high):
                try:
                    proof = decode_proof(content)
                except CorruptDataError as error:
                    log.warning("a record of proofs is passed over", extra={"offset": offset, "reason": str(error)})
                    continue
                if proof.name in seen:
                    seen[proof.name] = proof
        finally:
            reader.close()
        self._heads |= seen

    def _ensure_topic(self) -> None:
        admin = kafka_admin(self._config)
        if self.topic in partition_counts(admin.list_topics(timeout=ANSWER_S)):
            return
        settings = {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}
        for error in create_topics(admin, {self.topic: (1, settings)}, -1).values():
            raise error
        _, absent = await_topics(admin, [self.topic], ANSWER_S)
        if absent:
            raise KafkaUnreachableError("proofs topic does not appear after its creation", **self._where)


def _joined(windows: list[ProofWindow]) -> list[ProofWindow]:
    """Join neighbours that follow one another."""
    joined = list[ProofWindow]()
    for window in windows[-WINDOWS_MAX:]:
        if joined and joined[-1].upto_ts == window.after_ts:
            joined[-1] = join_windows(joined[-1], window)
        else:
            joined.append(window)
    return joined
