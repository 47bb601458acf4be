"""The topic of states: what tables hold by their state proofs, written before the checkpoint that it belongs to.

One for all changefeeds of an upstream in a process. The topic is compacted; a run begins by reading it.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError

from edges.kafka.clients import kafka_admin
from edges.kafka.compacted import compacted_records
from edges.kafka.errors import address_of
from edges.kafka.producer import ordered_producer
from edges.kafka.topics import await_topics, create_topics, partition_counts
from schemas.errors import decoding
from schemas.ids import TableId
from schemas.state_proof.carried import CarriedState, StateRecord, decode_state, encode_state, feed_key, state_key
from sorters.log.failures import KafkaUnreachableError

log = logging.getLogger(__name__)
ANSWER_S: Final = 10.0
COMPACTION_LAG_MS: Final = 10 * 60 * 1000
"""How long every state of a table stands there: `tidebus verify` looks for the one of a ts."""
_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
    "segment.ms": str(COMPACTION_LAG_MS),
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


class StateLog:
    """From any thread. :meth:`close` must be called. Nothing is asked of Kafka before the first call."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
        """``config`` is librdkafka's: servers, TLS, SASL."""
        self._config, self.topic = config, topic
        self._where = {"topic": topic, "address": address_of(config)}
        self._lock = threading.Lock()
        self._producer: Any = None

    def read(self, name: tuple[str, str], life: str) -> tuple[dict[TableId, CarriedState], list[bytes]]:
        """Return what runs of a life of a changefeed have told last of its tables, and the keys of all of its records.

        Raises:
            KafkaUnreachableError: the topic cannot be made or read.
            CorruptDataError: one of its records is none: what it said is not known then.
        """
        self._ensure_topic()
        states = dict[TableId, CarriedState]()
        newest: dict[bytes, StateRecord] = {}
        for offset, key, content in compacted_records(self._config, self.topic, ANSWER_S):
            if not key.startswith(feed_key(name)):
                continue
            if not content:
                newest.pop(key, None)
                continue
            newest.pop(key, None)
            with decoding(topic=self.topic, offset=offset):
                newest[key] = decode_state(content)
        for record in newest.values():
            state = record.state
            known = states.get(state.table_id)
            if record.life == life and (known is None or known.ts <= state.ts):
                states[state.table_id] = state
        return states, list(newest)

    def write(self, records: Iterable[StateRecord], gone: Iterable[bytes] = ()) -> None:
        """Write records, then take those of the keys ``gone`` back; return once all is acknowledged.

        Raises:
            KafkaUnreachableError: it is not, and whether it stands there is not known.
        """
        items: list[tuple[bytes, bytes | None]] = [(state_key(record), encode_state(record)) for record in records]
        items += [(key, None) for key in gone]
        if not items:
            return
        with self._lock:
            if self._producer is None:
                self._producer = ordered_producer({**self._config, "compression.type": "zstd", "linger.ms": 0})
            failed = list[KafkaError]()
            acknowledged = 0

            def answered(error: KafkaError | None, _: object) -> None:
                nonlocal acknowledged
                acknowledged += 1
                if error is not None:
                    failed.append(error)

            for key, content in items:
                self._producer.produce(self.topic, content, key, 0, answered)
                self._producer.poll(0)
            deadline = time.monotonic() + ANSWER_S
            while acknowledged < len(items) and not failed and time.monotonic() < deadline:
                self._producer.poll(0.05)
            if failed or acknowledged < len(items):
                self._producer.purge()
                self._producer.poll(0)
                self._producer = None
                reason = failed[0] if failed else "no answer in time"
                raise KafkaUnreachableError("kafka did not take states of tables", **self._where, reason=reason)

    def close(self) -> None:
        """Let go of the client."""
        with self._lock:
            self._producer = None

    def _ensure_topic(self) -> None:
        admin = kafka_admin(self._config)
        if self.topic in partition_counts(admin.list_topics(timeout=ANSWER_S)):
            return
        for error in create_topics(admin, {self.topic: (1, dict(_SETTINGS))}, -1).values():
            raise error
        _, absent = await_topics(admin, [self.topic], ANSWER_S)
        if absent:
            raise KafkaUnreachableError("topic of states does not appear after its creation", **self._where)
