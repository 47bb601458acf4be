"""File systems of storages, by fsspec and its libraries; one of S3 may act in a role that AWS' STS gives it.

A role's keys hold for an hour or so and are asked for anew by the client that uses them. Where STS stands is AWS' own
affair: by region, or by its variable ``AWS_ENDPOINT_URL_STS``; a storage's ``endpoint`` is S3's alone.
"""

from functools import lru_cache, partial
from typing import Any

from schemas.config.sink.storage_uri import StorageUri


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
