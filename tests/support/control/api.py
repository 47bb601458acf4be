"""A client of the API's app, without a socket."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.testclient import TestClient

from consumers.control.api.access.credentials import Credentials
from consumers.control.api.backend import Backend
from consumers.control.api.context import ApiContext
from consumers.control.api.serving.app import create_app
from consumers.control.console.routes import ROUTERS


class Api:
    """Asks an app that serves from ``bus``; None: it has no session."""

    def __init__(self, bus: Backend | None, credentials: Credentials | None = None) -> None:
        self.context = ApiContext(credentials=credentials)
        self.context.backend = bus
        self.http = TestClient(create_app(self.context, ROUTERS), "http://127.0.0.1:8300", follow_redirects=False)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Return status and body of an answer, which is read as JSON if there is any."""
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        answer = self.http.request(method, path, content=content, headers=headers)
        return answer.status_code, answer.json() if answer.content else None

    def v2(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask for a path of version 2."""
        return self.ask(method, f"/api/v2{path}", body)
