"""A sink's secrets stand in no error, no log line and no answer, however a parameter is written."""

import io
import json
import logging
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose.logs import JsonFormatter, LineFormatter
from compose.operator.node_texts import masked
from consumers.control.api.replica_config import to_api
from consumers.processors.storage.store import ObjectStore, StorageUnavailableError
from schemas.config.changefeed import load_changefeed
from schemas.config.sink.storage_uri import parse_storage_uri
from schemas.errors import BusError, ConfigError
from schemas.masking import is_secret_name, mask_text, mask_uri

SECRET = "hidden+word/=="
NAMES = ["account_key", "account-key", "accountKey", "ACCOUNT_KEY", "account%5fkey", "sas_token", "sas-token", "sig"]
NAMES += ["access_key", "access-key", "secret_access_key", "session_token", "password", "sasl-password", "SharedKey"]
NAMES += ["sasl-oauth-client-secret", "credential", "X-Amz-Signature", "X-Amz-Credential", "token", "pwd"]


def record(uri: str) -> logging.LogRecord:
    made = logging.LogRecord("x", logging.INFO, "", 0, "opens %s", (uri,), None)
    vars(made).update(uri=uri, nested=[{"of": uri}], error=OSError(uri))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_secret_parameter_is_masked_in_uris_errors_logs_and_answers(name: str) -> None:
    uri = f"azure://bucket/prefix?protocol=csv&{name}={SECRET}&worker-count=2"
    error = BusError(f"cannot open {uri}", uri=uri, reason=OSError(f"GET {uri} failed"))
    texts = [mask_uri(uri), str(error), error.message, str(error.args), json.dumps(masked({"sink-uri": uri}))]
    texts += [str(error.fields["uri"]), LineFormatter().format(record(uri)), JsonFormatter().format(record(uri))]
    texts += [json.dumps(to_api({"sink": {"storage": uri, name.replace("%5f", "_"): SECRET}}))]
    for text in texts:
        assert "hidden" not in text
        assert "***" in text
    assert mask_uri(uri).endswith("&worker-count=2")
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "uri",
    [
        *("mysql://root:hidden@h:3306/", "mysql://root:hid?hidden@h/", "mysql://root:hidden/hidden@h/"),
        *("mysql://root:hid?hidden@h/d?password=hidden", "kafka://h/t?sasl-password=hid@hidden&x=1"),
        *("kafka://u:hidden@h/t?sasl-password=hid@hidden#hidden", "http://u:hidden@h", "http://u:a'hidden@h"),
    ],
)
def test_password_is_masked_wherever_it_ends(uri: str) -> None:
    for text in (
        mask_uri(uri),
        mask_text(f"refused: {uri}, try again"),
        JsonFormatter().format(record(uri)),
        LineFormatter().format(record(uri)),
        str(BusError("no", at=uri)),
    ):
        assert "hidden" not in text
    assert mask_text("at http://h:1/x?y=1, and a@b") == "at http://h:1/x?y=1, and a@b"


def test_nodes_are_shown_without_secrets_and_with_their_rules() -> None:
    config = {"filter": {"rules": ["shop.order_?"], "event-filters": [{"ignore-sql": ["a?b#c"]}]}}
    sink = {"schema-registry": "http://u:hidden@r", "kafka-config": {"sasl-password": "hidden"}, "csv": {"null": "?"}}
    node = {"sink_uri": "kafka://u:hidden@h/t", "config": {**config, "sink": sink}, "error": "no http://u:hidden@r"}
    sink_shown = {"schema-registry": "http://***@r", "kafka-config": {"sasl-password": "***"}, "csv": {"null": "?"}}
    assert masked(node) == {
        "sink_uri": "kafka://***@h/t",
        "config": {**config, "sink": sink_shown},
        "error": "no http://***@r",
    }


@pytest.mark.parametrize("text", ["mysql://root:a hidden@h/d", "no: kafka://u:a hidden@h/t?sasl-password=hidden"])
def test_password_with_a_space_is_masked_in_texts_of_nodes(text: str) -> None:
    """What is taken for a URI within a text ends at a space."""
    assert "hidden" not in json.dumps(masked({"error": text, "of": [text]}))


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("kafka://user:s3cret/x@broker:9092/topic?protocol=canal-json", "broker address must be host or host:port"),
        ("kafka://user:99999/s3cret@broker:9092/topic", "port must be from 1 to 65535"),
        ("kafka://broker/s3cret@x", "default topic may hold only"),
        ("kafka://user:s3cret?x@broker:9092/topic", "broker address must be host or host:port"),
        ("mysql://root:99999/s3cret@h/", "port must be from 1 to 65535"),
        ("s3cret@host/path", "must start with a scheme"),
        ("s3://u:s3cret\N{ADDRESSED TO THE SUBJECT}@b/p?protocol=csv", "is no URI that can be read"),
        ("s3://u:s3cret]@b/p?protocol=csv", "is no URI that can be read"),
    ],
)
def test_error_of_a_uri_shows_no_part_of_a_password_that_is_not_escaped(uri: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        load_changefeed(uri)
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value.fields)
    assert not any(part in shown.partition("ConfigError: ")[2] for part in ("s3cret", "99999"))
    assert raised.value.__context__ is None or raised.value.__suppress_context__


def test_error_of_a_uri_without_user_info_shows_what_was_seen() -> None:
    with pytest.raises(ConfigError, match="got=bro ker"):
        load_changefeed("kafka://bro ker/topic?protocol=canal-json")


@pytest.mark.parametrize("name", ["sasl-user", "protocol", "max-message-bytes", "key", "sse-kms-key-id", "token-url"])
def test_other_parameters_are_shown(name: str) -> None:
    assert mask_uri(f"kafka://h:1/t?{name}=shown") == f"kafka://h:1/t?{name}=shown"


@given(st.text(max_size=60))
def test_mask_never_fails(text: str) -> None:
    mask_text(text)
    mask_uri(text)


def test_what_a_storages_client_says_is_shown_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = parse_storage_uri("azure://bucket/prefix?account-name=me&account-key=hidden%2Bword")

    class Refusing:
        def put(self, key: str, content: bytes, may_show: object) -> None:
            raise OSError(f"AccountKey=hidden+word refused at https://me.example/bucket/{key}?sv=1&sig=hidden%2Bword")

    monkeypatch.setattr("consumers.processors.storage.store.open_objects", lambda _: Refusing())
    with pytest.raises(StorageUnavailableError) as caught:
        ObjectStore(storage).put("a/b", [b"x"])
    stream = io.StringIO()
    print(caught.value, caught.value.fields, file=stream)
    assert "hidden" not in stream.getvalue()
    assert "me.example/bucket/prefix/a/b" in stream.getvalue()
    assert "hidden" not in repr(storage)
