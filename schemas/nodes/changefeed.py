"""A changefeed as ZooKeeper keeps it, and where: ``/tidebus/{cluster}/…`` (docs/formats/zookeeper.md).

``info`` is written by the API or CLI; ``status`` by the changefeed's sorter, which says how far it is and what it has
failed with, and by the owner, which says what state follows from that. Who goes to rest gets a new epoch, in ``info``:
what a sorter says under an older one is not heard. Both nodes are JSON, changed by compare-and-set.
"""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from schemas.errors import CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.json_text import read_int, read_json, read_text
from schemas.nodes.creation_zone import noted_zone
from schemas.nodes.failures import ChangefeedError as ChangefeedError
from schemas.nodes.failures import SorterFailure as SorterFailure
from schemas.nodes.failures import error_keys, read_error, read_failure

ChangefeedState = Literal["normal", "warning", "pending", "failed", "stopped", "finished", "removed"]
_STATES: Final[frozenset[ChangefeedState]] = frozenset(get_args(ChangefeedState))
RUNNING: Final[frozenset[ChangefeedState]] = frozenset({"normal", "warning"})
"""States in which a sorter runs."""
CLUSTER_DEFAULT = "default"
NAMESPACE_DEFAULT = "default"
ID_PATTERN: Final = re.compile(r"[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*")
"""TiCDC's rule for ids of clusters, namespaces and changefeeds (docs/formats/cluster.md §1). They become parts of paths
and words of commands."""
ID_CHARS_MAX: Final = 128
SOURCE_ID_DEFAULT: Final = 1
"""Of a TiDB cluster whose operator has set none."""
_TS_BITS: Final = 63
SET_EPOCH_UNKNOWN: Final = 2**63 - 1
"""Of a status that a version which keeps no ``set_epoch`` has written last, and may have set back: above the epoch of
every entry of a service, so that none counts beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedInfo:
    """What the user asked for. ``config`` is the changefeed file's content as parsed TOML, checked at creation.

    ``sink_uri`` and ``config`` may hold passwords and stay out of the repr; ``mask_uri`` makes a URI fit to be shown.
    """

    changefeed_id: str
    namespace: str = NAMESPACE_DEFAULT
    upstream: UpstreamId
    sink_uri: str = field(repr=False)
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    start_ts: Ts
    target_ts: Ts | None = None
    desired_state: ChangefeedState = "normal"
    epoch: int = 0
    """Grows whenever the changefeed is stopped (``consumers.control.core.changefeeds.state``)."""
    create_time: str = ""
    """RFC 3339, with the zone in brackets (RFC 9557) where it is not UTC; empty: the creator did not note it.

    The release before keeps this text when it rewrites the node, and drops ``time_zone``, which it does not know.
    """
    creator_version: str = ""
    time_zone: str = "UTC"
    """Name of the zone that TIMESTAMPs are written in, as the capture had it that created the changefeed; UTC where a
    version has created it that knew no other."""
    safe_until_ts: Ts = Ts(0)
    """A database may have rows up to this ts already: those come as in safe mode. PD's clock when a user set the start
    or the checkpoint by hand; 0: nobody has. The release before drops it when it rewrites the node."""
    source_id: int = SOURCE_ID_DEFAULT
    """The upstream's ``tidb_source_id`` as PD had it when the changefeed was created or last resumed: what rows at a
    TiDB are marked with, so that the way back leaves them out. The release before drops it likewise."""
    life_epoch: int = 0
    """The epoch when a user set the checkpoint to a ts at which a life of the changefeed had begun before: tells this
    one from that. 0: its start_ts does."""
    former_starts: tuple[Ts, ...] = ()
    """Where lives before this one have begun that no ``life_epoch`` tells apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedStatus:
    """How far it is. ``checkpoint_ts`` never goes back, but when a user resumes from another."""

    state: ChangefeedState
    checkpoint_ts: Ts
    resolved_ts: Ts
    error: ChangefeedError | None = None
    rows_total: int = 0
    """Row messages written since this sorter process started."""
    corrupt_rows_total: int = 0
    """Rows among them that do not fit their checksum, where the changefeed verifies it and goes on."""
    damaged_records_total: int = 0
    """Damaged records of the raw log that were passed over: of tables that are not the changefeed's, or by name."""
    states_proven: int = 0
    """Physical tables whose state proof is carried."""
    states_unproven: int = 0
    """Those that were to have one and have none, or an image under way."""
    batch_rows: int = 0
    batch_s: float = 0.0
    last_synced_ts: Ts = Ts(0)
    """Checkpoint of the last batch that held rows: no row that was written is younger."""
    failure: SorterFailure | None = None
    """Until the owner has judged it."""
    sorter_deaths: int = 0
    """How often a sorter has ended without a word (killed, out of memory, a JVM's crash) since the changefeed was
    created or resumed."""
    dml_errors: int = 0
    """How often rows that could not be written have ended a run since the changefeed was created."""
    ddl_errors: int = 0
    """How often a DDL has, likewise."""
    spark_rows_total: int = 0
    """Rows of ``rows_total`` that Spark's tasks wrote; the sorter's driver wrote the others."""
    windows_proven: int = 0
    """Windows of flow proofs that came out even: of a sorter its cuts, where processors apply theirs."""
    windows_unproven: int = 0
    """Windows of which a processor did not see all."""
    set_epoch: int = 0
    """The changefeed's epoch when a user set its checkpoint last: what was said under an older one says nothing of how
    far it is. 0: nobody has; :data:`SET_EPOCH_UNKNOWN`: the node does not say."""
    created_zxid: int = field(default=0, compare=False)
    """Of the ``info`` node of the changefeed that it is of. 0: the node does not say, as where a version has written it
    last that did not know."""


