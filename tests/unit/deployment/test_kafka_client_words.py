"""What librdkafka says by itself, in our logs: as warnings, and not again and again."""

import logging
import time

import pytest

from compose.ports import LOOPBACK, free_ports
from edges.kafka.clients import SAY_AGAIN_S, ClientWords, kafka_producer

LOG = logging.getLogger("test.kafka")


def test_broker_that_is_away_is_said_once_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    servers = f"{LOOPBACK}:{port}"
    tries: list[object] = []
    config = {"bootstrap.servers": servers, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 20}
    producer = kafka_producer({**config, "error_cb": tries.append}, LOG)
    deadline = time.monotonic() + 60
    while len(tries) < 10 and time.monotonic() < deadline:
        producer.poll(0.05)
    assert len(tries) >= 10
    lines = [record for record in caplog.records if "Connection refused" in record.getMessage()]
    assert [record.levelname for record in lines] == ["WARNING"]
    assert servers in lines[0].getMessage()


def test_same_words_are_said_again_after_a_while_and_other_ones_at_once(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    words = ClientWords(LOG, lambda: now_s)

    def say(what: str, number: int, level: int = logging.ERROR) -> None:
        words.log(level, "%s [%s] %s", "FAIL", "rdkafka#producer-1", f"{what} (after {number}ms in state CONNECT)")

    say("a", 1)
    say("a", 2)
    words.log(
        logging.ERROR, "FAIL [rdkafka#producer-1] a (after 0ms in state CONNECT, 30 identical error(s) suppressed)"
    )
    say("b", 3)
    say("fatal", 3, logging.CRITICAL)
    now_s += SAY_AGAIN_S
    say("a", 4)
    said = [(record.levelname, record.getMessage().split("producer-1] ")[1]) for record in caplog.records]
    assert said == [
        ("WARNING", "a (after 1ms in state CONNECT)"),
        ("WARNING", "b (after 3ms in state CONNECT)"),
        ("CRITICAL", "fatal (after 3ms in state CONNECT)"),
        ("WARNING", "a (after 4ms in state CONNECT)"),
    ]
