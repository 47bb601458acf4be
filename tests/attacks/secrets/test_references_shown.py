"""What one is told by the API who may create changefeeds and refers to secrets where none belongs."""

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from compose.capture.api import backend
from compose.capture.api.backend import ApiBackend
from compose.foresight import explain
from compose.sink_check import SinkRefusedError, check_sink
from consumers.control.api.errors import error_body
from consumers.processors.apply.connection import Connector
from edges.secrets import load_with_secrets, resolve
from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError, ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from tests.support.control.api import Api
from tests.support.control.memory_bus import Memory
from tests.support.database.fake_tidb import FakeTidb
from tests.support.database.tidb_catalog import TidbCatalog

TOPIC_LIKE, ODD = "hunter2-prod", "pa$$w0rd!/x"
REFERENCES = "${env:TIDEBUS_SECRET_PAYROLL}", "${env:TIDEBUS_SECRET_ODD}"
WRONG = [
    uri.format(reference)
    for reference in REFERENCES
    for uri in (
        "kafka://127.0.0.1:9/{}?protocol=canal-json",
        "kafka://{}:9/t?protocol=canal-json",
        "kafka://127.0.0.1:9/t?protocol=canal-json&kafka-client-id={}",
        "file:///{}?protocol=csv",
        "mysql://root@127.0.0.1:9/?time-zone={}",
    )
]
SASL = "kafka://127.0.0.1:9/t?protocol=canal-json&sasl-mechanism=PLAIN&sasl-user=u&sasl-password="


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEBUS_SECRET_PAYROLL", TOPIC_LIKE)
    monkeypatch.setenv("TIDEBUS_SECRET_ODD", ODD)


def info_at(uri: str, config: dict[str, Any] | None = None) -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id="cf", upstream=UpstreamId("u"), sink_uri=uri, config=config or {}, start_ts=Ts(1)
    )


def is_told(text: str) -> bool:
    return any(secret in text for secret in (TOPIC_LIKE, ODD))


def bus(monkeypatch: pytest.MonkeyPatch, asked: list[dict[str, Any]]) -> Memory:
    """Return a bus that explains as a capture does, over a raw log without tables; who asks a sink is noted."""

    class Places:
        kafka, upstream, tries_sinks = None, UpstreamId("u"), True

    class Explaining(Memory):
        _addresses = Places()

        def explain(self, request: Any) -> dict[str, Any]:
            return ApiBackend.explain(cast(ApiBackend, self), request)

    class NoTopics:
        def __init__(self, options: Mapping[str, Any], **_: object) -> None:
            asked.append(dict(options))

        def existing(self, topics: object) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(backend, "raw_log_schemas", lambda *_: (SchemaStore.empty(), Ts(5)))
    monkeypatch.setattr(explain, "TopicAdmin", NoTopics)
    return Explaining()


@pytest.mark.parametrize("uri", WRONG)
def test_draft_that_refers_to_a_secret_where_none_belongs_is_told_none(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api(bus(monkeypatch, []))
    status, shown = api.ask("POST", "/api/tidebus/console/draft", {"sink_uri": uri})
    assert status == 200 and not is_told(json.dumps(shown))
    assert shown["problems"][0]["key"] == "sink-uri" and shown["explanation"] is None


@pytest.mark.parametrize("uri", WRONG)
def test_changefeed_that_refers_to_a_secret_where_none_belongs_is_refused_and_told_none(uri: str) -> None:
    api = Api(Memory())
    status, shown = api.v2("POST", "/changefeeds", {"changefeed_id": "cf", "sink_uri": uri})
    assert status == 400 and not is_told(json.dumps(shown))
    with pytest.raises(BusError) as refused:
        check_sink(info_at(uri), lambda: 1)
    assert not is_told(json.dumps(error_body(refused.value)))


@pytest.mark.parametrize("uri", WRONG)
def test_stored_changefeed_that_refers_to_a_secret_where_none_belongs_stops(uri: str) -> None:
    with pytest.raises(ConfigError, match="reference to a secret") as refused:
        load_with_secrets(info_at(uri))
    assert not is_told(str(refused.value))


def test_explanation_is_of_settings_without_the_secrets_that_its_sink_is_asked_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []
    api = Api(bus(monkeypatch, asked))
    shown = api.ask("POST", "/api/tidebus/console/draft", {"sink_uri": SASL + REFERENCES[1]})[1]
    assert shown["problems"] == [] and shown["explanation"]["acls"] and not is_told(json.dumps(shown))
    assert [options["sasl.password"] for options in asked] == [ODD]
    elsewhere = api.ask("POST", "/api/tidebus/console/draft", {"sink_uri": SASL + "${env:TIDEBUS_SECRET_NONE}"})[1]
    assert elsewhere["explanation"]["acls"] and len(asked) == 1, "nobody logs in with a stand-in"


def test_secret_that_is_refused_in_its_place_is_not_told() -> None:
    oauth = {"sasl-mechanism": "OAUTHBEARER", "sasl-oauth-client-id": "c", "sasl-oauth-token-url": "https://t/t"}
    config = {"sink": {"kafka-config": {**oauth, "sasl-oauth-client-secret": REFERENCES[1]}}}
    with pytest.raises(BusError) as refused:
        check_sink(info_at("kafka://127.0.0.1:9/t?protocol=canal-json", config), lambda: 1)
    assert not is_told(json.dumps(error_body(refused.value)))
    assert refused.value.fields["key"] == "sink.kafka-config.sasl-oauth-client-secret"


@pytest.mark.parametrize("named", [TOPIC_LIKE, TOPIC_LIKE[:9]])
@pytest.mark.parametrize("number", [1045, 1064])
def test_server_that_names_a_user_by_reference_is_not_quoted(named: str, number: int) -> None:
    def denies(statement: str) -> tuple[int, str]:
        return number, f"Access denied for user '{named}'@'localhost' (using password: YES)"

    with FakeTidb(denies) as server:
        address = server.uri.partition("@")[2]
        with pytest.raises(SinkRefusedError) as refused:
            check_sink(info_at(f"mysql://{REFERENCES[0]}:x@{address}"), lambda: 1)
        assert named not in str(refused.value) and str(number) in str(refused.value)
        with pytest.raises(SinkRefusedError, match="Access denied for user"):
            check_sink(info_at(f"mysql://root:{REFERENCES[0]}@{address}"), lambda: 1)


def test_user_by_reference_writes_as_any_other() -> None:
    with FakeTidb(TidbCatalog().answer) as server:
        uri = f"mysql://{REFERENCES[0]}:x@{server.uri.partition('@')[2]}"
        config = load_changefeed(uri, resolve=resolve)
        assert config.uri.server is not None and config.uri.server.user == TOPIC_LIKE
        Connector(config.uri.server, config)().close()
