"""Serves a recorded event feed to another client, in the order of the recording, whatever that client asks and when.

A cursor runs over the recorded steps. What a store said to the recorder is said to the client, with the client's
request ids. The client need not do what the recorder did; what it does differently is met like this:

* **Gate.** The cursor stands still before a registration begins, and before it ends, until the client's registrations
  cover its range. So the recorded cluster waits for a client that backs off longer, and nothing that only that
  registration was told can pass the client by. Likewise a store that went down comes up once the client has tried it.
* **Early and late.** A client that registers before the recorder did waits; one that comes later gets all that the
  registration was told so far, from its scan on, in order: what a store sends to a client that registers then,
  but in more rows.
* **Twice.** Where the recorder had two subscriptions of one span, the client's registrations of it are spread over
  both; one is enough for the gates, and it goes on with the other subscription when its own is given up.
* **Elsewhere.** A client that asks the wrong store, or for regions that are no more, gets the error with which
  the store refused the recorder there; if there is none, the error that TiKV sends.
* **Narrower, or from another ts.** A registration may ask for a part of the range (after a merge the recorder joined
  two ranges, another client need not), or from a later ts: rows outside are left out. One that asks from an earlier ts,
  because a cut stream kept the last messages from it, gets what lies between by the rows that a scan would find.
* **PD** knows the regions as of the cursor; for keys that it was not asked about before, as of the first answer later.

Pure: bytes, sockets and the clock are the shell's (:mod:`producers.region_server.replay.player`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from producers.region_server.core.replay.history import RecordedRows, scanned
from producers.region_server.core.replay.recording import (
    FeedRecording,
    Note,
    Recorded,
    RecordedBegin,
    RecordedMessage,
    Regions,
    StoreDown,
    StoreUp,
)
from producers.region_server.core.replay.served import Served, Stream, covered, raw_range, wanted_part
from schemas.ids import StoreId, Ts
from schemas.proto import cdcpb_pb2, errorpb_pb2, pdpb_pb2

Event = cdcpb_pb2.Event


@dataclass(frozen=True, slots=True)
class Send:
    """Out: a message for a stream."""

    stream: Stream
    message: cdcpb_pb2.ChangeDataEvent


@dataclass(frozen=True, slots=True)
class End:
    """Out: the stream ends with UNAVAILABLE."""

    stream: Stream
    details: str


Output: TypeAlias = Send | End | Note


class FeedReplay:
    """See the module's text. The caller carries out what every call leaves in :meth:`take_outputs`, in order."""

    def __init__(self, recording: FeedRecording, held_notes: frozenset[str] = frozenset()) -> None:
        """Stand before the first step.

        Args:
            recording: what to serve.
            held_notes: at notes of these kinds the cursor stands still until :meth:`go_on`.
        """
        self._recording = recording
        self._held_notes = held_notes
        self._told_line = -1
        self._go_on_line = -1
        self._steps = recording.steps
        self._at = 0
        self._history = RecordedRows(recording.registrations)
        self._regions: dict[int, pdpb_pb2.Region] = {}
        self._served: dict[Recorded, list[Served]] = {registration: [] for registration in recording.registrations}
        self._given_up = sorted(
            (recorded for recorded in recording.registrations if recorded.given_up), key=lambda known: -known.end_line
        )
        """Those that end with no word to the client; the next one stands last."""
        self._streams: set[Stream] = set()
        self._down: dict[StoreId, str] = {}
        self._tried: set[StoreId] = set()
        self._out: list[Output] = []
        self.highest_ts = max(registration.checkpoint_ts for registration in recording.registrations)
        """The highest resolved ts so far: this PD's time."""
        for _, _, step in recording.steps:
            if isinstance(step, Regions):
                for region in step.regions:
                    self._learn(region, only_new=True)

    @property
    def finished(self) -> bool:
        """Whether the whole recording has been served."""
        return self._at == len(self._steps)

    @property
    def waits_for(self) -> str:
        """What the cursor waits for; '' if nothing but time."""
        return "" if self.finished else self._gate(self._steps[self._at][2])

    @property
    def line(self) -> int:
        """The recording's line of the next step; past all lines at the end."""
        return self._steps[-1][1] + 1 if self.finished else self._steps[self._at][1]

    def take_outputs(self) -> list[Output]:
        """Return what is to be sent, and forget it."""
        out, self._out = self._out, []
        return out

    # The cluster goes on ---------------------------------------------------------------------------------------------

    def advance(self, until_ms: float) -> float | None:
        """Run steps up to the recorded time ``until_ms``, as far as the gates let.

        Returns the recorded time of the next step, or None at the end of the recording.
        """
        while not self.finished:
            t_ms, _, step = self._steps[self._at]
            if t_ms > until_ms:
                return t_ms
            if self._gate(step):
                if isinstance(step, Note) and self._told_line < self.line:
                    self._told_line = self.line
                    self._out.append(step)
                return t_ms
            line = self.line
            self._go_over(line)
            self._at += 1
            self._run(line, step)
        return None

    def _go_over(self, line: int) -> None:
        """Let registrations that the recorder had given up before ``line`` be answered by another of the same span."""
        while self._given_up and self._given_up[-1].end_line < line:
            recorded = self._given_up.pop()
            other = next((known for known in self._served if known.is_twin(recorded) and known.end_line >= line), None)
            if other is not None:
                for served in self._served[recorded]:
                    served.recorded = other
                self._served[other] += self._served[recorded]
                self._served[recorded] = []

    def go_on(self) -> None:
        """What the note asks at which the cursor stands has been done."""
        self._go_on_line = self.line

    def _run(self, line: int, step: object) -> None:
        match step:
            case RecordedBegin(recorded):
                for served in self._served[recorded]:
                    self._open(served)
            case RecordedMessage(resolved_ts=ts, regions=regions) if regions:
                self.highest_ts = max(self.highest_ts, ts)
                self._resolved(ts, [served for recorded in regions for served in self._served[recorded]])
            case RecordedMessage(events=events):
                self._events([(served, event) for recorded, event in events for served in self._served[recorded]])
                for recorded, event in events:
                    if event.HasField("error"):
                        self._drop(self._served[recorded])
            case Regions(regions=known):
                for region in known:
                    self._learn(region)
            case StoreDown(store_id, details):
                self._down[store_id] = details
                mine = [stream for stream in self._streams if stream.store_id == store_id]
                if not mine:
                    self._tried.add(store_id)  # nobody will miss it
                for stream in mine:
                    self._out.append(End(stream, details))
                    self.disconnect(stream)
            case StoreUp(store_id):
                self._down.pop(store_id, None)
                self._tried.discard(store_id)
            case Note() if self._told_line < line:
                self._out.append(step)

    def _gate(self, step: object) -> str:
        needed: list[Recorded] = []
        match step:
            case RecordedBegin(recorded):
                needed = [recorded]
            case RecordedMessage(events=events):
                needed = [recorded for recorded, event in events if event.HasField("error")]
            case StoreDown(store_id, _):
                line = self._steps[self._at][1]
                needed = [
                    registration
                    for registration in self._served
                    if registration.store_id == store_id and registration.end_line == line
                ]
            case Note(fields) if fields["what"] in self._held_notes and self._go_on_line < self.line:
                return f"{fields['what']} to be done"
            case StoreUp(store_id) if store_id not in self._tried:
                return f"a stream to store {store_id}, which is down"
        for recorded in needed:
            twins = [known for known in self._served if known.is_twin(recorded) and known.line <= self.line]
            if not covered(recorded, [served for known in twins for served in self._served[known]]):
                return f"a registration of region {recorded.region_id} at store {recorded.store_id}"
        return ""

    # The client asks -------------------------------------------------------------------------------------------------

    def connect(self, store_id: StoreId, *, multiplexed: bool) -> Stream | str:
        """Open a stream; a store that is down gives the details of UNAVAILABLE instead."""
        if store_id in self._down:
            self._tried.add(store_id)
            return self._down[store_id]
        stream = Stream(store_id, multiplexed)
        self._streams.add(stream)
        return stream

    def disconnect(self, stream: Stream) -> None:
        """The stream has ended, whoever ended it."""
        self._streams.discard(stream)
        self._drop(list(stream.registered.values()))

    def register(self, stream: Stream, request: cdcpb_pb2.ChangeDataRequest) -> None:
        """Take a Register, or refuse it with a region error."""
        key = (request.request_id if stream.multiplexed else 0, request.region_id)
        if key in stream.registered:
            twice = cdcpb_pb2.DuplicateRequest(region_id=request.region_id)
            self._refuse(stream, request, cdcpb_pb2.Error(duplicate_request=twice))
            return
        line = self.line
        recorded = self._answering(request, line)
        error = self._refusal(stream, request, recorded)
        if error is not None or recorded is None:
            self._refuse(stream, request, error or cdcpb_pb2.Error())
            return
        served = stream.registered[key] = Served(
            stream,
            request.request_id,
            request.region_id,
            request.start_key,
            request.end_key,
            Ts(request.checkpoint_ts),
            recorded,
        )
        self._served[recorded].append(served)
        if recorded.line < line:
            self._open(served)
            for item_line, item in recorded.items:
                if item_line >= line:
                    break
                if isinstance(item, Event):
                    self._events([(served, item)])
                else:
                    self._resolved(item, [served])

    def deregister(self, stream: Stream, request_id: int, region_id: int) -> None:
        """Forget one registration, or all of ``request_id`` if ``region_id`` is 0. There is no answer."""
        self._drop(
            [
                served
                for served in stream.registered.values()
                if served.request_id == request_id and region_id in (0, served.region_id)
            ]
        )

    def scan_regions(self, start: bytes, end: bytes) -> Iterator[pdpb_pb2.Region]:
        """Yield the regions that touch ``[start, end)`` of encoded keys, ascending."""
        for region in sorted(self._regions.values(), key=lambda region: region.region.start_key):
            if _overlap(region, start, end):
                yield region

    def region(self, region_id: int) -> pdpb_pb2.Region | None:
        """Return one region, as far as PD knows it now."""
        return self._regions.get(region_id)

    def _answering(self, request: cdcpb_pb2.ChangeDataRequest, line: int) -> Recorded | None:
        """Return the recorded registration that answers a client's: of two at one time the one that nobody has yet."""
        start, end = request.start_key, request.end_key
        later = (known for known in self._recording.registrations if known.end_line >= line)
        touched = [known for known in later if known.overlaps(start, end)]
        if not touched:
            return None
        twins = [known for known in touched if known.is_twin(touched[0])]
        free = (known for known in twins if not any(served.touches(start, end) for served in self._served[known]))
        return next(free, touched[0])

    # Inside ----------------------------------------------------------------------------------------------------------

    def _refusal(
        self, stream: Stream, request: cdcpb_pb2.ChangeDataRequest, recorded: Recorded | None
    ) -> cdcpb_pb2.Error | None:
        region_id, version = request.region_id, request.region_epoch.version
        if recorded is None:
            return cdcpb_pb2.Error(region_not_found=errorpb_pb2.RegionNotFound(region_id=region_id))
        if (recorded.region_id, recorded.version) != (region_id, version):
            return cdcpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch())
        if recorded.store_id != stream.store_id:
            known = self._recording.refusals.get((stream.store_id, region_id, version))
            return known or cdcpb_pb2.Error(not_leader=errorpb_pb2.NotLeader(region_id=region_id))
        if not recorded.covers(request.start_key, request.end_key):
            return cdcpb_pb2.Error(epoch_not_match=errorpb_pb2.EpochNotMatch())
        return None

    def _refuse(self, stream: Stream, request: cdcpb_pb2.ChangeDataRequest, error: cdcpb_pb2.Error) -> None:
        event = Event(region_id=request.region_id, request_id=request.request_id, error=error)
        self._out.append(Send(stream, cdcpb_pb2.ChangeDataEvent(events=[event])))

    def _drop(self, dropped: list[Served]) -> None:
        for served in list(dropped):
            self._served[served.recorded].remove(served)
            key = (served.request_id if served.stream.multiplexed else 0, served.region_id)
            del served.stream.registered[key]

    def _open(self, served: Served) -> None:
        """Send what a scan from the client's own ts finds below the recorded one."""
        rows = self._history.between(served.checkpoint_ts, served.recorded.checkpoint_ts, *raw_range(served))
        if rows:
            self._events([(served, scanned(rows))])

    def _events(self, parts: list[tuple[Served, Event]]) -> None:
        """Send events that stood in one message; each stream gets its own in one message too."""
        messages: dict[Stream, cdcpb_pb2.ChangeDataEvent] = {}
        for served, event in parts:
            kept = wanted_part(served, event)
            if kept is None:
                continue
            kept.region_id, kept.request_id = served.region_id, served.request_id
            messages.setdefault(served.stream, cdcpb_pb2.ChangeDataEvent()).events.append(kept)
        self._out += [Send(stream, message) for stream, message in messages.items()]

    def _resolved(self, ts: Ts, to: list[Served]) -> None:
        groups: dict[tuple[Stream, int], list[int]] = {}
        for served in to:
            request_id = served.request_id if served.stream.multiplexed else 0
            groups.setdefault((served.stream, request_id), []).append(served.region_id)
        for (stream, request_id), regions in groups.items():
            resolved = cdcpb_pb2.ResolvedTs(regions=regions, ts=ts, request_id=request_id)
            self._out.append(Send(stream, cdcpb_pb2.ChangeDataEvent(resolved_ts=resolved)))

    def _learn(self, region: pdpb_pb2.Region, *, only_new: bool = False) -> None:
        meta = region.region
        replaced = {
            known.region.id: known
            for known in self._regions.values()
            if known.region.id == meta.id or _overlap(known, meta.start_key, meta.end_key)
        }
        if replaced and (only_new or any(_version(known) > _version(region) for known in replaced.values())):
            return
        for region_id in replaced:
            del self._regions[region_id]
        self._regions[meta.id] = region


def _overlap(region: pdpb_pb2.Region, start: bytes, end: bytes) -> bool:
    meta = region.region
    return (not end or meta.start_key < end) and (not meta.end_key or start < meta.end_key)


def _version(region: pdpb_pb2.Region) -> int:
    return region.region.region_epoch.version
