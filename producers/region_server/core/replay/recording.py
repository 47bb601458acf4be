"""A recorded event feed, taken apart: what the cluster did, in order, freed from what only the recorder did.

The recording (``tests/data/tikv-feed/README.md`` says how it looks) holds one client's conversation with PD and the
stores. To serve it to another client, the answers are kept and put under **registrations**: everything that the stores
said for one accepted Register, from its scan to the error (or broken stream) that ended it. Left out are

* registrations that got nothing but an error: the recorder's tries at a store that did not lead. Another client tries
  at other times, and gets such an answer whenever it asks the wrong store (``player``);
* a ``duplicate_request``, which the recorder provoked; it does not end the first registration;
* the ``region_not_found`` with which TiKV 8.1 answers a Deregister, also where the same region was registered again
  on the very next line;
* a registration that the recorder replaced itself, after a merge, by one of a wider range and the same checkpoint.
"""

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from schemas.errors import CorruptDataError
from schemas.ids import StoreId, Ts
from schemas.proto import cdcpb_pb2, pdpb_pb2

NEVER: Final = 1 << 62
"""The end of a registration that outlives the recording."""
_Triple = tuple[StoreId, int, int]
"""(store, request id, region id): names a registration at one time."""


@dataclass(slots=True, eq=False)
class Recorded:
    """One registration of the recorder. Keys are memcomparable-encoded; an empty ``end`` is no bound."""

    line: int
    store_id: StoreId
    region_id: int
    version: int
    start: bytes
    end: bytes
    checkpoint_ts: Ts
    end_line: int = NEVER
    """Of the error, the broken stream or the Deregister that ended it."""
    given_up: bool = False
    """The recorder ended it, by a Deregister."""
    items: list[tuple[int, "cdcpb_pb2.Event | Ts"]] = field(default_factory=list)
    """(line, event or resolved ts), in order."""
    commit_ts: dict[tuple[int, bytes], int] = field(default_factory=dict)
    """By (start_ts, raw key), of the transactions that commit while it runs."""

    def overlaps(self, start: bytes, end: bytes) -> bool:
        """Whether it has keys in ``[start, end)``."""
        return (not end or self.start < end) and (not self.end or start < self.end)

    def covers(self, start: bytes, end: bytes) -> bool:
        """Whether all of ``[start, end)`` is in it."""
        return self.start <= start and (not self.end or (bool(end) and end <= self.end))

    def is_twin(self, other: "Recorded") -> bool:
        """Whether both are of one region at one store, and some time at once; each is its own twin."""
        mine, others = (self.store_id, self.region_id, self.version), (other.store_id, other.region_id, other.version)
        return mine == others and self.line <= other.end_line and other.line <= self.end_line

    @property
    def answered(self) -> bool:
        """Whether a store took it: it has rows or a resolved ts."""
        return any(not (isinstance(item, cdcpb_pb2.Event) and item.HasField("error")) for _, item in self.items)


@dataclass(frozen=True, slots=True)
class RecordedBegin:
    """The recorder registered."""

    registration: Recorded


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A store sent a message: events, or one resolved ts for several registrations."""

    store_id: StoreId
    events: tuple[tuple[Recorded, cdcpb_pb2.Event], ...] = ()
    resolved_ts: Ts = Ts(0)
    regions: tuple[Recorded, ...] = ()


@dataclass(frozen=True, slots=True)
class Regions:
    """PD answered which regions there are."""

    regions: tuple[pdpb_pb2.Region, ...]


@dataclass(frozen=True, slots=True)
class StoreDown:
    """A store broke its stream and refuses others until :class:`StoreUp`. ``details`` as in the gRPC status."""

    store_id: StoreId
    details: str


@dataclass(frozen=True, slots=True)
class StoreUp:
    """The store takes streams again."""

    store_id: StoreId


@dataclass(frozen=True, slots=True)
class Note:
    """What the recorder noted down, such as ``subscribe``: an object with the key ``what``."""

    fields: Mapping[str, Any]


Step: TypeAlias = RecordedBegin | RecordedMessage | Regions | StoreDown | StoreUp | Note


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRecording:
    """A whole recording."""

    members: pdpb_pb2.GetMembersResponse
    stores: pdpb_pb2.GetAllStoresResponse
    steps: tuple[tuple[float, int, Step], ...]
    """(milliseconds since the start, line, what happened), in order."""
    registrations: tuple[Recorded, ...]
    """Those that are served, in order of their lines."""
    refusals: Mapping[tuple[StoreId, int, int], cdcpb_pb2.Error]
    """By (store, region, version): how the store refused that region's registration when it did not lead it."""


