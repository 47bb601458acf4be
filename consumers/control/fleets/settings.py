"""What a capture's children are told: where the bus is, and how sorters run."""

from dataclasses import dataclass
from pathlib import Path

from consumers.control.core.changefeeds.state import PATIENCE
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.ids import UpstreamId

BY_HAND = "none"
"""Instead of a Spark master: this capture starts no sorter service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SorterSettings:
    """How the sorter service of a capture is run."""

    master: str = "local[1]"
    """Spark's; ``none``: this capture starts no service. Somebody else runs ``tidebus sorters``, or ``tidebus sorter``
    for a changefeed."""
    driver_memory: str = ""
    """Heap of a service's JVM as Spark writes it; empty: the service's own default."""
    checkpoint_dir: str = ""
    """Hadoop URI of a folder for the streaming queries' checkpoints; empty: in ``data_dir``."""
    conf: tuple[str, ...] = ()
    """Further settings of Spark, each ``key=value``."""
    run_cuts: str = "auto"
    """Who runs the cuts of changefeeds that leave it open: ``auto``, ``driver`` or ``spark``."""
    spark_ui_port: int = 0
    """Of the service's Spark; 0: any that is free; -1: it shows no UI."""
    event_log: str = ""
    """Hadoop URI or path of a folder for Spark's event logs; empty: none are kept."""
    spark_on_demand: bool = False
    """Whether Spark starts with the first cut that needs it; else with the first changefeed."""
    data_dir: Path | None = None
    """For logs, spills and checkpoints; None: a folder that goes with this process."""
    retry_first_s: float = PATIENCE.first_s
    """The first wait after an error; it doubles up to ten minutes. TiCDC's is 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusAddresses:
    """Where the capture's children find the bus."""

    kafka: KafkaAccess
    zookeeper: ZooKeeperAccess
    schema_registry: RegistryAccess
    cluster: str
    upstream: UpstreamId
