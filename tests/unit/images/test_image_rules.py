"""Which tables a changefeed wants images of, by its settings."""

from typing import Any

import pytest

from compose.capture.image_rules import image_rules
from schemas.ddl.schema_change import StoredTable, stored_table
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from tests.support.control.changefeed_config import CANAL
from tests.support.recorded.ddl_jobs import table_info

RULES = [
    {"matcher": ["d.audit_*"], "initial": "none"},
    {"matcher": ["d.audit_*", "d.stock"], "initial": "snapshot"},
]


def table(schema: str, name: str) -> StoredTable:
    return stored_table(table_info(5, name), schema_id=1, schema=schema, version=Ts(1))


def info(uri: str = CANAL, **config: Any) -> ChangefeedInfo:
    return ChangefeedInfo(changefeed_id="a", upstream=UpstreamId("u"), sink_uri=uri, config=config, start_ts=Ts(1))


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, set()),
        ({"initial": "snapshot"}, {"audit_1", "stock", "other"}),
        ({"initial": "snapshot", "initial-rules": RULES}, {"stock", "other"}),
        ({"initial-rules": RULES}, {"stock"}),
    ],
)
def test_the_first_rule_that_matches_a_table_counts(config: dict[str, Any], wanted: set[str]) -> None:
    rules = image_rules(info(**config))
    assert {name for name in ("audit_1", "stock", "other") if rules.wants(table("d", name))} == wanted
    assert rules.wants_initial == bool(wanted)


def test_a_changefeed_contains_what_its_filter_lets_through() -> None:
    rules = image_rules(info(filter={"rules": ["d.*", "!d.stock"]}))
    assert [rules.contains(table(*name)) for name in (("d", "other"), ("d", "stock"), ("e", "other"))] == [
        True,
        False,
        False,
    ]


def test_settings_that_are_not_allowed_are_said_to_be_so() -> None:
    with pytest.raises(ConfigError):
        image_rules(info(initial="sometimes"))


def with_images(**settings: object) -> ChangefeedInfo:
    config: dict[str, Any] = {"table-images": settings}
    return info(**config)


def test_the_first_rule_that_matches_a_table_says_where_it_comes() -> None:
    rules = image_rules(with_images(**{"first": ["d.stock", "d.*", "e.x"], "lag-seconds-max": 30}))
    places = [rules.rank(table(*name)) for name in (("d", "stock"), ("D", "other"), ("e", "x"), ("e", "y"))]
    assert places == [0, 1, 2, None]
    assert (rules.scans_max, rules.lag_max_s) == (4, 30)
    assert image_rules(with_images(**{"tables-at-once": 9})).scans_max == 9