def status_of(status: ChangefeedStatus | None, created_zxid: int) -> ChangefeedStatus | None:
    """Return what a status node says of the changefeed whose ``info`` node was created so; None: nothing.

    Who still writes for a changefeed that was removed does not see that there is another of its name by now: versions
    of both nodes begin at 0 again.
    """
    return None if status is not None and status.created_zxid not in (0, created_zxid) else status


def state_of(info: ChangefeedInfo, status: ChangefeedStatus | None) -> ChangefeedState:
    """Return the changefeed's state from its two nodes: what the user wants goes before what the owner has found."""
    if info.desired_state != "normal":
        return info.desired_state
    # An owner that still says so has not seen yet that it may go on.
    return "normal" if status is None or status.state == "stopped" else status.state


def wants_sorter(info: ChangefeedInfo, status: ChangefeedStatus | None) -> bool:
    """Tell whether a sorter should run now: not before the owner has judged what the last one failed with."""
    unjudged = status is not None and status.failure is not None and status.failure.epoch == info.epoch
    return state_of(info, status) in RUNNING and not unjudged


@dataclass(frozen=True, slots=True)
class ZkPaths:
    """Paths under one cluster's root."""

    cluster: str = CLUSTER_DEFAULT

    @property
    def root(self) -> str:
        return f"/tidebus/{self.cluster}"

    @property
    def captures(self) -> str:
        return f"{self.root}/captures"

    @property
    def election(self) -> str:
        return f"{self.root}/election"

    @property
    def owner_rev(self) -> str:
        return f"{self.root}/owner-rev"

    def upstream(self, upstream: UpstreamId) -> str:
        return f"{self.root}/upstreams/{upstream}"

    def raw_schema(self, upstream: UpstreamId) -> str:
        """The id of the raw log's schema, as the registry has told it."""
        return f"{self.root}/raw-schemas/{upstream}"

    @property
    def changefeeds(self) -> str:
        return f"{self.root}/changefeeds"

    def changefeed_info(self, namespace: str, changefeed_id: str) -> str:
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/info"

    def changefeed_status(self, namespace: str, changefeed_id: str) -> str:
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/status"

    def changefeed_begun(self, namespace: str, changefeed_id: str) -> str:
        """What the changefeed's sorter has begun last, for the next one, on whatever machine."""
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/begun"

    def changefeed_partitions(self, namespace: str, changefeed_id: str) -> str:
        """Below it, what the changefeed's sorter uses of its sink topics."""
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/partitions"

    def changefeed_sorter(self, namespace: str, changefeed_id: str) -> str:
        """Ephemeral: held by the one sorter that may write."""
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/sorter"

    def changefeed_processor(self, namespace: str, changefeed_id: str) -> str:
        """Ephemeral: held by the one processor that leads, which runs DDL and says who applies which partition."""
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/processor"

    def changefeed_processors(self, namespace: str, changefeed_id: str) -> str:
        """Who applies which partition, as the leader says; below it an ephemeral node for each processor."""
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/processors"

    def changefeed_applied(self, namespace: str, changefeed_id: str) -> str:
        """What processors have written to the destination."""
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/applied"

    def changefeed_images(self, namespace: str, changefeed_id: str) -> str:
        """Table images that a user has asked for and the owner has not begun yet."""
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/images"

    def changefeed_prologue(self, namespace: str, changefeed_id: str) -> str:
        """The raw log of a changefeed that starts before its upstream's began."""
        return f"{self.changefeeds}/{namespace}/{changefeed_id}/prologue"


