"""Reads a changefeed's proofs out of their topic, as they stand there, byte for byte."""

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

from edges.kafka.access import KafkaAccess
from edges.kafka.offsets import READ_TIMEOUT_S, TopicReader
from schemas.errors import CorruptDataError
from schemas.flow.proof import decode_proof
from schemas.ids import UpstreamId
from schemas.json_text import read_json
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.topics import raw_topics

ANSWER_S: Final = 5.0
"""For the API: where the topic is not there, the broker is asked again for so long."""


def read_proofs(
    kafka: KafkaAccess,
    upstream: UpstreamId,
    name: tuple[str, str],
    records_max: int | None = None,
    timeout_s: float = READ_TIMEOUT_S,
) -> Iterator[bytes]:
    """Yield the records of a changefeed, by namespace and id, the oldest first.

    Args:
        records_max: of the topic, from its end back; None: all that it holds.

    Raises:
        KafkaUnreachableError: the brokers do not answer, or no sorter has made the topic yet.
    """
    with closing(TopicReader(kafka.config(), raw_topics(upstream).proofs, timeout_s=timeout_s)) as reader:
        low, high = reader.bounds()
        start = low if records_max is None else max(low, high - records_max)
        for _, content in reader.read(start, high):
            try:
                proof = decode_proof(content)
            except CorruptDataError:
                yield content  # whose it is cannot be told: the checker says what is wrong with it
                continue
            if proof.name == name:
                yield content


def newest_proofs(kafka: KafkaAccess, info: ChangefeedInfo, records_max: int) -> list[Mapping[str, Any]]:
    """Return a changefeed's records among the newest of its topic, as JSON has them; those that do not read are left
    out.

    Raises:
        KafkaUnreachableError: see :func:`read_proofs`.
    """
    name, shown = (info.namespace, info.changefeed_id), list[Mapping[str, Any]]()
    for content in read_proofs(kafka, info.upstream, name, records_max, ANSWER_S):
        with suppress(CorruptDataError):
            decode_proof(content)
            shown.append(read_json(content))
    return shown
