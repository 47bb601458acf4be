"""When a service writes its changefeeds' status nodes while they run."""

from sorters.core.service.status_pace import StatusPace


def test_status_pace_over_many_changefeeds_writes_one_a_second_and_each_of_few_every_ten() -> None:
    for feeds, writes in ((1, 6), (4, 24), (100, 60)):
        pace, written_s, count = StatusPace(feed_s=10.0, service_s=1.0), [-60.0] * feeds, 0
        for tenth in range(600):
            for feed in range(feeds):
                if pace.takes(written_s[feed], tenth / 10):
                    written_s[feed] = tenth / 10
                    count += 1
        assert count == writes
        if feeds == 4:
            assert all(60.0 - last <= 10.1 for last in written_s)
