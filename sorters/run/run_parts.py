"""What a run of a changefeed is made of: who makes its topics, what stands before each cut, and who runs cuts."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from edges.kafka.producer_meter import WITH_STATISTICS
from schemas.config.client_options import librdkafka_options, librdkafka_producer_options
from schemas.config.settings import ChangefeedConfig
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.fence import NO_FENCE
from schemas.sink.topic import own_topic_config, writes_own_topic
from sorters.core.cut.runner import runner_of
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.cut.record_writer import NOWHERE
from sorters.log.blackhole_topics import BlackholeTopics
from sorters.log.topic_admin import TopicAdmin
from sorters.registry.named import registry_of
from sorters.registry.registry import SchemaRegistry
from sorters.run.cut_job import CutJob
from sorters.run.preparation import Preparation
from sorters.run.run_inputs import RunInputs
from sorters.run.sources import OwnSources, RunSources
from sorters.run.topic_growth import TopicCounter, TopicGrowth
from sorters.spark.session import Session

VERSION: Final = version("tidebus")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """Holds clients; :meth:`close` must be called."""

    sources: RunSources
    growth: TopicGrowth
    preparation: Preparation
    job: CutJob
    registry: SchemaRegistry | None

    @classmethod
    def of(cls, spark: Session, inputs: RunInputs) -> "RunParts":
        """Return the parts, which ask ``spark`` for a session when one is needed.

        Where that fails, what was made here is closed; sources that were given stay open.
        """
        info, config = inputs.info, inputs.config
        # Texts of certificates instead of names of files: tasks of other machines get it, too.
        raw_config = inputs.kafka.with_texts().config()
        own = raw_config if writes_own_topic(config) else {}
        with ExitStack() as made:
            sources = inputs.sources
            if sources is None:
                sources = OwnSources(raw_config, inputs.raw_topics)
                made.callback(sources.close)
            growth = TopicGrowth(_topics_of(config, own), None if own or config.uri.is_blackhole else inputs.counts)
            registry = registry_of(config, inputs.schema_registry)
            if registry is not None:
                made.callback(registry.close)
            preparation = Preparation(
                spark,
                _compiled(config, info, inputs.image_name, flow_written=bool(own)),
                sources.schemas,
                growth,
                registry,
                start_ts=info.start_ts,
                target_ts=info.target_ts,
                growth=growth,
            )
            job = CutJob(
                spark,
                sources.raw_reader,
                topics=inputs.raw_topics,
                raw_config=raw_config,
                sink_config=(
                    NOWHERE if config.uri.is_blackhole else {**_producer_options(config), **(own or WITH_STATISTICS)}
                ),
                run_by=replace(inputs.run_by, by_changefeed=runner_of(config.sorter.run_cuts)),
                name=f"{info.namespace}/{info.changefeed_id}",
                share=inputs.share,
                record_bytes=sources.record_bytes,
                next_fence=inputs.next_fence if own else lambda: NO_FENCE,
            )
            made.pop_all()  # the parts close them from here on
        return cls(sources=sources, growth=growth, preparation=preparation, job=job, registry=registry)

    def close(self) -> None:
        self.job.close()
        self.preparation.close()
        self.sources.close()
        if self.registry is not None:
            self.registry.close()


def _compiled(config: ChangefeedConfig, info: ChangefeedInfo, image_name: str, *, flow_written: bool) -> CompiledFeed:
    """Return the changefeed compiled; ``flow_written``: its rows go to the changefeed's own topic, with flow proofs."""
    feed = compile_feed(config, info.namespace, changefeed_id=info.changefeed_id)
    feed = feed if image_name else replace(feed, initial=None)
    # Sorters of one epoch and release make the same rows; nobody changes a changefeed within an epoch.
    return replace(feed, flow_writer=f"{info.epoch}-{VERSION}") if flow_written else feed


def _topics_of(config: ChangefeedConfig, own: Mapping[str, object]) -> TopicCounter:
    """Return who knows the sink's topics; ``own``: how the bus's own Kafka is reached, where they stand there."""
    if config.uri.is_blackhole:
        return BlackholeTopics(config)
    return TopicAdmin(
        {**librdkafka_options(config), **own},
        partitions=config.kafka.partition_num,
        replication=config.kafka.replication_factor,
        auto_create=config.kafka.auto_create_topic,
        acks_all=config.kafka.required_acks == -1,
        topic_config=own_topic_config(config),
    )


def _producer_options(config: ChangefeedConfig) -> Mapping[str, object]:
    return librdkafka_producer_options(config, lambda file: Path(file).read_text())
