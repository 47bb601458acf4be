"""Google Cloud Storage by its JSON API, with TiCDC's parameters; who asks, Google's own library says.

Credentials are the URI's file, else Google's usual search: ``GOOGLE_APPLICATION_CREDENTIALS``, what ``gcloud`` has
left, the machine's service account. They go to Google's own hosts alone; another one is asked by nobody.

API: objects insert (``uploadType=multipart``, ``resumable``), get (``alt=media``), list, delete.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import requests
from google.auth.transport.requests import AuthorizedSession

from edges.storages.google_credentials import FULL_CONTROL, READ_WRITE, credentials
from edges.storages.objects import ANSWER_S, CONNECT_S, PART_BYTES, PASSING, Check, tried
from edges.storages.sessions import prepare
from schemas.config.sink.storage_hosts import is_of_cloud

HOST = "https://storage.googleapis.com"
_OK, _CREATED, _MORE, _MISSING = 200, 201, 308, 404
_NO_BUCKET = b"bucket does not exist"
_BINARY = "application/octet-stream"


class AnswerError(Exception):
    """Google says no."""

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(f"{status} {content[:300].decode(errors='replace')}")
        self.status = status


@dataclass(frozen=True, slots=True)
class GoogleObjects:
    """See :class:`~edges.storages.objects.Objects`."""

    session: Any
    host: str
    bucket: str
    storage_class: str | None
    predefined_acl: str | None
    removed_at_once: int = 1

    def put(self, key: str, content: bytes, may_show: Check) -> None:
        """See there."""
        if len(content) <= PART_BYTES:
            boundary = secrets.token_hex(16)  # nobody's rows can hold it
            body = _related(boundary, self._about(key), content)
            kind = f"multipart/related; boundary={boundary}"
            tried(lambda: self._insert("multipart", kind, body), _is_passing, may_show)
            return
        begun = json.dumps(self._about(key)).encode()
        answer = tried(lambda: self._insert("resumable", "application/json; charset=UTF-8", begun), _is_passing)
        upload, last = str(answer.headers["Location"]), (len(content) - 1) // PART_BYTES * PART_BYTES
        try:
            for start in range(0, last, PART_BYTES):
                tried(lambda start=start: self._send(upload, content, start), _is_passing)  # type: ignore[misc]
            tried(lambda: self._send(upload, content, last), _is_passing, may_show)
        except BaseException:
            with suppress(Exception):  # one that nobody ends is no object, and gone after a week
                self._ask("DELETE", upload, (499,))
            raise

    def get(self, key: str) -> bytes | None:
        """See there."""
        answer = tried(
            lambda: self._ask("GET", self._object(key), (_OK, _MISSING), params={"alt": "media"}), _is_passing
        )
        if answer.status_code == _MISSING:
            if _NO_BUCKET in answer.content:
                raise AnswerError(_MISSING, answer.content)
            return None
        return bytes(answer.content)

    def find(self, prefix: str) -> list[str]:
        """See there."""
        params = {"fields": "items(name),nextPageToken", **({"prefix": f"{prefix}/"} if prefix else {})}
        url, keys = f"{self.host}/storage/v1/b/{_quoted(self.bucket)}/o", []
        while True:
            asked = dict(params)
            page = tried(lambda asked=asked: self._ask("GET", url, (_OK,), params=asked), _is_passing).json()  # type: ignore[misc]
            keys += [str(item["name"]) for item in page.get("items", ())]
            if not (token := page.get("nextPageToken")):
                return keys
            params["pageToken"] = token

    def remove(self, keys: Sequence[str]) -> None:
        """See there."""
        for key in keys:
            tried(lambda key=key: self._ask("DELETE", self._object(key), (_OK, 204, _MISSING)), _is_passing)  # type: ignore[misc]

    def _about(self, key: str) -> dict[str, str]:
        return {"name": key, **({"storageClass": self.storage_class} if self.storage_class else {})}

    def _object(self, key: str) -> str:
        return f"{self.host}/storage/v1/b/{_quoted(self.bucket)}/o/{_quoted(key)}"

    def _insert(self, upload_type: str, kind: str, body: bytes) -> Any:
        url = f"{self.host}/upload/storage/v1/b/{_quoted(self.bucket)}/o"
        params = {"uploadType": upload_type, **({"predefinedAcl": self.predefined_acl} if self.predefined_acl else {})}
        headers = {"Content-Type": kind, "X-Upload-Content-Type": _BINARY}
        return self._ask("POST", url, (_OK,), params=params, data=body, headers=headers)

    def _send(self, upload: str, content: bytes, start: int) -> None:
        """Send a part; the last one lets the object show."""
        part = content[start : start + PART_BYTES]
        upto, is_last = start + len(part) - 1, start + len(part) == len(content)
        headers = {"Content-Type": _BINARY, "Content-Range": f"bytes {start}-{upto}/{len(content)}"}
        answer = self._ask("PUT", upload, (_OK, _CREATED) if is_last else (_MORE,), data=part, headers=headers)
        if not is_last and answer.headers.get("Range") != f"bytes=0-{upto}":
            raise AnswerError(answer.status_code, b"a part was not taken whole")

    def _ask(self, method: str, url: str, expected: Iterable[int], **more: object) -> Any:
        # 308 is "go on" here, and no other place to go to.
        answer = self.session.request(method, url, timeout=(CONNECT_S, ANSWER_S), allow_redirects=False, **more)
        if answer.status_code not in expected:
            raise AnswerError(answer.status_code, answer.content)
        return answer


def google_objects(bucket: str, options: Mapping[str, str]) -> GoogleObjects:
    """Open a bucket.

    Raises:
        ValueError, OSError, google.auth.exceptions.DefaultCredentialsError: there are no credentials that may be used.
    """
    endpoint, acl = options.get("endpoint", HOST), options.get("predefined_acl")
    session = requests.Session()
    if is_of_cloud("gs", endpoint):
        session = AuthorizedSession(credentials(options.get("credentials_file"), FULL_CONTROL if acl else READ_WRITE))
    prepare(session)
    return GoogleObjects(session, endpoint, bucket, options.get("storage_class"), acl)


def _related(boundary: str, about: Mapping[str, str], content: bytes) -> bytes:
    """Return ``multipart/related``: what the object is called, and its content."""
    head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
    head += f"--{boundary}\r\nContent-Type: {_BINARY}\r\n\r\n"
    return b"".join((head.encode(), content, f"\r\n--{boundary}--\r\n".encode()))


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _is_passing(error: Exception) -> bool:
    if isinstance(error, AnswerError):
        return error.status in PASSING
    return isinstance(error, requests.ConnectionError | requests.Timeout)
