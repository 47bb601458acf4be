"""What a plain consumer makes of topics that hold rows of table images among changes."""

import contextlib

from compose.local.bus import LocalBus
from consumers.control.log.frontier_topic import FrontierTopic
from edges.kafka.access import KafkaAccess
from edges.zookeeper.session import Session
from schemas.rawlog.images import image_feed
from schemas.rawlog.topics import raw_topics
from schemas.sink.position import Position, PositionClass, decode_position
from tests.support.bus import topic_records, wait_until
from tests.support.messages import Message, decode_canal_json
from tests.support.upstream_rows import Rows


def wait_whole(bus: LocalBus, changefeed_id: str, timeout_s: float) -> None:
    """Wait until a published record says that a changefeed waits for no image any more."""
    wait_until(lambda: is_whole(bus, changefeed_id), timeout_s, f"images of {changefeed_id} are whole", bus)


def is_whole(bus: LocalBus, changefeed_id: str) -> bool:
    """Tell whether a published record says that a changefeed waits for no image."""
    with Session(bus.addresses.zookeeper_access) as session:
        info = session.client.exists(bus.zk_paths.changefeed_info("default", changefeed_id))
    feed = image_feed("default", changefeed_id, int(info.czxid))
    with contextlib.closing(FrontierTopic(bus.addresses.kafka_access, raw_topics(bus.options.upstream).frontier)) as at:
        record = at.newest()
    registered = None if record is None else record.images.feed(feed)
    return registered is not None and not registered.waits


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
