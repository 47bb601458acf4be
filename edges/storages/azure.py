"""Azure's blobs, by Microsoft's own library, with TiCDC's parameters and TiDB's order of credentials.

The URI's before the environment's: a shared access signature, an account key, a service principal
(``AZURE_TENANT_ID``, ``AZURE_CLIENT_ID``, ``AZURE_CLIENT_SECRET``), ``AZURE_STORAGE_KEY``, and what the machine is: a
workload or managed identity. Those of the environment and the machine go to Azure's own hosts alone.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import requests
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError, ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobBlock, ContainerClient, CustomerProvidedEncryptionKey, StandardBlobTier

from edges.storages.objects import ANSWER_S, CONNECT_S, PART_BYTES, PASSING, Check, tried
from edges.storages.sessions import prepare
from schemas.config.sink.storage_hosts import is_of_cloud

_PRINCIPAL = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")


@dataclass(frozen=True, slots=True)
class AzureObjects:
    """See :class:`~edges.storages.objects.Objects`."""

    container: ContainerClient
    sealed: Mapping[str, object]
    """What each request that reads or writes content says of its encryption."""
    scoped: Mapping[str, object]
    """What each one that writes says beside."""
    tier: StandardBlobTier | None
    removed_at_once: int = 1

    def put(self, key: str, content: bytes, may_show: Check) -> None:
        """See there."""
        blob = self.container.get_blob_client(key)
        about = {**self.sealed, **self.scoped, **({"standard_blob_tier": self.tier} if self.tier else {})}
        if len(content) <= PART_BYTES:
            tried(lambda: blob.upload_blob(content, overwrite=True, **about), _is_passing, may_show)
            return
        blocks = []
        run = secrets.token_hex(8)  # a late writer's blocks are not taken for ours
        for number, start in enumerate(range(0, len(content), PART_BYTES)):
            block, part = f"{run}{number:08}", content[start : start + PART_BYTES]
            tried(lambda block=block, part=part: self._stage(blob, block, part), _is_passing)  # type: ignore[misc]
            blocks.append(BlobBlock(block))
        tried(lambda: blob.commit_block_list(blocks, **about), _is_passing, may_show)

    def get(self, key: str) -> bytes | None:
        """See there."""
        try:
            return bytes(tried(lambda: self.container.download_blob(key, **self.sealed).readall(), _is_passing))
        except ResourceNotFoundError as error:
            if getattr(error, "error_code", None) == "BlobNotFound":
                return None
            raise  # the container, or the account

    def find(self, prefix: str) -> list[str]:
        """See there."""
        below = f"{prefix}/" if prefix else None
        return tried(lambda: list(self.container.list_blob_names(name_starts_with=below)), _is_passing)

    def remove(self, keys: Sequence[str]) -> None:
        """See there."""
        for key in keys:
            with suppress(ResourceNotFoundError):
                tried(lambda key=key: self.container.delete_blob(key), _is_passing)  # type: ignore[misc]

    def _stage(self, blob: Any, block: str, part: bytes) -> None:
        blob.stage_block(block, part, **self.sealed, **self.scoped)


def azure_objects(container: str, options: Mapping[str, str]) -> AzureObjects:
    """Open a container.

    Raises:
        ValueError: what is given names no account, or does not go together.
    """
    account = options.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT")
    if not account:
        raise ValueError("no account is named, neither by account-name nor by AZURE_STORAGE_ACCOUNT")
    endpoint = options.get("endpoint") or f"https://{account}.blob.core.windows.net"
    is_azure = is_of_cloud("az", endpoint)
    if not is_azure and "endpoint" not in options:  # `h.example/` would be a host of its own
        raise ValueError(
            "account-name, or AZURE_STORAGE_ACCOUNT, is no account's: letters, digits and hyphens are allowed"
        )
    key, scope, tier = _encryption_key(options, is_azure), options.get("encryption_scope"), options.get("access_tier")
    if (key or scope) and tier:
        raise ValueError("access-tier excludes encryption-scope, encryption-key and AZURE_ENCRYPTION_KEY")
    if key and scope:
        raise ValueError("encryption-scope excludes encryption-key and AZURE_ENCRYPTION_KEY")
    session = requests.Session()
    prepare(session)
    client = ContainerClient(
        endpoint,
        container,
        credential=_credential(account, options) or (_credential_of_machine(account) if is_azure else None),
        transport=RequestsTransport(session=session, session_owner=False),
        retry_total=0,  # who writes is asked before each try: `tried`
        connection_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
    )
    return AzureObjects(
        client,
        sealed={"cpk": key} if key else {},
        scoped={"encryption_scope": scope} if scope else {},
        tier=StandardBlobTier(tier) if tier else None,
    )


def _encryption_key(options: Mapping[str, str], is_azure: bool) -> CustomerProvidedEncryptionKey | None:
    text, of_machine = options.get("encryption_key"), os.environ.get("AZURE_ENCRYPTION_KEY")
    if not text and of_machine and not is_azure:  # each request shows it; without it rows would rest unsealed
        raise ValueError("AZURE_ENCRYPTION_KEY goes to Azure's own hosts alone: another endpoint wants encryption-key")
    if not (text := text or of_machine):
        return None
    key = text.encode()
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode()
    return CustomerProvidedEncryptionKey(base64.b64encode(key).decode(), digest)


def _credential(account: str, options: Mapping[str, str]) -> Any:
    """Return what the URI brings."""
    if token := options.get("sas_token"):
        return token
    key = options.get("account_key")
    return AzureNamedKeyCredential(account, key) if key else None


def _credential_of_machine(account: str) -> Any:
    """Return what is the operator's. A key's signature does not name the host: whoever is asked could send it on."""
    tenant, client, secret = (os.environ.get(name) for name in _PRINCIPAL)
    if tenant and client and secret:
        from azure.identity import ClientSecretCredential

        return ClientSecretCredential(tenant, client, secret)
    if key := os.environ.get("AZURE_STORAGE_KEY"):
        return AzureNamedKeyCredential(account, key)
    from azure.identity import DefaultAzureCredential

    return DefaultAzureCredential()


def _is_passing(error: Exception) -> bool:
    if isinstance(error, HttpResponseError):
        return error.status_code in PASSING
    return isinstance(error, ServiceRequestError | ServiceResponseError)
