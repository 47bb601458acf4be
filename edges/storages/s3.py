"""S3 by fsspec and its library; it may act in a role that AWS' STS gives.

A role's keys hold for an hour or so and are asked for anew by the client that uses them. Where STS stands is AWS' own
affair: by region, or by its variable ``AWS_ENDPOINT_URL_STS``; a storage's ``endpoint`` is S3's alone.

Neither library tries again by itself: who writes is asked before each try (:func:`~edges.storages.objects.tried`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from edges.storages.objects import PART_BYTES, PASSING, Check, tried
from schemas.config.sink.storage_uri import StorageUri

_PASSING_CODES = frozenset({"RequestTimeout", "SlowDown", "XAmzContentSHA256Mismatch"})
"""What S3 says, with whatever status, where the same request may be taken a moment later."""


@dataclass(frozen=True, slots=True)
class S3Objects:
    """See :class:`~edges.storages.objects.Objects`."""

    storage: StorageUri
    bucket: str
    removed_at_once: int = 1_000

    def put(self, key: str, content: bytes, may_show: Check) -> None:
        """See there."""
        files, path = file_system(self.storage), f"{self.bucket}/{key}"
        if len(content) <= PART_BYTES:
            tried(lambda: files.pipe_file(path, content), _is_passing, may_show)
            return
        file = tried(lambda: _upload(files, path, content), _is_passing)
        try:
            tried(file.commit, _is_passing, may_show)
        except BaseException:
            with suppress(Exception):  # parts of an upload that nobody ends are no object
                file.discard()
            raise

    def get(self, key: str) -> bytes | None:
        """See there."""
        files, path = file_system(self.storage), f"{self.bucket}/{key}"
        try:
            return bytes(tried(lambda: files.cat_file(path), _is_passing))
        except FileNotFoundError:
            return None

    def find(self, prefix: str) -> list[str]:
        """See there."""
        files, below = file_system(self.storage), f"{self.bucket}/{prefix}" if prefix else self.bucket
        paths = tried(lambda: files.find(below), _is_passing)
        return [str(path).removeprefix(f"{self.bucket}/") for path in paths]

    def remove(self, keys: Sequence[str]) -> None:
        """See there."""
        files = file_system(self.storage)  # whose `rm` takes keys for patterns, and says nothing of what was refused
        named = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = tried(lambda: files.call_s3("delete_objects", Bucket=self.bucket, Delete=named), _is_passing)
        for refused in answer.get("Errors", ()):
            raise OSError(f"{refused.get('Code')}: {refused.get('Message')} ({refused.get('Key')})")


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
    options["config_kwargs"] = {**options.get("config_kwargs", {}), "retries": {"total_max_attempts": 1}}
    role = options.pop("role", None)
    if role is not None:
        keys = tuple(options.pop(name, None) for name in ("key", "secret", "token"))
        region = options.get("client_kwargs", {}).get("region_name")
        options["session"] = _session_in_role(
            role["arn"], role.get("external_id"), keys, region, options.pop("profile", None)
        )
    files = fsspec.filesystem(storage.protocol, **options)
    files.retries = 1
    return files


def _is_passing(error: Exception) -> bool:
    """Tell whether the same request may be taken a moment later."""
    from aiohttp import ClientPayloadError  # s3fs has imported all of these
    from botocore.exceptions import ConnectionError as NoConnectionError
    from botocore.exceptions import HTTPClientError
    from botocore.parsers import ResponseParserError

    for cause in (error, error.__cause__):  # s3fs puts its own errors in the place of S3's answers
        answer = getattr(cause, "response", None)
        if isinstance(answer, dict):
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status in PASSING or answer.get("Error", {}).get("Code") in _PASSING_CODES
    broken = (ClientPayloadError, HTTPClientError, NoConnectionError, ResponseParserError, TimeoutError)
    return isinstance(error, broken)


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
