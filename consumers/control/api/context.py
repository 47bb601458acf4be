"""What every route is given: the bus, the namespace, who asks, and the owner, who may be another capture."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Annotated, Protocol
from urllib.parse import quote

from fastapi import Depends, Path, Query, Request, Response

from consumers.control.api.access.credentials import Users
from consumers.control.api.access.errors import ApiError, UnauthorizedError
from consumers.control.api.access.open_answers import Shared
from consumers.control.api.access.origin import Hosts
from consumers.control.api.access.tls import ApiTls
from consumers.control.api.backend import Backend, Scheduling
from consumers.control.api.client import TIMEOUT_S, Answer, ApiClient
from consumers.control.api.errors import ForwardError, NoOwnerError, NotReadyError
from consumers.control.api.metrics import OPENMETRICS
from consumers.control.changefeeds.store import check_id
from schemas.addresses import host_of, is_loopback
from schemas.errors import BusError
from schemas.ids import CaptureId
from schemas.nodes.changefeed import NAMESPACE_DEFAULT
from schemas.nodes.sorter_service import FeedName

FORWARDED_BY = "X-Forwarded-By-Capture"
"""On a request that a capture passes on: it is passed on once, for who gets it was the owner a moment ago."""
OWNER_WAIT_S = 3.0
"""For an owner that may be stuck, where an answer without it is good enough."""
STILL_OWNER_S = 1.0
"""How often one that waits for the owner's answer looks whether it is the owner still. One that is stopped or cut off
answers nobody, and its session ends long before a request's time is over."""
USER_KEY = "tidebus.user"
"""Of the request's scope: set once the door has let it in (:mod:`consumers.control.api.serving.guard`)."""
BODY_KEY = "tidebus.body"
"""Of the request's scope: the body as it came."""


class BusHistory(Protocol):
    """What a capture has seen of the bus since it began. Safe in any thread."""

    def events(self, name: FeedName | None = None) -> Sequence[Mapping[str, object]]:
        """Return what has changed, newest first, of one changefeed where it is named."""
        ...

    def batches(self, name: FeedName) -> Sequence[Mapping[str, object]]:
        """Return a changefeed's newest batches, newest first."""
        ...


class ApiContext:
    """What an app serves from; ``backend`` is None between two ZooKeeper sessions."""

    def __init__(self, tls: ApiTls | None = None, credentials: Users | None = None, hosts: Hosts | None = None) -> None:
        """``credentials``: None lets everybody ask. ``hosts``: names under which this server is asked."""
        self.backend: Backend | None = None
        self.tls, self.credentials, self.hosts = tls or ApiTls(), credentials, hosts or Hosts()
        self.status, self.health = Shared[dict[str, object]](), Shared[None]()
        self.scrapes = {accept: Shared[tuple[bytes, str]]() for accept in ("", OPENMETRICS)}
        """By the type that is asked for; empty: Prometheus' text."""
        self.history: BusHistory | None = None
        """None: nobody keeps one."""
        self.is_closing = False
        """Once the server ends: what it sends without end has to."""


