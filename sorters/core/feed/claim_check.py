"""Whole messages in a storage, for rows that are too large for Kafka: their names, places and contents.

Sources: PingCAP's docs, and pingcap/ticdc ``pkg/sink/kafka/claimcheck`` for what they leave open. One difference: TiCDC
draws a file's name, we derive it from the record, so that a cut that is repeated writes the same files again.
"""

import hashlib
import uuid
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass

from schemas.config.sink.storage_uri import StorageUri

StoreClaim = Callable[[str, bytes], None]
"""Stores a file, by name and content; when it returns, whoever reads the name finds the content whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCheck:
    """``large-message-handle-option = "claim-check"`` of one changefeed."""

    storage: StorageUri
    """``claim-check-storage-uri``."""
    raw_value: bool
    """A file holds the message's value and nothing else."""
    changefeed: str
    """Namespace and id: several changefeeds may share a storage."""

    def file_name(self, topic: str, position: bytes) -> str:
        """Return the name of a record's file: a UUID, as in TiCDC, made of what tells the record from all others."""
        named = b"\0".join((self.changefeed.encode(), topic.encode(), position))
        return f"{uuid.UUID(bytes=hashlib.sha256(named).digest()[:16], version=5)}.json"

    def location(self, file_name: str) -> str:
        """Return what a message says of where its file is: nothing of how to get in."""
        return f"{self.storage.public}/{file_name}"

    def content(self, key: bytes | None, value: bytes) -> bytes:
        """Return what the file of a message holds."""
        if self.raw_value:
            return value
        shown = b"null" if key is None else b'"%s"' % b64encode(key)
        return b'{"key":%s,"value":"%s"}' % (shown, b64encode(value))
