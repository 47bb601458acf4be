"""Names that programs of others import: one that goes, or comes unseen, is a change of what users rely on."""

import tidebus.client
import tidebus.conformance
import tidebus.spark


def test_client_exports_what_its_users_import() -> None:
    assert sorted(tidebus.client.__all__) == [
        "Change",
        "ChangeBatch",
        "ChangeStream",
        "Ddl",
        "MaterialisedTable",
        "MessageError",
        "NoPositionError",
        "ProofLostError",
        "Row",
        "StreamUnavailableError",
        "TableProof",
        "Transaction",
    ]
    assert all(hasattr(tidebus.client, name) for name in tidebus.client.__all__)


def test_conformance_exports_what_its_users_import() -> None:
    assert sorted(tidebus.conformance.__all__) == [
        "ConsumerUnderTest",
        "ExampleStream",
        "PartitionKey",
        "StreamRecord",
        "Violation",
        "check_consumer",
        "example_stream",
    ]
    assert all(hasattr(tidebus.conformance, name) for name in tidebus.conformance.__all__)


def test_spark_exports_what_its_users_import() -> None:
    assert sorted(tidebus.spark.__all__) == ["TideBusDataSource", "register"]
    assert all(hasattr(tidebus.spark, name) for name in tidebus.spark.__all__)