def encode_changefeed_info(info: ChangefeedInfo) -> bytes:
    """Return the node's bytes."""
    return json.dumps(
        {
            "changefeed_id": info.changefeed_id,
            "namespace": info.namespace,
            "upstream": info.upstream,
            "sink_uri": info.sink_uri,
            "config": info.config,
            "start_ts": info.start_ts,
            "target_ts": info.target_ts,
            "desired_state": info.desired_state,
            "epoch": info.epoch,
            "create_time": info.create_time,
            "creator_version": info.creator_version,
            "time_zone": info.time_zone,
            **({"safe_until_ts": info.safe_until_ts} if info.safe_until_ts else {}),
            **({"source_id": info.source_id} if info.source_id != SOURCE_ID_DEFAULT else {}),
            **({"life_epoch": info.life_epoch} if info.life_epoch else {}),
            **({"former_starts": info.former_starts} if info.former_starts else {}),
        }
    ).encode()


def is_id(text: str) -> bool:
    """Tell whether a text may be the id of a changefeed or the name of a namespace.

    >>> [is_id(text) for text in ("orders-2", "..", "-rf", "a/b", "a\\n")]
    [True, False, False, False, False]
    """
    return len(text) <= ID_CHARS_MAX and ID_PATTERN.fullmatch(text) is not None


def decode_changefeed_info(node: bytes) -> ChangefeedInfo:
    """Read an ``info`` node.

    Raises:
        CorruptDataError: not JSON, a field is missing, or what is in it cannot be.
    """
    try:
        raw = read_json(node)
        return ChangefeedInfo(
            changefeed_id=_id(raw["changefeed_id"]),
            namespace=_id(raw["namespace"]),
            upstream=UpstreamId(read_text(raw["upstream"])),
            sink_uri=read_text(raw["sink_uri"]),
            config=_object(raw["config"]),
            start_ts=_ts(raw["start_ts"]),
            target_ts=None if raw["target_ts"] is None else _ts(raw["target_ts"]),
            desired_state=_state(raw["desired_state"]),
            # Absent from nodes of earlier versions.
            epoch=read_int(raw.get("epoch", 0), bits=_TS_BITS),
            create_time=read_text(raw.get("create_time", "")),
            creator_version=read_text(raw.get("creator_version", "")),
            time_zone=read_text(raw.get("time_zone", noted_zone(read_text(raw.get("create_time", ""))))),
            safe_until_ts=_ts(raw.get("safe_until_ts", 0)),
            source_id=_count(raw.get("source_id", SOURCE_ID_DEFAULT)),
            life_epoch=_count(raw.get("life_epoch", 0)),
            former_starts=tuple(_ts(start) for start in raw.get("former_starts", ())),
        )
    except (ValueError, KeyError, TypeError) as error:
        # The node itself stays out of the error: it may hold passwords.
        raise CorruptDataError("changefeed info does not decode", bytes=len(node), reason=repr(error)) from error