def read_feed(lines: Iterable[str]) -> FeedRecording:
    """Take a recording apart.

    Raises:
        CorruptDataError: a line does not parse, or the recording has no PD members or stores.
    """
    reader = _Reader()
    for number, line in enumerate(lines):
        try:
            record = json.loads(line)
            reader.take(number, record, base64.b64decode(record.get("bytes", "")))
        except (ValueError, KeyError) as error:
            raise CorruptDataError(
                "line of a recorded feed does not parse", line=number + 1, error=repr(error)
            ) from error
    return reader.done()


class _Reader:
    def __init__(self) -> None:
        self._members: pdpb_pb2.GetMembersResponse | None = None
        self._stores: pdpb_pb2.GetAllStoresResponse | None = None
        self._steps: list[tuple[float, int, Step]] = []
        self._all: list[Recorded] = []
        self._open: dict[_Triple, Recorded] = {}
        self._deregistered: defaultdict[_Triple, int] = defaultdict(int)
        self._refusals: dict[tuple[StoreId, int, int], cdcpb_pb2.Error] = {}
        self._down: set[StoreId] = set()
        self._opened: dict[StoreId, int] = {}
        """Where the step is at which a store that was down came up, if the stream opened there gets an answer."""

    def take(self, line: int, record: Mapping[str, Any], data: bytes) -> None:
        step: Step | None = None
        store_id = StoreId(record.get("store", 0))
        match record["kind"]:
            case "pd_members":
                self._members = pdpb_pb2.GetMembersResponse.FromString(data)
            case "pd_stores":
                self._stores = pdpb_pb2.GetAllStoresResponse.FromString(data)
            case "pd_regions":
                step = Regions(tuple(pdpb_pb2.ScanRegionsResponse.FromString(data).regions))
            case "stream_open":
                if store_id in self._down:
                    self._opened[store_id] = len(self._steps)
                    step = StoreUp(store_id)
            case "stream_end":
                step = self._ended(line, store_id, record["details"])
            case "request":
                step = self._request(line, store_id, cdcpb_pb2.ChangeDataRequest.FromString(data))
            case "response":
                step = self._response(line, store_id, cdcpb_pb2.ChangeDataEvent.FromString(data))
            case "note":
                step = Note({name: value for name, value in record.items() if name not in ("kind", "t_ms")})
        if step is not None:
            self._steps.append((float(record["t_ms"]), line, step))

    def done(self) -> FeedRecording:
        if self._members is None or self._stores is None:
            raise CorruptDataError("recorded feed has no PD members or no stores")
        served = [recorded for recorded in self._all if recorded.answered and not self._replaced(recorded)]
        wanted = set(served)
        for recorded in self._all:
            if not recorded.answered and recorded.items:
                event = recorded.items[0][1]
                assert isinstance(event, cdcpb_pb2.Event)
                self._refusals[recorded.store_id, recorded.region_id, recorded.version] = event.error
        steps = [(t_ms, line, kept) for t_ms, line, step in self._steps if (kept := _only(step, wanted)) is not None]
        return FeedRecording(
            members=self._members,
            stores=self._stores,
            steps=tuple(steps),
            registrations=tuple(served),
            refusals=self._refusals,
        )

    def _ended(self, line: int, store_id: StoreId, details: str) -> Step | None:
        at = self._opened.pop(store_id, None)
        for triple in [triple for triple in self._open if triple[0] == store_id]:
            self._open.pop(triple).end_line = line
        if at is None:
            self._down.add(store_id)
            return StoreDown(store_id, details)
        # One of the tries that failed while the store was down: it had not come up after all.
        t_ms, opened, _ = self._steps[at]
        self._steps[at] = (t_ms, opened, Note({"what": "stream refused", "store": store_id, "details": details}))
        return None

    def _request(self, line: int, store_id: StoreId, request: cdcpb_pb2.ChangeDataRequest) -> Step | None:
        triple = (store_id, request.request_id, request.region_id)
        if request.WhichOneof("request") == "deregister":
            for known in list(self._open):
                if known[:2] == triple[:2] and request.region_id in (0, known[2]):
                    self._open[known].given_up = True
                    self._open.pop(known).end_line = line
                    self._deregistered[known] += 1
            return None
        recorded = Recorded(
            line=line,
            store_id=store_id,
            region_id=request.region_id,
            version=request.region_epoch.version,
            start=request.start_key,
            end=request.end_key,
            checkpoint_ts=Ts(request.checkpoint_ts),
        )
        if triple in self._open:
            return None  # registered twice: the first one stays what the answers belong to
        self._all.append(recorded)
        self._open[triple] = recorded
        return RecordedBegin(recorded)

    def _response(self, line: int, store_id: StoreId, message: cdcpb_pb2.ChangeDataEvent) -> Step | None:
        events = []
        if self._opened.pop(store_id, None) is not None:
            self._down.discard(store_id)  # it answers: that stream was the good one
        for event in message.events:
            triple = (store_id, event.request_id, event.region_id)
            recorded = self._open.get(triple)
            if event.HasField("error"):
                if event.error.HasField("duplicate_request"):
                    continue
                if event.error.HasField("region_not_found") and self._deregistered[triple]:
                    self._deregistered[triple] -= 1
                    continue
            if recorded is None:
                continue  # still under way when the registration had ended
            recorded.items.append((line, event))
            events.append((recorded, event))
            for row in event.entries.entries:
                if row.type == cdcpb_pb2.Event.COMMIT:
                    recorded.commit_ts[row.start_ts, row.key] = row.commit_ts
            if event.HasField("error"):
                del self._open[triple]
                recorded.end_line = line
        if message.HasField("resolved_ts"):
            resolved = message.resolved_ts
            named = [self._open.get((store_id, resolved.request_id, region_id)) for region_id in resolved.regions]
            regions = tuple(recorded for recorded in named if recorded is not None)
            for recorded in regions:
                recorded.items.append((line, Ts(resolved.ts)))
            return RecordedMessage(store_id, resolved_ts=Ts(resolved.ts), regions=regions)
        return RecordedMessage(store_id, events=tuple(events))

    def _replaced(self, recorded: Recorded) -> bool:
        return any(
            other.line > recorded.end_line
            and (other.store_id, other.region_id, other.version)
            == (recorded.store_id, recorded.region_id, recorded.version)
            and other.covers(recorded.start, recorded.end)
            and other.checkpoint_ts <= recorded.checkpoint_ts
            for other in self._all
        )


def _only(step: Step, wanted: set[Recorded]) -> Step | None:
    match step:
        case RecordedBegin(recorded):
            return step if recorded in wanted else None
        case RecordedMessage(store_id, events, resolved_ts, regions):
            events = tuple((recorded, event) for recorded, event in events if recorded in wanted)
            regions = tuple(recorded for recorded in regions if recorded in wanted)
            return RecordedMessage(store_id, events, resolved_ts, regions) if events or regions else None
        case _:
            return step
