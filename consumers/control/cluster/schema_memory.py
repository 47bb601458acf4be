"""The id of the raw log's schema as it was told last, for captures that start while no registry answers."""

import hashlib
import json

from kazoo.exceptions import NoNodeError

from edges.zookeeper.nodes import put_node
from edges.zookeeper.session import Session
from schemas.ids import UpstreamId
from schemas.json_text import read_json
from schemas.nodes.changefeed import ZkPaths
from schemas.rawlog.region_batch import REGION_BATCH_SCHEMA_TEXT


class SchemaMemoryNode:
    """One upstream's; of another registry, or of another version's schema, nothing is remembered."""

    def __init__(self, session: Session, paths: ZkPaths, upstream: UpstreamId, registry_url: str) -> None:
        """``registry_url`` has no user in it."""
        self._session, self._path = session, paths.raw_schema(upstream)
        self._of = {
            "registry": registry_url,
            "schema_sha256": hashlib.sha256(REGION_BATCH_SCHEMA_TEXT.encode()).hexdigest(),
        }

    def read(self) -> int | None:
        """Return the id; None: none is remembered.

        Raises:
            BusError: ZooKeeper failed.
        """
        with self._session.requests("reading the id of the raw log's schema") as client:
            try:
                node = client.get(self._path)[0]
            except NoNodeError:
                return None
        try:
            value = read_json(node)
        except ValueError:
            return None
        if not isinstance(value, dict) or {**value, **self._of} != value:
            return None
        schema_id = value.get("id")
        return schema_id if type(schema_id) is int and 0 < schema_id < 1 << 31 else None

    def write(self, schema_id: int) -> None:
        """Remember an id.

        Raises:
            BusError: ZooKeeper failed.
        """
        if self.read() == schema_id:
            return
        value = json.dumps({**self._of, "id": schema_id}).encode()
        with self._session.requests("writing the id of the raw log's schema") as client:
            put_node(client, self._path, value, with_folders=True)
