"""The settings of ``tidebus capture``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compose.peers import PEER_ADDR
from consumers.control.fleets.settings import SorterSettings
from consumers.control.owner.reign_parts import ReignOptions
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from edges.zookeeper.session import SESSION_TIMEOUT_S
from producers.pull.puller import PullerSettings
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import CLUSTER_DEFAULT
from schemas.tidb.time_zone import UTC_NAME

GRACEFUL_STOP_S: Final = 30.0
"""Kubernetes' own grace period; moving a few hundred tables takes seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """Where the upstream and the bus are, and how this capture runs."""

    pd: str
    kafka: KafkaAccess
    zookeeper: ZooKeeperAccess
    schema_registry: RegistryAccess
    cluster: str = CLUSTER_DEFAULT
    upstream: UpstreamId
    time_zone: str = UTC_NAME
    """Name of the zone in which changefeeds that are created here write TIMESTAMPs."""
    start_ts: Ts | None = None
    """Where an empty raw log begins; None: now, by PD's clock."""
    session_timeout_s: float = SESSION_TIMEOUT_S
    puller: PullerSettings = field(default_factory=PullerSettings)
    reign: ReignOptions = field(default_factory=ReignOptions)
    sorters: SorterSettings = field(default_factory=SorterSettings)
    sorter_kafka: KafkaAccess | None = None
    """How the sorters that it starts get into Kafka; None: as itself."""
    processor_kafka: KafkaAccess | None = None
    addr: str = ""
    """``host:port`` where the HTTP API listens; empty: nowhere."""
    advertise_addr: str = ""
    """The address by which others reach the API; empty: ``addr``."""
    mtls: bool = False
    """The API wants a certificate of every client."""
    credentials: Path | None = None
    """File of users who may ask the API; None: everybody."""
    api_hosts: tuple[str, ...] = ()
    """Further names under which the API is asked."""
    peer_addr: str = PEER_ADDR
    """``host:port`` for the other captures; port 0: any free one."""
    advertise_peer_addr: str = ""
    """The address by which other captures reach this one; empty: ``peer_addr``."""
    cluster_secret_file: Path | None = None
    """What captures prove to each other that they know; None: nothing."""
    graceful_stop_timeout_s: float = GRACEFUL_STOP_S
    """How long a capture that is stopped waits for others to take its spans over."""
