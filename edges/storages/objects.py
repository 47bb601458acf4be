"""Objects of a bucket or a container, whoever keeps them.

An object of some MiB is sent at once, a longer one in parts that show when a last short request says so. Who writes is
asked before each request that lets an object show, also before it is tried again: it may have lost its lease meanwhile.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from schemas.config.sink.storage_uri import StorageUri

PART_BYTES = 8 << 20
"""Of an object that is sent in parts. A shorter one is sent at once. Google wants a multiple of 256 KiB."""
CONNECT_S, ANSWER_S = 10.0, 60.0
CONNECTIONS_KEPT = 64
PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Answers of HTTP after which the same request may be taken a moment later."""
_PAUSES_S = (0.5, 2.0)
Check = Callable[[], None]
Result = TypeVar("Result")


class Objects(Protocol):
    """Keys are whole ones of the bucket. Safe to use from several threads; each client raises errors of its own."""

    @property
    def removed_at_once(self) -> int:
        """So many keys ``remove`` takes in one request."""
        ...

    def put(self, key: str, content: bytes, may_show: Check) -> None:
        """Write an object, there when this returns; one of the same key is replaced in one step.

        Args:
            may_show: called just before it shows; if it raises, it does not.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """Return an object's content, None if it is not there."""
        ...

    def find(self, prefix: str) -> list[str]:
        """Return the keys below a folder; empty: all."""
        ...

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is none."""
        ...


def key_below(storage: StorageUri, path: str) -> str:
    """Return the key of a path below a storage's root.

    >>> from schemas.config.sink.storage_uri import parse_storage_uri
    >>> key_below(parse_storage_uri("gs://bucket/some/prefix"), "a/b"), key_below(parse_storage_uri("gs://bucket"), "a")
    ('some/prefix/a/b', 'a')
    """
    prefix = storage.root.partition("/")[2]
    return f"{prefix}/{path}" if prefix else path


def open_objects(storage: StorageUri) -> Objects:
    """Return the objects of a storage that is no local folder: one client a process for each storage and its settings.

    Raises:
        ImportError: its library is not installed.
        ValueError: settings of it or of the environment cannot be used; the text shows no secret.
        OSError: a file of credentials cannot be read.
    """
    bucket = storage.root.partition("/")[0]
    if storage.protocol == "s3":
        from edges.storages.s3 import S3Objects

        return S3Objects(storage, bucket)
    return _opened(os.getpid(), storage.protocol, bucket, tuple(sorted(storage.options.items())))


@lru_cache(64)
def _opened(_process: int, protocol: str, bucket: str, options: tuple[tuple[str, str], ...]) -> Objects:
    given: Mapping[str, str] = dict(options)
    if protocol == "az":
        from edges.storages.azure import azure_objects

        return azure_objects(bucket, given)
    from edges.storages.google import google_objects

    return google_objects(bucket, given)


def tried(send: Callable[[], Result], is_passing: Callable[[Exception], bool], before: Check | None = None) -> Result:
    """Do what may fail for a moment; each time ``before`` is asked first."""
    for pause_s in (*_PAUSES_S, None):
        if before is not None:
            before()
        try:
            return send()
        except Exception as error:  # each client has errors of its own
            if pause_s is None or not is_passing(error):
                raise
        time.sleep(pause_s)
    raise AssertionError("unreachable")
