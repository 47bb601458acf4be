"""The owner's part of table images: from what stands in the last frontier record to what stands in the next one.

A range of a table's keys, for one changefeed::

                 wished                 barrier opened, R < S              landed, R >= S
    (no image) ----------> waiting -----------------------------> scanned -----------------> listed
         ^                    ^                                      |                          |
         |                    '--- failed, 10 s, capture lost, -----'            passed: before'
         |                         a DDL of that very ts                       it needed_ts >= S|
         '------------------------------- all ranges of the table ------------------ done <-----'

Nothing else is remembered: whoever becomes owner goes on from the record, open barriers included, for captures report
to whoever is owner. So an image outlives each of its owners, and a step that was not published has not happened.

**Why the image law holds** (docs/architecture.md), R' being a changefeed's own frontier:

* *Nobody passes S before what is at S is known.* The record that opens the barrier has R < S, and caps its changefeeds
  at S - 1 from there on, in every record that readers follow, until one closes it. A scan begins when its capture hears
  of the opening record, which is only once that one counts. An owner that was replaced opens none: its record is
  nobody's.
* *Whoever is held back below S loses nothing by it.* R goes on meanwhile, and low with it, above rows that C has not
  got: so the barrier keeps the low of its opening record, which has R < S. What is above S - 1 stands at or above it.
* *A chunk is one thing.* S is drawn once, (S, number, attempt) names the records, the result names their offsets, and
  they are facts when it is reported: acknowledged. What lands later, twice, or for a barrier that is over, is in no
  chunk. A lost capture's result does not count, though it may be true: the range comes again.
* *It goes out once.* The closing record has R >= S, and lists it. A changefeed of it stood below S by every record
  before, so the first that takes it past S has the chunk listed: the closing one, or, where held tables kept it back, a
  later one, for chunks leave the list only when all readers had passed S at the record before. They are then done, and
  only then is there another barrier for the changefeed.
* *What is left out* by the pair of records with R1' < commit_ts <= R2' is what F2 says: done has only ranges whose S is
  at or below R1', and chunks above are listed with their S. Tables are added to those that are waited for only together
  with the DDL that brings their rows, by which nothing of them was to go out before; or where nothing is left out.
  They are taken out when whole, or when the changefeed had passed their end by the record before (and so was in no
  barrier by it), so no row of them is to come.
* *A table in the ranges is always scanned*, also where its id was only in between when they were made: the owner and
  the readers go by the same ids.
"""

from consumers.control.core.images.barriers import close_barriers, open_barrier
from consumers.control.core.images.inputs import ImageInputs
from consumers.control.core.images.progress import take_passed, take_wishes, without_gone_feeds
from schemas.rawlog.images import ImageState, grown


def step(state: ImageState, seen: ImageInputs) -> ImageState:
    """Return the images of the next record, equal to ``state`` when nothing changes.

    Args:
        state: of the record that is published.
        seen: what is known now.
    """
    after = without_gone_feeds(state, seen.feeds)
    after = take_passed(after, seen)
    after = take_wishes(after, seen)
    after = close_barriers(after, seen)
    after = open_barrier(after, seen)
    return state if after == state else grown(after, seen.owner_rev)
