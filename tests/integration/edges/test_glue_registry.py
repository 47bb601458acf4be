"""AWS Glue as the schema registry: a server that speaks its API, on loopback."""

import io
import json
import uuid
from typing import Any

import botocore.session
import fastavro
import pytest
from botocore.stub import Stubber

from schemas.config.changefeed import load_changefeed
from schemas.config.settings import ChangefeedConfig
from schemas.errors import Action, BusError
from schemas.ids import TableId, Ts
from schemas.tidb.keys import row_key
from schemas.tidb.row_v2 import encode_row_v2
from sorters.core.feed.feed import compile_feed
from sorters.core.mount import mount
from sorters.registry.glue import GlueRegistry
from sorters.registry.registry import RegistryUnreachableError, SchemaRefusedError
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

COMMIT_TS = 445644800000000001
ACCESS = {"access-key": "ak", "secret-access-key": "hidden-word"}


@pytest.fixture
def glue(aws: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", aws)
    return botocore.session.get_session().create_client(
        "glue", region_name="us-east-1", aws_access_key_id="ak", aws_secret_access_key="x"
    )


def config_of(registry: str, keys: dict[str, str] = ACCESS) -> ChangefeedConfig:
    settings = {"registry-name": registry, "region": "us-east-1", **keys}
    config = load_changefeed(
        "kafka://h:1/t?protocol=avro&enable-tidb-extension=true",
        {"sink": {"kafka-config": {"glue-schema-registry-config": settings}}},
    )
    assert config.kafka.glue_schema_registry_config is not None
    return config


def registry_of(config: ChangefeedConfig) -> GlueRegistry:
    assert config.kafka.glue_schema_registry_config is not None
    return GlueRegistry(config.kafka.glue_schema_registry_config)


@pytest.mark.parametrize("small_rows", [0, 10**9], ids=["columnar", "scalar"])
def test_rows_name_their_schema_by_glues_uuid_and_are_read_with_it(glue: Any, small_rows: int) -> None:
    name = f"reg{small_rows}"
    glue.create_registry(RegistryName=name)
    config = config_of(name)
    encoder, registry = compile_feed(config, "default").encoder, registry_of(config)
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "v")]
    info = table_info(112, "t1", columns=[spec | {"offset": offset} for offset, spec in enumerate(columns)])
    table = snapshot(("test", 1, [info])).table_at(TableId(112), Ts(COMMIT_TS))
    assert table is not None
    ids = {
        text.key: registry.register(text.subject, text.text, table="test.t1") for text in encoder.schemas(table, "t")
    }
    assert ids == {
        text.key: registry_of(config).register(text.subject, text.text, table="test.t1")
        for text in encoder.schemas(table, "t")
    }
    change = CommittedChange(COMMIT_TS, 1, row_key(TableId(112), 5), "put", encode_row_v2({2: b"\x07"}), b"", 0)
    batch = mount(table, row_changes(112, [change]), small_rows=small_rows)
    encoded = encoder.encode_rows(batch, topic="t", encoded_at_ms=1, schema_ids=ids)
    read = []
    for message in (encoded.keys[0].as_py(), encoded.values[0].as_py()):
        assert message[:2] == b"\x03\x00"
        version = glue.get_schema_version(SchemaVersionId=str(uuid.UUID(bytes=message[2:18])))
        schema = fastavro.parse_schema(json.loads(version["SchemaDefinition"]))
        read.append(fastavro.schemaless_reader(io.BytesIO(message[18:]), schema, None))
    assert read[0] == {"id": 5}
    assert read[1].items() >= {"id": 5, "v": 7, "_tidb_op": "c", "_tidb_commit_ts": COMMIT_TS}.items()


@pytest.mark.parametrize("same", [True, False], ids=["the same text", "another text"])
def test_schema_that_another_changefeed_creates_at_the_same_time_is_registered_all_the_same(
    glue: Any, same: bool
) -> None:
    name, text = f"race-{same}", '{"type":"record","name":"r","fields":[]}'
    glue.create_registry(RegistryName=name)
    theirs = text if same else '{"type":"record","name":"other","fields":[]}'
    first, second = (registry_of(config_of(name)) for _ in range(2))
    made = list[int]()

    def create_before(**_: Any) -> None:
        made.append(first.register("d_t-value", theirs, table="d.t"))

    second._client.meta.events.register("before-call.glue.CreateSchema", create_before)
    schema_id = second.register("d_t-value", text, table="d.t")
    version = glue.get_schema_version(SchemaVersionId=str(uuid.UUID(int=schema_id)))
    assert version["SchemaDefinition"] == text
    assert made == [schema_id] if same else len(made) == 1


def test_registry_that_is_not_there_refuses_and_one_that_is_away_is_tried_again(
    glue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = '{"type":"record","name":"r","fields":[]}'
    with pytest.raises(SchemaRefusedError, match="registry=nowhere") as refused:
        registry_of(config_of("nowhere")).register("s", schema, table="d.t")
    assert "hidden-word" not in str(refused.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", "http://127.0.0.1:1")
    with pytest.raises(RegistryUnreachableError) as away:
        registry_of(config_of("nowhere")).register("s", schema, table="d.t")
    assert away.value.action is Action.RETRY
    assert "hidden-word" not in str(away.value)


@pytest.mark.parametrize(("keys", "error"), [({}, RegistryUnreachableError), (ACCESS, SchemaRefusedError)])
def test_expired_token_of_the_machine_is_waited_for_and_of_the_settings_is_not(
    glue: Any, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], error: type[BusError]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "x")
    registry = registry_of(config_of("reg", keys))
    with Stubber(registry._client) as stub:
        stub.add_client_error("register_schema_version", "ExpiredTokenException", http_status_code=400)
        with pytest.raises(error, match="ExpiredTokenException"):
            registry.register("s", "{}", table="d.t")
