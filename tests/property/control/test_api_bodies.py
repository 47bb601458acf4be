"""Whatever a client sends, the API answers with JSON of its own; and settings go there and back unchanged."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.control.api.replica_config import from_api, replica_config
from tests.support.control.api import Api
from tests.support.control.memory_bus import URI, Memory, Shares

NAMES = (
    "sink_uri",
    "changefeed_id",
    "namespace",
    "start_ts",
    "target_ts",
    "replica_config",
    "pd_addrs",
    "ca_path",
    "x",
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | st.just(URI)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
PATHS = (
    ("POST", "/api/v2/changefeeds"),
    ("PUT", "/api/v2/changefeeds/cf"),
    ("POST", "/api/v2/changefeeds/cf/resume"),
    ("POST", "/api/v2/verify_table"),
    ("POST", "/api/v2/unsafe/resolve_lock"),
    ("POST", "/api/v2/tso"),
    ("PUT", "/api/v1/captures/drain"),
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(PATHS), st.dictionaries(st.sampled_from(NAMES), VALUES) | VALUES)
def test_api_any_body_is_answered_by_json_with_ticdcs_error_if_it_is_refused(route: tuple[str, str], body: Any) -> None:
    status, shown = API.ask(*route, body)
    assert status in (200, 202, 400, 503), shown
    if status >= 400:
        assert set(shown) == {"error_msg", "error_code"} and shown["error_code"].startswith("CDC:Err")


BUS = Memory()
BUS.leader, BUS.shares = BUS.capture.capture_id, Shares()
API = Api(BUS)
KEYS = st.sampled_from(
    ("filter", "rules", "case-sensitive", "file-index-digit", "send-all-bootstrap-at-start", "target-schema", "sink")
)
TABLES = st.recursive(
    st.text(max_size=10) | st.integers() | st.booleans(),
    lambda inner: st.dictionaries(KEYS, inner, max_size=4) | st.lists(st.dictionaries(KEYS, inner, max_size=2)),
)


@given(st.dictionaries(KEYS, TABLES))
def test_replica_config_goes_there_and_back(table: dict[str, Any]) -> None:
    assert from_api(replica_config(table)) == table
