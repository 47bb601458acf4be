"""What a plain consumer makes of topics that hold rows of table images among changes."""

import contextlib
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from compose.local.bus import LocalBus
from consumers.client import ChangeStream
from consumers.client.errors import ProofLostError
from consumers.client.materialised import MaterialisedTable
from consumers.control.log.frontier_topic import FrontierTopic
from edges.kafka.access import KafkaAccess
from edges.zookeeper.session import Session
from producers.region_server.server import RegionServer
from schemas.ids import TableId
from schemas.rawlog.images import NO_IMAGES, ImageChunk, ImageState, TableImage, image_feed
from schemas.rawlog.topics import raw_topics
from schemas.sink.position import Position, PositionClass, decode_position
from schemas.state_proof.row_text import TableProof
from tests.support.database.state_tables import hashed
from tests.support.processes.bus import topic_records, wait_until
from tests.support.topics.messages import Message, decode_canal_json
from tests.support.upstream.upstream_rows import Rows, upstream_at


def wait_whole(bus: LocalBus, changefeed_id: str, timeout_s: float) -> None:
    """Wait until a published record says that a changefeed waits for no image any more."""
    wait_until(lambda: is_whole(bus, changefeed_id), timeout_s, f"images of {changefeed_id} are whole", bus)


def is_whole(bus: LocalBus, changefeed_id: str) -> bool:
    """Tell whether a published record says that a changefeed waits for no image."""
    feed, images = _images(bus, changefeed_id)
    registered = images.feed(feed)
    return registered is not None and not registered.waits


def has_begun(bus: LocalBus, changefeed_id: str) -> bool:
    """Tell whether a part of a changefeed's images has landed, as a published record says."""
    feed, images = _images(bus, changefeed_id)
    landed: list[ImageChunk | TableImage] = [*images.chunks, *(table for table in images.tables if table.done)]
    return any(feed in each.feeds for each in landed)


def _images(bus: LocalBus, changefeed_id: str) -> tuple[str, ImageState]:
    """Return what frontier records call a changefeed, and what the newest one says of images."""
    with Session(bus.addresses.zookeeper_access) as session:
        _, info = session.client.get(bus.zk_paths.changefeed_info("default", changefeed_id))
    with contextlib.closing(FrontierTopic(bus.addresses.kafka_access, raw_topics(bus.options.upstream).frontier)) as at:
        record = at.newest()
    return image_feed("default", changefeed_id, int(info.czxid)), NO_IMAGES if record is None else record.images


def materialised(kafka: KafkaAccess, prefix: str, upto_ts: int) -> tuple[Rows, set[int]]:
    """Return what a consumer of a changefeed's topics has at a watermark, and the ts of image rows in them."""
    newest: dict[tuple[str, int], tuple[Position, Message]] = {}
    image_ts: set[int] = set()
    for record in topic_records(kafka, prefix):
        assert record.position is not None
        position = decode_position(record.position)
        if position.position_class is not PositionClass.ROW or position.commit_ts > upto_ts:
            continue
        if position.commit_ts == position.start_ts:
            image_ts.add(position.commit_ts)
        message = decode_canal_json(record)
        assert message.columns is not None
        key = message.name, int(message.columns["id"])
        known = newest.get(key)
        if known is None or (position.commit_ts, position.start_ts) >= (known[0].commit_ts, known[0].start_ts):
            newest[key] = position, message
    rows: Rows = {}
    for (name, number), (_, message) in newest.items():
        table = rows.setdefault(name, {})
        if message.op != "delete":
            assert message.columns is not None
            table[number] = int(message.columns["k"]), message.columns["c"], message.columns["pad"]
    return rows, image_ts


@dataclass
class ImagedTopics:
    """Tables of sysbench's shape that the client library makes of a changefeed's topics, beside the source's."""

    kafka: KafkaAccess
    pattern: str
    """Of the topics."""
    tables: Mapping[tuple[str, str], TableId]
    looked_partial: int = 0
    """Watermarks at which an image was under way and the proof was refused for that."""

    def hold_against(self, server: RegionServer, looks: Sequence[int]) -> None:
        """Compare rows and proofs with the store's at the first watermarks at or above ``looks``."""
        made = {name: MaterialisedTable(*name) for name in self.tables}
        settings, left = dict(self.kafka.config()), list(looks)
        with ChangeStream(settings["bootstrap.servers"], [self.pattern], group="imaged", kafka=settings) as stream:
            while left:
                batch = stream.poll(1.0)
                if batch is None:
                    continue
                for table in made.values():
                    table.apply(batch)
                    if not table.is_whole and table.rows:
                        self.looked_partial += 1
                        with pytest.raises(ProofLostError, match="its image is under way"):
                            table.proof()
                if batch.watermark_ts >= left[0]:
                    self._compare(made, server, batch.watermark_ts)
                    left = [ts for ts in left if ts > batch.watermark_ts]

    def _compare(self, made: Mapping[tuple[str, str], MaterialisedTable], server: RegionServer, ts: int) -> None:
        names = {table_id: name for (_, name), table_id in self.tables.items()}
        source = server.act(lambda store: upstream_at(store, names, ts))
        for (schema, name), table in made.items():
            assert source[name], f"nothing in {schema}.{name} at {ts}"
            held = {row["id"]: (row["k"], row["c"], row["pad"]) for row in table.rows.values()}
            assert held == source[name], f"{schema}.{name} at {ts}"
            assert table.proof() == _proof(source[name]), f"{schema}.{name} at {ts}"


def _proof(rows: Mapping[int, tuple[Any, ...]]) -> TableProof:
    """Return what docs/formats/state-proofs.md makes of a table."""
    hashes = (hashed(tuple(str(cell).encode() for cell in (number, *row))) for number, row in rows.items())
    return TableProof(len(rows), functools.reduce(operator.xor, hashes, 0))
