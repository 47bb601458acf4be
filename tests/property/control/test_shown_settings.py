"""Settings that were shown and are sent back unchanged are stored as they were."""

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from consumers.control.api.replica_config import from_api, kept_secrets, shown_config
from schemas.config.parse.duration import parse_duration
from schemas.masking import MASK

WORDS: Final = st.text("ab?#@:/&=%*._'\"\\ é", max_size=12) | st.sampled_from(
    ["shop.order_?", "*.*", "?", "url like 'https://%@%'", "(?i)create table.*#tmp", "a?b#c", "/x?sig=y#z", MASK, ""]
)
URIS: Final = st.builds(
    "{}://{}{}".format, st.sampled_from(["s3", "http", "jdbc:x"]), st.sampled_from(["h", "h:1", "u:p@h"]), WORDS
)
EVENT_FILTER_TEXTS: Final = (
    *("ignore-insert-value-expr", "ignore-update-new-value-expr", "ignore-update-old-value-expr"),
    "ignore-delete-value-expr",
)
EVENT_FILTERS: Final = st.lists(
    st.fixed_dictionaries(
        {"matcher": st.lists(WORDS, max_size=2)},
        optional={"ignore-sql": st.lists(WORDS, max_size=2), **dict.fromkeys(EVENT_FILTER_TEXTS, WORDS)},
    ),
    max_size=2,
)
DISPATCHERS: Final = st.lists(
    st.fixed_dictionaries(
        {"matcher": st.lists(WORDS, max_size=2)},
        optional=dict.fromkeys(["topic", "partition", "index", "target-schema", "target-table"], WORDS),
    ),
    max_size=2,
)
DURATIONS: Final = st.sampled_from(["30s", "10m", "1h30m", "1500ms", "24h", "7ns"])


def section(**settings: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={key.replace("_", "-"): value for key, value in settings.items()})


TABLES: Final = section(
    case_sensitive=st.booleans(),
    sql_mode=WORDS,
    sync_point_interval=DURATIONS,
    state_proofs=st.lists(WORDS, max_size=2),
    filter=section(rules=st.lists(WORDS, min_size=1, max_size=3), event_filters=EVENT_FILTERS),
    scheduler=section(region_count_refresh_interval=DURATIONS, max_traffic_percentage=st.sampled_from([1.5, 2.0])),
    consistent=section(storage=URIS, compression=WORDS),
    sink=section(
        protocol=WORDS,
        schema_registry=URIS,
        terminator=WORDS,
        file_index_digit=st.integers(6, 20),
        dispatchers=DISPATCHERS,
        csv=section(delimiter=WORDS, quote=WORDS, null=WORDS),
        mysql_config=section(time_zone=WORDS, ssl_ca=WORDS, max_multi_update_row=st.integers(1, 256)),
        cloud_storage_config=section(spool_base_dir=WORDS, file_cleanup_cron_spec=WORDS),
        iceberg_config=section(warehouse=URIS, catalog_uri=URIS, s3_endpoint=URIS, partitioning=WORDS),
        kafka_config=section(
            kafka_client_id=WORDS,
            sasl_user=WORDS,
            sasl_password=WORDS,
            sasl_oauth_token_url=URIS,
            sasl_oauth_scopes=st.lists(WORDS, max_size=2),
            large_message_handle=section(claim_check_storage_uri=URIS),
        ),
    ),
)


def leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the settings of a table by their paths: durations in seconds, event filters whole, as TiCDC shows them."""
    by_path: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            by_path |= leaves(value, (*path, key))
        elif key.endswith("-interval") and isinstance(value, str):
            by_path[*path, key] = round(parse_duration(value), 9)
        elif key == "event-filters":
            by_path[*path, key] = [{**dict.fromkeys(EVENT_FILTER_TEXTS, ""), **item} for item in value]
        else:
            by_path[*path, key] = value
    return by_path


@given(TABLES)
def test_settings_sent_back_as_they_were_shown_are_the_stored_ones_over_the_defaults(table: dict[str, Any]) -> None:
    sent_back, _ = kept_secrets(from_api(shown_config(table)), table)
    defaults, _ = kept_secrets(from_api(shown_config({})), {})
    assert leaves(sent_back) == {**leaves(defaults), **leaves(table)}
