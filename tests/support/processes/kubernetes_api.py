"""Kubernetes' API as far as Spark's driver asks it: what is posted is kept and shown, and nothing runs.

Pods stay pending for ever. Of Kubernetes' API reference (v1): paths, lists, statuses, a watch as a stream of lines.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = {"pods": "Pod", "configmaps": "ConfigMap", "persistentvolumeclaims": "PersistentVolumeClaim"}


@dataclass
class KubernetesApi:
    """What was asked of it."""

    address: str = ""
    objects: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    """By namespace, resource and name."""
    verbs: set[tuple[str, str]] = field(default_factory=set)
    """Of each request: the resource, and the verb that a Role must give for it."""
    unknown: list[str] = field(default_factory=list)
    """Requests that it has no answer for."""
    ended: threading.Event = field(default_factory=threading.Event)

    def add(self, namespace: str, resource: str, made: dict[str, Any]) -> dict[str, Any]:
        """Keep an object, as if it had been posted; return it as the API shows it."""
        head = {"kind": KINDS[resource], "apiVersion": "v1"}
        identity = {"uid": f"uid-{len(self.objects)}", "namespace": namespace, "resourceVersion": "1"}
        shown = {**head, **made, "metadata": {**made["metadata"], **identity}}
        self.objects[namespace, resource, made["metadata"]["name"]] = shown
        return shown

    def posted(self, resource: str) -> list[dict[str, Any]]:
        """Return what there is of a resource."""
        return [body for (_, each, _), body in list(self.objects.items()) if each == resource]


@contextmanager
def kubernetes_api() -> Iterator[KubernetesApi]:
    """Serve it on loopback."""
    api = KubernetesApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            encoded = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            match url.path.strip("/").split("/"):
                case ["api", "v1", "namespaces", namespace, resource, *name] if resource in KINDS and len(name) < 2:
                    self._about(namespace, resource, "".join(name), parse_qs(url.query), body)
                case _:
                    api.unknown.append(f"{self.command} {self.path}")
                    self._answer(404, _status("NotFound", 404))

        def _about(self, namespace: str, resource: str, name: str, query: dict[str, list[str]], body: bytes) -> None:
            watches = query.get("watch") == ["true"]
            api.verbs.add((resource, _verb(self.command, name, watches=watches)))
            if watches:
                self._watch()
            elif self.command == "POST":
                self._answer(201, api.add(namespace, resource, json.loads(body)))
            elif self.command == "GET" and not name:
                listed = [made for key, made in list(api.objects.items()) if key[:2] == (namespace, resource)]
                head = {"kind": f"{KINDS[resource]}List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
                self._answer(200, {**head, "items": listed})
            elif self.command == "GET" and (namespace, resource, name) in api.objects:
                self._answer(200, api.objects[namespace, resource, name])
            elif self.command == "DELETE":
                self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
            else:
                self._answer(404, _status("NotFound", 404))

        def _watch(self) -> None:
            """Refuse a web socket, after which the client takes a stream; no event comes in it."""
            if self.headers.get("Upgrade"):
                self._answer(503, _status("ServiceUnavailable", 503))
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            self.wfile.flush()
            api.ended.wait()

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815 # http.server's names

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _verb(command: str, name: str, *, watches: bool) -> str:
    if command == "GET":
        return "watch" if watches else "get" if name else "list"
    return {"POST": "create", "DELETE": "delete" if name else "deletecollection"}[command]


def _status(reason: str, code: int) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
