"""ZooKeeper's nodes of a cluster as texts for people, without secrets; and all of them removed."""

import json
from collections.abc import Iterator, Sequence

from kazoo.exceptions import NoNodeError

from edges.zookeeper.client import ZooKeeperClient
from edges.zookeeper.session import Session
from schemas.masking import is_secret_name, is_uri_name, mask_setting, mask_text, mask_uri


def shown_nodes(session: Session, root: str) -> Sequence[tuple[str, str]]:
    """Return path and text of each node below ``root``, by path; what has no text is left out.

    Raises:
        BusError: ZooKeeper failed.
    """
    with session.requests("reading the metadata") as client:
        return sorted(_below(client, root))


def delete_nodes(session: Session, root: str, *, keep: str) -> bool:
    """Delete a cluster's nodes but the one at ``keep``, a child of ``root``; tell whether there were any.

    Raises:
        BusError: ZooKeeper failed.
    """
    with session.requests("deleting the metadata") as client:
        try:
            paths = [f"{root}/{name}" for name in client.get_children(root)]
        except NoNodeError:
            return False
        for path in paths:
            if path != keep:
                client.delete(path, recursive=True)
    return bool(set(paths) - {keep})


def masked(value: object, name: str = "") -> object:
    """Return a value of JSON without its secrets: stars for passwords, and in URIs."""
    if isinstance(value, dict):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, name) for item in value]
    if isinstance(value, str):
        if is_secret_name(name) or is_uri_name(name):
            return mask_setting(name, value)
        # A node's other texts are of any kind: a URI may stand in one, such as in an error, or it is one whose password
        # holds a space. In one without a URI, such as a rule, "?" and "#" are letters.
        return mask_uri(mask_text(value)) if "://" in value else value
    return value


def _below(client: ZooKeeperClient, path: str) -> Iterator[tuple[str, str]]:
    try:
        value, _ = client.get(path)
        names = client.get_children(path)
    except NoNodeError:  # gone between two calls
        return
    if value:
        yield path, _shown(value)
    for name in names:
        yield from _below(client, f"{path}/{name}")


def _shown(value: bytes) -> str:
    text = value.decode(errors="replace")
    try:
        return json.dumps(masked(json.loads(text)))
    except ValueError:
        return text