def encode_changefeed_status(status: ChangefeedStatus) -> bytes:
    """Return the node's bytes."""
    return json.dumps(
        {
            "state": status.state,
            "checkpoint_ts": status.checkpoint_ts,
            "resolved_ts": status.resolved_ts,
            **error_keys("error", status.error),
            "rows_total": status.rows_total,
            "corrupt_rows_total": status.corrupt_rows_total,
            **({"damaged_records_total": status.damaged_records_total} if status.damaged_records_total else {}),
            **({"states_proven": status.states_proven} if status.states_proven else {}),
            **({"states_unproven": status.states_unproven} if status.states_unproven else {}),
            "batch_rows": status.batch_rows,
            "batch_s": status.batch_s,
            "last_synced_ts": status.last_synced_ts,
            **error_keys("failure", status.failure),
            "sorter_deaths": status.sorter_deaths,
            **({"dml_errors": status.dml_errors} if status.dml_errors else {}),
            **({"ddl_errors": status.ddl_errors} if status.ddl_errors else {}),
            "spark_rows_total": status.spark_rows_total,
            "windows_proven": status.windows_proven,
            "windows_unproven": status.windows_unproven,
            **({} if status.set_epoch == SET_EPOCH_UNKNOWN else {"set_epoch": status.set_epoch}),
            **({"created_zxid": status.created_zxid} if status.created_zxid else {}),
        }
    ).encode()


def decode_changefeed_status(node: bytes) -> ChangefeedStatus:
    """Read a ``status`` node.

    Raises:
        CorruptDataError: not JSON, a field is missing, or what is in it cannot be.
    """
    try:
        raw = read_json(node)
        return ChangefeedStatus(
            state=_state(raw["state"]),
            checkpoint_ts=_ts(raw["checkpoint_ts"]),
            resolved_ts=_ts(raw["resolved_ts"]),
            error=read_error(raw),
            rows_total=_count(raw["rows_total"]),
            corrupt_rows_total=_count(raw.get("corrupt_rows_total", 0)),
            damaged_records_total=_count(raw.get("damaged_records_total", 0)),
            states_proven=_count(raw.get("states_proven", 0)),
            states_unproven=_count(raw.get("states_unproven", 0)),
            batch_rows=_count(raw["batch_rows"]),
            batch_s=_seconds(raw["batch_s"]),
            # Absent from nodes of earlier versions.
            last_synced_ts=_ts(raw.get("last_synced_ts", 0)),
            failure=read_failure(raw),
            sorter_deaths=_count(raw.get("sorter_deaths", 0)),
            dml_errors=_count(raw.get("dml_errors", 0)),
            ddl_errors=_count(raw.get("ddl_errors", 0)),
            spark_rows_total=_count(raw.get("spark_rows_total", 0)),
            windows_proven=_count(raw.get("windows_proven", 0)),
            windows_unproven=_count(raw.get("windows_unproven", 0)),
            set_epoch=_count(raw.get("set_epoch", SET_EPOCH_UNKNOWN)),
            created_zxid=_count(raw.get("created_zxid", 0)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("changefeed status does not decode", node=node[:200], reason=repr(error)) from error


def _id(value: object) -> str:
    text = read_text(value)
    if not is_id(text):
        raise ValueError(f"{text[:40]!r} is no id")
    return text


def _object(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:40]!r} is no object")
    return value


def _state(value: object) -> ChangefeedState:
    for state in _STATES:
        if value == state:
            return state
    raise ValueError(f"{str(value)[:40]!r} is no state")


def _ts(value: object) -> Ts:
    return Ts(read_int(value, bits=_TS_BITS))


def _count(value: object) -> int:
    return read_int(value, bits=_TS_BITS)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{str(value)[:40]!r} is no number of seconds")
    return float(value)
