"""S3 in a role of STS, on moto."""

import asyncio
from dataclasses import replace

import pytest

from consumers.processors.storage.store import ObjectStore
from edges.storages.s3 import file_system
from schemas.config.sink.storage_uri import parse_storage_uri
from tests.support.storages.aws import ask_s3, aws, s3_keys

__all__ = ["aws"]

ROLE = "role-arn=arn:aws:iam::123456789012:role/w&external-id=ours&access-key=ak&secret-access-key=sk&region=eu-west-1"


def test_objects_are_written_with_the_keys_of_the_role(aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws)
    ask_s3(aws, "roles", "PUT")
    storage = parse_storage_uri(f"s3://roles/out?{ROLE}&endpoint={aws}")
    store = ObjectStore(storage)
    store.put("a/b", [b"con", b"tent"])
    assert s3_keys(aws, "roles") == ["out/a/b"]
    assert (store.get("a/b"), store.get("a/c")) == (b"content", None)
    files = file_system(storage)
    assert files is file_system(replace(storage))  # one for all calls, or each would ask for a role of its own

    async def key() -> str:
        frozen = await (await files.session.get_credentials()).get_frozen_credentials()
        return str(frozen.access_key)

    assert asyncio.run(key()).startswith("ASIA")  # STS' own, not the one that was given
