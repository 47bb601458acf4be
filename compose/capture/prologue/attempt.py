"""One attempt at a changefeed's prologue: a thread that lands it and publishes its frontier, for the owner to see."""

import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from compose.capture.prologue.tables import prologue_tables
from compose.capture.settings.options import CaptureOptions
from consumers.control.log.frontier_topic import FrontierTopic
from producers.pull.prologue.scan import PrologueSource, PrologueStoppedError, land_prologue
from producers.pull.puller import PullerSettings
from schemas.errors import BusError, UnexpectedError
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.nodes.prologue import Prologue
from schemas.nodes.sorter_service import FeedName
from schemas.rawlog.topics import raw_topics

log = logging.getLogger(__name__)

END_S: Final = 10.0
"""For the end of one that is cut off; what it lands afterwards nobody reads."""


class PrologueAttempt:
    """Begins at once. What came of it counts once :attr:`is_over`."""

    def __init__(
        self,
        name: FeedName,
        info: ChangefeedInfo,
        prologue: Prologue,
        version: int,
        *,
        options: CaptureOptions,
        settings: PullerSettings,
        may_land: Callable[[], bool],
    ) -> None:
        """``version`` is that of the changefeed's node ``prologue`` which says of the attempt that it has begun."""
        self.name, self.info, self.prologue, self.version = name, info, prologue, version
        self.error: BusError | None = None
        """Why nothing came of it."""
        self._options, self._settings, self._may_land = options, settings, may_land
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"prologue {prologue.log}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Cut it off; returns at once."""
        self._stopping.set()

    def close(self) -> None:
        """Cut it off, and wait a little for its end."""
        self.stop()
        self._thread.join(END_S)

    def _run(self) -> None:
        try:
            self._land()
        except BusError as error:
            self.error = error
        except Exception as error:
            log.exception("attempt at a prologue failed")
            self.error = UnexpectedError.of(error)

    def _land(self) -> None:
        options, prologue = self._options, self.prologue
        source = PrologueSource(
            log=prologue.log,
            schema_topic=raw_topics(options.upstream, self._settings.topic_prefix).region_events,
            start_ts=prologue.start_ts,
            end_ts=prologue.end_ts,
            pd_address=options.pd,
            kafka=options.kafka,
            schema_registry=options.schema_registry,
            settings=self._settings,
        )
        records = land_prologue(
            source,
            partial(prologue_tables, self.info, end_ts=prologue.end_ts),
            may_land=self._may_land,
            is_stopped=self._stopping.is_set,
        )
        topic = raw_topics(prologue.log, self._settings.topic_prefix).frontier
        with contextlib.closing(FrontierTopic(options.kafka, topic)) as frontier:
            for record in records:
                if self._stopping.is_set() or not self._may_land():
                    raise PrologueStoppedError("a prologue is cut off; another attempt begins it anew")
                frontier.publish(record)
