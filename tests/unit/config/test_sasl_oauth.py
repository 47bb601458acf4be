"""SASL OAUTHBEARER: from TiCDC's settings to the request that the client makes for a token."""

import base64
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest
from confluent_kafka import Producer

from schemas.config.changefeed import load_changefeed
from schemas.config.client_options import librdkafka_options
from tests.support.control.changefeed_config import CANAL, refused

SECRET = base64.b64encode(b"hidden word").decode()
Asked = queue.SimpleQueue[tuple[str, dict[str, list[str]]]]


def text(*, url: str = "http://127.0.0.1:1/token", secret: str = SECRET, more: str = "") -> str:
    return (
        "[sink.kafka-config]\nsasl-mechanism = 'OAUTHBEARER'\nsasl-oauth-client-id = 'me'\n"
        f"sasl-oauth-client-secret = '{secret}'\nsasl-oauth-token-url = '{url}'\n{more}"
    )


@pytest.fixture
def endpoint() -> Iterator[tuple[str, Asked]]:
    asked: Asked = queue.SimpleQueue()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.put((self.headers["Authorization"], parse_qs(body)))
            self.send_error(401)

        def log_message(self, *args: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/token", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_oauth_settings_make_the_client_ask_the_endpoint_for_a_token(endpoint: tuple[str, Asked]) -> None:
    url, asked = endpoint
    config = load_changefeed(CANAL, text(url=url, more="sasl-oauth-scopes = ['a', 'b']\n"))
    options = librdkafka_options(config)
    assert options["security.protocol"] == "SASL_PLAINTEXT"
    producer = Producer({**options, "bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    authorization, form = asked.get(timeout=60)
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"me:hidden word"
    assert form == {"grant_type": ["client_credentials"], "scope": ["a b"]}
    producer.purge()


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        (text(secret="!"), "sasl-oauth-client-secret", "must be the secret in base64"),
        (text(url="token"), "sasl-oauth-token-url", "must be an http or https URL"),
        (text().replace("sasl-oauth-client-id = 'me'\n", ""), "sasl-oauth-client-id", "needs sasl-oauth-client-id"),
    ],
)
def test_oauth_settings_that_are_not_usable_name_the_setting_and_no_secret(settings: str, key: str, words: str) -> None:
    error = refused(CANAL, settings)
    assert error.fields["key"] == f"sink.kafka-config.{key}"
    assert words in error.message
    assert "hidden word" not in str(error)
    assert SECRET not in str(error)
