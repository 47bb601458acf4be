"""All that one event feed is subscribed to, by span and by table. Pure bookkeeping."""

from collections.abc import Iterator

from producers.pull.core.match.matcher_quota import MatcherQuota
from producers.pull.core.regions.request_ids import RequestIds, is_shared
from producers.pull.core.regions.subscription import Subscription
from schemas.ids import RegionId, TableId, Ts
from schemas.tidb.spans import TableSpan


class Subscriptions:
    """Iterates over the live ones."""

    def __init__(self, quota: MatcherQuota) -> None:
        """``quota`` is of all matchers."""
        self._quota = quota
        self._by_span: dict[TableSpan, Subscription] = {}
        self._spans: dict[TableId, set[TableSpan]] = {}
        self._request_ids = RequestIds()
        self._owners: dict[int, Subscription | None] = {}
        """Whose own request ids are that were asked for; None: of one that has ended."""

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_span.values())

    def get(self, span: TableSpan) -> Subscription | None:
        """Return the live one of a span."""
        return self._by_span.get(span)

    def begin(self, span: TableSpan, start_ts: Ts, now_s: float) -> Subscription:
        """Return a new one for rows with commit_ts > ``start_ts``; none of its table may overlap it."""
        subscription = Subscription(span, start_ts, self._request_ids, self._quota)
        subscription.moved_at_s = now_s
        self._by_span[span] = subscription
        self._spans.setdefault(span.table_id, set()).add(span)
        return subscription

    def end(self, what: TableSpan | TableId) -> list[Subscription]:
        """Stop and return that of a span, or all of a table."""
        table_id = what.table_id if isinstance(what, TableSpan) else what
        spans = self._spans.get(table_id, set())
        ended = [self._by_span.pop(span) for span in spans if what in (span, table_id)]
        for subscription in ended:
            spans.discard(subscription.span)
            subscription.stop()
            for request_id in subscription.own_request_ids():
                self._owners.pop(request_id, None)
        if not spans:
            self._spans.pop(table_id, None)
        return ended

    def overlapping(self, span: TableSpan) -> list[TableSpan]:
        """Return the spans that have rows in common with ``span``."""
        return [other for other in self._spans.get(span.table_id, ()) if other.overlaps(span)]

    def has_used(self, request_id: int, region_id: RegionId) -> bool:
        """Tell whether a region has been registered by this request id, now or before."""
        if is_shared(request_id):
            return self._request_ids.has_shared(request_id, region_id)
        if not self._request_ids.has_own(request_id):
            return False
        if request_id not in self._owners:  # ids are never given again, and late events come by the thousand
            owners = (subscription for subscription in self if request_id in subscription.own_request_ids())
            self._owners[request_id] = next(owners, None)
        owner = self._owners[request_id]
        return owner is None or owner.has_used(request_id, region_id)
