"""What one gets who may change changefeeds, is shown no secret, and has them sent to a host of his own."""

import json
from typing import Any

import pytest

from consumers.control.changefeeds.verbs import ConfigChange
from schemas.nodes.changefeed import ChangefeedInfo
from tests.support.control.api import Api
from tests.support.control.memory_bus import Memory

HIDDEN = "hidden-word"
KAFKA = "kafka://good:9092/t?protocol=canal-json"
EVIL = "kafka://evil:9092/t?protocol=canal-json"
SASL = {"sasl_user": "u", "sasl_password": HIDDEN, "sasl_mechanism": "PLAIN"}
OAUTH = {
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauth_client_id": "c",
    "sasl_oauth_client_secret": "aGlkZGVuLXdvcmQ=",
    "sasl_oauth_token_url": "https://tokens/t",
}
LAKE = {
    "catalog": "rest",
    "catalog_uri": "https://catalog",
    "catalog_password": HIDDEN,
    "s3_endpoint": "https://store",
    "s3_access_key": HIDDEN,
    "s3_secret_access_key": HIDDEN,
}


def of_kafka(**config: Any) -> dict[str, Any]:
    return {"sink": {"kafka_config": config}}


def of_lake(**config: Any) -> dict[str, Any]:
    return {"sink": {"iceberg_config": config}}


def stopped(sink_uri: str, config: dict[str, Any], bus: Memory | None = None) -> tuple[Api, Memory]:
    bus = bus or Memory()
    api = Api(bus)
    status, answer = api.v2(
        "POST", "/changefeeds", {"changefeed_id": "cf", "sink_uri": sink_uri, "replica_config": config}
    )
    assert status == 200, answer
    api.v2("POST", "/changefeeds/cf/pause")
    return api, bus


def info_of(bus: Memory) -> ChangefeedInfo:
    return bus.kept["default", "cf"].info


@pytest.mark.parametrize(
    ("sink_uri", "config", "change", "named"),
    [
        (KAFKA, of_kafka(**SASL), {"sink_uri": EVIL}, "sink.kafka-config.sasl-password"),
        (
            KAFKA,
            of_kafka(**SASL),
            {"sink_uri": EVIL, "replica_config": of_kafka(**{**SASL, "sasl_password": "***"})},
            "sink.kafka-config.sasl-password",
        ),
        (
            KAFKA,
            of_kafka(**OAUTH),
            {
                "replica_config": of_kafka(
                    **{**OAUTH, "sasl_oauth_client_secret": "***", "sasl_oauth_token_url": "https://evil/t"}
                )
            },
            "sink.kafka-config.sasl-oauth-client-secret",
        ),
        (
            KAFKA + f"&sasl-mechanism=PLAIN&sasl-user=u&sasl-password={HIDDEN}&enable-tls=true",
            {},
            {"replica_config": of_kafka(insecure_skip_verify=True)},
            "sink-uri",
        ),
        (
            "iceberg://",
            of_lake(**LAKE),
            {"replica_config": of_lake(**{**LAKE, "catalog_password": "***", "catalog_uri": "https://evil"})},
            "sink.iceberg-config.catalog-password",
        ),
        (
            "iceberg://",
            of_lake(**LAKE),
            {
                "replica_config": of_lake(
                    **{**LAKE, "s3_access_key": "***", "s3_secret_access_key": "***", "s3_endpoint": "https://evil"}
                )
            },
            "sink.iceberg-config.s3-access-key, sink.iceberg-config.s3-secret-access-key",
        ),
        ("iceberg://", of_lake(**LAKE), {"sink_uri": "iceberg://?s3-endpoint=https://evil"}, "s3-secret-access-key"),
    ],
)
def test_update_does_not_send_stored_secrets_elsewhere(
    sink_uri: str, config: dict[str, Any], change: dict[str, Any], named: str
) -> None:
    api, bus = stopped(sink_uri, config)
    before = info_of(bus)
    status, answer = api.v2("PUT", "/changefeeds/cf", change)
    assert (status, answer["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused")
    assert "give them again" in answer["error_msg"] and named in answer["error_msg"]
    assert HIDDEN not in json.dumps(answer) and info_of(bus) == before


def test_update_by_who_gives_the_secrets_again_goes_where_it_says() -> None:
    api, bus = stopped(KAFKA, of_kafka(**SASL))
    status, answer = api.v2("PUT", "/changefeeds/cf", {"sink_uri": EVIL, "replica_config": of_kafka(**SASL)})
    assert status == 200, answer
    status, answer = api.v2("PUT", "/changefeeds/cf", {"sink_uri": KAFKA, "replica_config": {"case_sensitive": True}})
    assert status == 200, "without secrets a changefeed may go anywhere"
    assert info_of(bus).config == {"case-sensitive": True}


def test_update_through_the_first_version_does_not_send_stored_secrets_elsewhere() -> None:
    api, bus = stopped(KAFKA, of_kafka(**SASL))
    before = info_of(bus)
    changes: list[dict[str, Any]] = [
        {"sink_uri": EVIL},
        {"sink_uri": EVIL, "filter_rules": ["a.*"]},
        {"sink_uri": EVIL, "sink_config": {"protocol": "canal-json"}},
        {"sink_config": {"kafka_config": {**SASL, "sasl_password": "***", "sasl_mechanism": "SCRAM-SHA-256"}}},
    ]
    for change in changes:
        status, answer = api.ask("PUT", "/api/v1/changefeeds/cf", change)
        assert (status, answer["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused"), change
        assert "sink.kafka-config.sasl-password" in answer["error_msg"] and info_of(bus) == before
    given = {"sink_uri": EVIL, "sink_config": {"kafka_config": {**SASL, "sasl_password": "mine"}}}
    assert api.ask("PUT", "/api/v1/changefeeds/cf", given)[0] == 202
    kept = {"sink_config": {"kafka_config": {**SASL, "sasl_password": "***", "max_message_bytes": 1000}}}
    assert api.ask("PUT", "/api/v1/changefeeds/cf", kept)[0] == 202
    config = info_of(bus).config["sink"]["kafka-config"]
    assert (config["sasl-password"], config["max-message-bytes"]) == ("mine", 1000)


def test_secrets_that_were_taken_over_before_another_change_do_not_go_where_that_one_goes() -> None:
    class Overtaken(Memory):
        def configure(self, changefeed_id: str, namespace: str, change: ConfigChange) -> ChangefeedInfo:
            if change.kept:  # in between somebody has sent the changefeed elsewhere, without its secrets
                elsewhere = ConfigChange(sink_uri=EVIL, config={"sink": {"kafka-config": {}}})
                super().configure(changefeed_id, namespace, elsewhere)
            return super().configure(changefeed_id, namespace, change)

    api, bus = stopped(KAFKA, of_kafka(**SASL), Overtaken())
    masked = of_kafka(**{**SASL, "sasl_password": "***"})
    status, answer = api.v2("PUT", "/changefeeds/cf", {"replica_config": {**masked, "case_sensitive": True}})
    assert (status, answer["error_code"]) == (400, "CDC:ErrChangefeedUpdateRefused") and "ask again" in str(answer)
    assert HIDDEN not in json.dumps(info_of(bus).config) and info_of(bus).sink_uri == EVIL
