"""The images part of a frontier record as JSON: keys in hex, changefeeds by their number in ``feeds``.

The format, for readers in other languages: docs/formats/table-images.md §2.
"""

from collections.abc import Iterable
from typing import Any

from schemas.ids import CaptureId, TableId, Ts
from schemas.json_text import read_int, read_text
from schemas.rawlog.images import (
    NO_IMAGES,
    IdRange,
    ImageBarrier,
    ImageChunk,
    ImageFeed,
    ImageScan,
    ImageState,
    KeyRange,
    TableImage,
)

_ID_RANGES = ("initial", "backfill", "resync")


def images_json(state: ImageState) -> dict[str, Any]:
    """Return what stands in the record under ``images``."""
    number = {feed.feed: at for at, feed in enumerate(state.feeds)}

    def numbers(feeds: Iterable[str]) -> list[int]:
        return [number[feed] for feed in feeds]

    return {
        "version": state.version,
        "feeds": [
            {
                "feed": feed.feed,
                **{
                    name: [[item.first, item.last] for item in ids]
                    for name in _ID_RANGES
                    if (ids := getattr(feed, name))
                },
            }
            for feed in state.feeds
        ],
        "tables": [
            {
                "table_id": image.table_id,
                "feeds": numbers(image.feeds),
                "done": [_keys_json(keys) for keys in image.done],
            }
            for image in state.tables
        ],
        "barriers": [
            {
                "ts": barrier.ts,
                "feeds": numbers(barrier.feeds),
                "low": barrier.low,
                "scans": [
                    {
                        "number": scan.number,
                        "capture": scan.capture,
                        "table_id": scan.table_id,
                        "feeds": numbers(scan.feeds),
                        "keys": _keys_json(scan.keys),
                        "bytes_max": scan.bytes_max,
                    }
                    for scan in barrier.scans
                ],
            }
            for barrier in state.barriers
        ],
        "chunks": [
            {
                "ts": chunk.ts,
                "number": chunk.number,
                "attempt": chunk.attempt,
                "table_id": chunk.table_id,
                "feeds": numbers(chunk.feeds),
                "keys": _keys_json(chunk.keys),
                "partition": chunk.partition,
                "offsets": chunk.offsets,
                "rows": chunk.rows,
                "bytes": chunk.bytes,
            }
            for chunk in state.chunks
        ],
        **({"cancelled": state.cancelled} if state.cancelled else {}),
    }


def read_images(raw: dict[str, Any] | None) -> ImageState:
    """Read it; None: the record says nothing of images.

    Raises:
        ValueError, KeyError, TypeError, OverflowError, AttributeError, IndexError: it is not one.
    """
    if raw is None:
        return NO_IMAGES
    names = tuple(read_text(feed["feed"]) for feed in raw["feeds"])

    def feeds(numbers: list[int]) -> tuple[str, ...]:
        return tuple(names[read_int(number, bits=31)] for number in numbers)

    owner_rev, number = raw["version"]
    return ImageState(
        version=(read_int(owner_rev, bits=63), read_int(number, bits=63)),
        feeds=tuple(
            ImageFeed(feed=name, **{key: tuple(map(_ids, feed.get(key, ()))) for key in _ID_RANGES})
            for name, feed in zip(names, raw["feeds"], strict=True)
        ),
        tables=tuple(
            TableImage(table_id=_table(image), feeds=feeds(image["feeds"]), done=tuple(map(_keys, image["done"])))
            for image in raw["tables"]
        ),
        barriers=tuple(
            ImageBarrier(
                ts=Ts(read_int(barrier["ts"])),
                feeds=feeds(barrier["feeds"]),
                scans=tuple(_scan(scan, feeds(scan["feeds"])) for scan in barrier["scans"]),
                low=tuple(read_int(offset, bits=63) for offset in barrier["low"]),
            )
            for barrier in raw["barriers"]
        ),
        chunks=tuple(_chunk(chunk, feeds(chunk["feeds"])) for chunk in raw["chunks"]),
        cancelled=tuple(Ts(read_int(ts)) for ts in raw.get("cancelled", ())),
    )


def _scan(raw: dict[str, Any], feeds: tuple[str, ...]) -> ImageScan:
    return ImageScan(
        number=read_int(raw["number"], bits=31),
        capture=CaptureId(read_text(raw["capture"])),
        table_id=_table(raw),
        feeds=feeds,
        keys=_keys(raw["keys"]),
        bytes_max=read_int(raw["bytes_max"], bits=63),
    )


def _chunk(raw: dict[str, Any], feeds: tuple[str, ...]) -> ImageChunk:
    start, end = (read_int(offset, bits=63) for offset in raw["offsets"])
    return ImageChunk(
        ts=Ts(read_int(raw["ts"])),
        number=read_int(raw["number"], bits=31),
        attempt=read_int(raw["attempt"], bits=31),
        table_id=_table(raw),
        feeds=feeds,
        keys=_keys(raw["keys"]),
        partition=read_int(raw["partition"], bits=31),
        offsets=(start, end),
        rows=read_int(raw["rows"], bits=63),
        bytes=read_int(raw["bytes"], bits=63),
    )


def _table(raw: dict[str, Any]) -> TableId:
    return TableId(read_int(raw["table_id"], bits=63))


def _ids(raw: list[int]) -> IdRange:
    first, last = (TableId(read_int(item, bits=63)) for item in raw)
    return IdRange(first, last)


def _keys_json(keys: KeyRange) -> list[str]:
    return [keys.start.hex(), keys.end.hex()]


def _keys(raw: list[str]) -> KeyRange:
    start, end = (bytes.fromhex(read_text(item)) for item in raw)
    return KeyRange(start, end)
