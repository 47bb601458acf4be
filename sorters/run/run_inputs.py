"""What a run of a changefeed is made from."""

from collections.abc import Callable
from dataclasses import dataclass, field

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from schemas.config.settings import ChangefeedConfig
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.topics import RawTopics
from schemas.sink.fence import NO_FENCE
from sorters.cut.feed_share import FeedShare, WholeProcess
from sorters.run.cut_job import RunBy
from sorters.run.sources import RunSources
from sorters.run.topic_growth import CountStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """The changefeed, where its rows are read, and what else the run asks or tells."""

    info: ChangefeedInfo
    config: ChangefeedConfig
    kafka: KafkaAccess
    """Of the bus's own Kafka, which holds the raw log."""
    raw_topics: RawTopics
    schema_registry: RegistryAccess
    """The bus's own, for a changefeed that names none; it knows how those are reached that changefeeds name."""
    sources: RunSources | None = None
    """What the raw log is read by, and closed with the run; where that cannot be made, by who has got them
    (:func:`sorters.run.sources.handed_on`). None: clients of its own."""
    counts: CountStore | None = None
    """What sorters of this changefeed used of sink topics; None: nothing is known of them."""
    run_by: RunBy = RunBy()
    """What the process says of who runs cuts."""
    share: FeedShare = field(default_factory=WholeProcess)
    """Is told what the run takes of the process."""
    image_name: str = ""
    """What frontier records call the changefeed where they say of table images
    (:func:`schemas.rawlog.images.image_feed`); '': it goes by none."""
    next_fence: Callable[[], bytes] = lambda: NO_FENCE
    """Gives each attempt to write to the changefeed's own topic its fence (:mod:`schemas.sink.fence`)."""
