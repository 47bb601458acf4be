"""Pins: which sorter service a user wants a changefeed on. One node, ``pins``, JSON, changed by compare-and-set.

    {"default/orders": [17179869213, "@10.0.0.7:8300"]}       by changefeed: creation zxid of its info, service

The service is named by its id, or by ``@`` and the address of the capture that runs it: a capture's service has another
id after each start of the capture. A pin stays through owners, and through the death of service and capture: it is
obeyed whenever its service lives. The pin of a changefeed that was removed is nobody's, also where another of the same
name is created.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from consumers.control.changefeeds.store import no_such_changefeed
from edges.zookeeper.session import Session
from schemas.errors import CorruptDataError
from schemas.json_text import read_int, read_json, read_text
from schemas.nodes.changefeed import ZkPaths
from schemas.nodes.sorter_service import FeedName

log = logging.getLogger(__name__)

NODE_BYTES_MAX: Final = 512 * 1024
_AT: Final = "@"


@dataclass(frozen=True, slots=True)
class Pin:
    """Where one changefeed is wanted."""

    created_zxid: int
    service: str
    """Its id, or what :func:`service_at` returns."""


Pins = Mapping[FeedName, Pin]


def pins_path(paths: ZkPaths) -> str:
    """Return where the pins are."""
    return f"{paths.root}/pins"


def service_at(address: str) -> str:
    """Return what names the service of the capture at an address, whatever id that has."""
    return f"{_AT}{address}"


def service_of(pin: Pin, services: Mapping[str, str]) -> str:
    """Return the id of the service that a pin means now, or a text that is no service's.

    Args:
        services: by the address of the capture that runs each.
    """
    if not pin.service.startswith(_AT):
        return pin.service
    return services.get(pin.service.removeprefix(_AT), pin.service)


def encode_pins(pins: Pins) -> bytes:
    """Return the node's bytes."""
    return json.dumps({"/".join(name): [pin.created_zxid, pin.service] for name, pin in sorted(pins.items())}).encode()


def decode_pins(node: bytes) -> dict[FeedName, Pin]:
    """Read the node.

    Raises:
        CorruptDataError: it holds no pins.
    """
    if len(node) > NODE_BYTES_MAX:
        raise CorruptDataError("node of pins is too large", bytes=len(node), bytes_max=NODE_BYTES_MAX)
    try:
        raw = read_json(node or b"{}")
        return {_name(key): Pin(read_int(zxid), read_text(service)) for key, (zxid, service) in raw.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptDataError("node of pins does not decode", node=node[:200], reason=repr(error)) from error


def pin_changefeed(session: Session, paths: ZkPaths, name: FeedName, service: str) -> None:
    """Keep a changefeed on a service (see :class:`Pin`); '': on none in particular.

    A node that does not decode is written anew: the owner obeys none of it, and no other verb would mend it.

    Raises:
        ChangefeedNotFoundError: there is none.
        BusError: ZooKeeper failed.
    """
    path, info_path = pins_path(paths), paths.changefeed_info(*name)
    with session.requests("pinning a changefeed") as client:
        while True:
            info = client.exists(info_path)
            if info is None:
                raise no_such_changefeed(name[1], name[0])
            try:
                node, stat = client.get(path)
            except NoNodeError:
                node, stat = b"{}", None
            pins = _known_pins(path, node)
            pins.pop(name, None)
            if service:
                pins[name] = Pin(int(info.czxid), service)
            try:
                if stat is None:
                    client.create(path, encode_pins(pins), makepath=True)
                else:
                    client.set(path, encode_pins(pins), version=stat.version)
            except (BadVersionError, NodeExistsError, NoNodeError):
                continue  # another has pinned meanwhile
            return


def _known_pins(path: str, node: bytes) -> dict[FeedName, Pin]:
    try:
        return decode_pins(node)
    except CorruptDataError as error:
        extra = {"path": path, "code": error.code, "error": str(error)}
        log.error("pins are not readable; all but the one that is asked for now are forgotten", extra=extra)
        return {}


def _name(key: str) -> FeedName:
    namespace, separator, changefeed_id = key.partition("/")
    if not (separator and namespace and changefeed_id):
        raise ValueError(f"{key!r} names no changefeed")
    return namespace, changefeed_id