class AnsweredByOwner(Exception):  # noqa: N818 # no error: a way out of FastAPI's dependencies
    """The owner has answered instead of us."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def context_of(request: Request) -> ApiContext:
    """Return what the app serves from."""
    context = request.app.state.context
    assert isinstance(context, ApiContext)
    return context


async def bus_of(request: Request) -> Backend:
    """Return the bus.

    Raises:
        NotReadyError: no session with ZooKeeper.
    """
    backend = context_of(request).backend
    if backend is None:
        raise NotReadyError("this capture has no session with ZooKeeper at the moment")
    return backend


async def namespace_of(
    namespace: Annotated[str, Query(description="of the changefeed")] = "",
    keyspace: Annotated[str, Query(description="TiCDC's newer word for the namespace")] = "",
) -> str:
    """Return the namespace asked for.

    Raises:
        ApiError: a namespace and another keyspace.
        ConfigError: no legal name; it would become part of a path in ZooKeeper.
    """
    if namespace and keyspace and namespace != keyspace:
        raise ApiError("namespace and keyspace are the same thing here; give one of them", key="keyspace")
    name = namespace or keyspace or NAMESPACE_DEFAULT
    check_id("namespace", name)
    return name


async def feed_id_of(changefeed_id: Annotated[str, Path()]) -> str:
    """Return the changefeed that the path names.

    Raises:
        ConfigError: no legal name.
    """
    check_id("changefeed-id", changefeed_id)
    return changefeed_id


async def check_user(request: Request) -> None:
    """Let only requests in that the door has looked at.

    Raises:
        UnauthorizedError: it has not.
    """
    if not request.scope.get(USER_KEY):
        raise UnauthorizedError("nobody has looked who asks")


Bus = Annotated[Backend, Depends(bus_of)]
Namespace = Annotated[str, Depends(namespace_of)]
FeedId = Annotated[str, Depends(feed_id_of)]
User = Depends(check_user)


def scheduling_of(request: Request, bus: Bus) -> Scheduling:
    """Return what the owner can do: ours, or let the owner answer.

    Raises:
        AnsweredByOwner: it did.
        NotReadyError: we are the owner, and have just begun.
        BusError: see :func:`ask_owner`.
    """
    scheduling = bus.scheduling()
    if scheduling is not None:
        return scheduling
    raise AnsweredByOwner(ask_owner(request, bus))


Owner = Annotated[Scheduling, Depends(scheduling_of)]


def ask_owner(request: Request, bus: Backend, timeout_s: float = TIMEOUT_S, *, target: str = "") -> Response:
    """Pass a request on to the owner and return its answer. Waits: not for the event loop.

    ``target``: what is asked for in its stead, in the name of who has sent it; '': the same.

    Raises:
        NotReadyError: we are the owner, and have just begun.
        NoOwnerError: there is none, or it is another by now, or it has gone while it was asked.
        ForwardError: it cannot be asked.
    """
    owner = bus.owner()
    if owner is None:
        raise NoOwnerError("no capture has been elected owner; try again in some seconds")
    if owner == bus.capture.capture_id:
        raise NotReadyError("this capture has just become the owner; try again in some seconds")
    if request.headers.get(FORWARDED_BY):
        raise NoOwnerError("the owner has changed in between; try again", owner=owner)
    address = next((capture.address for capture in bus.captures() if capture.capture_id == owner), None)
    if address is None:
        raise NoOwnerError("the owner has just left; try again in some seconds", owner=owner)
    if not address.rpartition(":")[2].isdecimal():
        raise ForwardError("the owner serves no API; start all captures with --addr", owner=owner, address=address)
    tls = context_of(request).tls
    client = ApiClient(url=f"{'https' if tls.serves else 'http'}://{address}", tls=tls, timeout_s=timeout_s)
    headers: dict[str, str] = {FORWARDED_BY: bus.capture.capture_id}
    if authorization := request.headers.get("Authorization"):
        if not tls.serves and not is_loopback(host_of(address)):
            # Whoever can write the owner's node would be sent the password.
            reason = "a password goes to no other machine in the clear; ask the owner itself, or give captures --cert"
            raise ForwardError(reason, owner=owner, address=address)
        headers["Authorization"] = authorization
    target = target or quote(request.scope["path"]) + (f"?{request.url.query}" if request.url.query else "")
    asked: Future[Answer] = Future()
    what = (request.method, target, request.scope.get(BODY_KEY), headers)
    threading.Thread(target=_ask, args=(asked, client, *what), name="ask-owner", daemon=True).start()
    try:
        answer = _answer(asked, bus, owner)
    except ApiError:
        raise
    except BusError as error:
        raise ForwardError("the owner does not answer", owner=owner, address=address, reason=error) from error
    return Response(answer.body, status_code=answer.status, media_type=answer.content_type)


def _ask(
    asked: "Future[Answer]", client: ApiClient, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
) -> None:
    """Ask, in a thread that nobody has to wait for."""
    try:
        asked.set_result(client.ask(method, target, body, headers))
    except Exception as error:
        asked.set_exception(error)


def _answer(asked: "Future[Answer]", bus: Backend, owner: CaptureId) -> Answer:
    """Wait for the answer as long as whom we have asked is the owner.

    Raises:
        NoOwnerError: it is none any more: it was stopped, or is cut off, and its session has ended.
        BusError: it cannot be asked.
    """
    while True:
        try:
            return asked.result(STILL_OWNER_S)
        except TimeoutError:
            if bus.owner() != owner:
                text = "the owner has gone while it was asked; see what has come of it, and try again"
                raise NoOwnerError(text, owner=owner) from None
