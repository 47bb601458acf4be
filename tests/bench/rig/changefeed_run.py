"""A changefeed run by the sorter's own code in the bench's process."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compose.stack.local import Addresses
from edges.registry.access import RegistryAccess
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.topics import raw_topics
from sorters.cut.leave import GIVEN
from sorters.run.epochs import CutProgress
from sorters.run.feed_run import FeedRun
from sorters.run.run_inputs import RunInputs
from tests.support.rawlog.raw_log import START_TS

SINK_PARTITIONS = 6
TIMEOUT_S = 900.0
BY_KEY = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}]}}


class ChangefeedRun:
    """One changefeed from START_TS on; :meth:`close` must be called."""

    def __init__(
        self,
        spark: Any,
        addresses: Addresses,
        *,
        upstream: str,
        data_dir: Path,
        name: str,
        protocol: str,
        config: Mapping[str, Any] = BY_KEY,
        more: str = "",
        target_ts: int | None = None,
    ) -> None:
        """``more`` goes to the end of the sink URI."""
        self.topic = f"sorted-{name}"
        uri = f"kafka://{addresses.kafka}/{self.topic}?protocol={protocol}&partition-num={SINK_PARTITIONS}{more}"
        if protocol in ("avro", "canal-json"):
            uri += "&enable-tidb-extension=true"
        if protocol == "avro":
            uri += f"&schema-registry={addresses.schema_registry}"
        info = ChangefeedInfo(
            changefeed_id=name,
            upstream=UpstreamId(upstream),
            sink_uri=uri,
            config=dict(config),
            start_ts=START_TS,
            target_ts=None if target_ts is None else Ts(target_ts),
        )
        self.done_ts, self.rows, self.cuts = START_TS, 0, list[CutProgress]()
        self.done_at = list[float]()
        """When each cut was acknowledged, by ``time.monotonic``."""
        self.run = FeedRun(
            lambda: spark,
            RunInputs(
                kafka=addresses.kafka_access,
                raw_topics=raw_topics(info.upstream),
                schema_registry=RegistryAccess(),
                info=info,
                config=load_changefeed(uri, info.config),
            ),
            data_dir=data_dir,
            checkpoint_ts=START_TS,
            ask=lambda: GIVEN,
            on_progress=self._on_progress,
        )

    def _on_progress(self, progress: CutProgress) -> None:
        self.rows += progress.rows
        self.cuts.append(progress)
        self.done_at.append(time.monotonic())
        self.done_ts = progress.checkpoint_ts

    def wait(self, ts: int, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the checkpoint is at ``ts``."""
        deadline = time.monotonic() + timeout_s
        while self.done_ts < ts:
            failure = self.run.failure()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"the sorter did not get there: {Ts(ts) - self.done_ts} are missing")
            time.sleep(0.01)

    def close(self) -> None:
        """Stop the query."""
        self.run.close()
