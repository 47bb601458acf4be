"""Where the upstream and the bus are, for the API of a capture."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from edges.kafka.access import KafkaAccess
from edges.zookeeper.access import ZooKeeperAccess
from producers.tls import TlsSettings
from schemas.ids import UpstreamId
from schemas.tidb.time_zone import UTC_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAddresses:
    """Where the upstream and the bus are, and what else the API shows of them."""

    pd: str
    tls: TlsSettings
    kafka: KafkaAccess
    zookeeper: ZooKeeperAccess
    cluster: str
    upstream: UpstreamId
    time_zone: str = UTC_NAME
    """Of changefeeds that are created."""
    tries_sinks: bool = False
    """Whether sinks are connected to before a changefeed is stored: what connects later runs where we do."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """What `GET /config` shows, without secrets."""
