"""Tries a consumer of your own against streams that are lawful and hard: see :func:`check_consumer`."""

from consumers.client.conformance import (
    ConsumerUnderTest,
    ExampleStream,
    Violation,
    check_consumer,
    example_stream,
)
from consumers.client.core.partition import PartitionKey, StreamRecord

__all__ = [
    "ConsumerUnderTest",
    "ExampleStream",
    "PartitionKey",
    "StreamRecord",
    "Violation",
    "check_consumer",
    "example_stream",
]
