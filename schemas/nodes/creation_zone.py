"""A changefeed's zone behind its time of creation, where a release that knows no zones keeps it.

Such a release writes a node anew with the fields that it knows, and takes the time of creation for a text.
"""


def with_zone(create_time: str, time_zone: str) -> str:
    """Return a time of creation with the changefeed's zone behind it, as RFC 9557 writes it; UTC goes without saying.

    >>> with_zone("2026-11-22T04:00:00+00:00", "Asia/Tokyo")
    '2026-11-22T04:00:00+00:00[Asia/Tokyo]'
    """
    return create_time if time_zone == "UTC" else f"{create_time}[{time_zone}]"


def without_zone(create_time: str) -> str:
    """Return a time of creation as RFC 3339."""
    return create_time.partition("[")[0]


def noted_zone(create_time: str) -> str:
    """Return the zone that stands behind a time of creation; UTC where there is none.

    >>> noted_zone("2026-11-22T04:00:00+00:00[Asia/Tokyo]")
    'Asia/Tokyo'
    """
    return create_time.partition("[")[2].removesuffix("]") or "UTC"
