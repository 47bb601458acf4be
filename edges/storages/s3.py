"""S3 by fsspec and its library; it may act in a role that AWS' STS gives.

A role's keys hold for an hour or so and are asked for anew by the client that uses them. Where STS stands is AWS' own
affair: by region, or by its variable ``AWS_ENDPOINT_URL_STS``; a storage's ``endpoint`` is S3's alone.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from edges.storages.objects import PART_BYTES, Check
from schemas.config.sink.storage_uri import StorageUri


@dataclass(frozen=True, slots=True)
class S3Objects:
    """See :class:`~edges.storages.objects.Objects`."""

    storage: StorageUri
    bucket: str
    removed_at_once: int = 1_000

    def put(self, key: str, content: bytes, may_show: Check) -> None:
        """See there."""
        files = file_system(self.storage)
        if len(content) <= PART_BYTES:
            may_show()
            files.pipe_file(f"{self.bucket}/{key}", content)
            return
        file = _upload(files, f"{self.bucket}/{key}", content)
        try:
            may_show()
        except BaseException:
            with suppress(Exception):  # parts of an upload that nobody ends are no object
                file.discard()
            raise
        file.commit()

    def get(self, key: str) -> bytes | None:
        """See there."""
        try:
            return bytes(file_system(self.storage).cat_file(f"{self.bucket}/{key}"))
        except FileNotFoundError:
            return None

    def find(self, prefix: str) -> list[str]:
        """See there."""
        paths = file_system(self.storage).find(f"{self.bucket}/{prefix}" if prefix else self.bucket)
        return [str(path).removeprefix(f"{self.bucket}/") for path in paths]

    def remove(self, keys: Sequence[str]) -> None:
        """See there."""
        file_system(self.storage).rm([f"{self.bucket}/{key}" for key in keys])


def _upload(files: Any, path: str, content: bytes) -> Any:
    """Send an object without letting it show; ``commit`` of what is returned does."""
    file = files.open(path, "wb", block_size=PART_BYTES, autocommit=False)
    try:
        file.write(content)
        file.close()
    except BaseException:
        with suppress(Exception):
            file.discard()
        raise
    return file


def file_system(storage: StorageUri) -> Any:
    """Return a storage's file system; fsspec keeps one a process, thread and set of options.

    Raises:
        ImportError: its library is not installed.
    """
    import fsspec  # a tenth of what a sorter imports, for the few that need it

    options = dict(storage.options)
    role = options.pop("role", None)
    if role is not None:
        keys = tuple(options.pop(name, None) for name in ("key", "secret", "token"))
        region = options.get("client_kwargs", {}).get("region_name")
        options["session"] = _session_in_role(
            role["arn"], role.get("external_id"), keys, region, options.pop("profile", None)
        )
    return fsspec.filesystem(storage.protocol, **options)


@lru_cache(64)
def _session_in_role(
    arn: str, external_id: str | None, keys: tuple[str | None, ...], region: str | None, profile: str | None
) -> Any:
    """Return the session of a role: always the same one, as fsspec tells file systems apart by it."""
    from aiobotocore.credentials import (
        AioAssumeRoleCredentialFetcher,
        AioCredentials,
        AioDeferredRefreshableCredentials,
    )
    from aiobotocore.session import AioSession
    from botocore.credentials import CredentialProvider

    own = AioSession(profile=profile)

    async def refreshed() -> Any:
        credentials = AioCredentials(*keys) if keys[0] is not None else await own.get_credentials()
        more = {"RoleSessionName": "tidebus", **({"ExternalId": external_id} if external_id else {})}
        creator = partial(own.create_client, region_name=region)
        return await AioAssumeRoleCredentialFetcher(creator, credentials, arn, more).fetch_credentials()

    class Role(CredentialProvider):  # type: ignore[misc]  # its libraries have no types
        METHOD = "tidebus-role"

        async def load(self) -> Any:
            return AioDeferredRefreshableCredentials(refreshed, self.METHOD)

    session = AioSession()
    session.get_component("credential_provider").insert_before("env", Role())
    return session
