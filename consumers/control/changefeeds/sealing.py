"""Changefeeds' settings that rest in the clear or under a former key, sealed once an operator has said they are his.

No server is asked: a capture that has a key does not read such nodes, so it could not tell of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kazoo.exceptions import NoNodeError

from edges.secrets import Keyring
from edges.zookeeper.nodes import read_node, replace_node
from edges.zookeeper.session import Session
from schemas.errors import ConfigError
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths


def not_sealed(session: Session, paths: ZkPaths, keyring: Keyring) -> list[ChangefeedInfo]:
    """Return the changefeeds whose nodes are not sealed by the first key.

    Raises:
        ConfigError: there is no key.
        SecretKeyError: one is sealed, and no key opens it.
        BusError: ZooKeeper failed, or a node does not decode.
    """
    return [info for _, _, info in _to_seal(session, _node_paths(session, paths), keyring)]


def seal(session: Session, paths: ZkPaths, keyring: Keyring, shown: Sequence[ChangefeedInfo]) -> int:
    """Seal the settings that were ``shown``, by the first key; return how many there were to seal.

    Settings that are others by now stay as they are. A changefeed that runs begins a new run, as after an update.

    Raises:
        ConfigError, SecretKeyError, BusError: see :func:`not_sealed`.
    """
    sealed = 0
    for path, version, info in _to_seal(session, _node_paths(session, paths), keyring):
        # Epoch and wanted state are the owner's and the API's; where the rows go is what has been agreed to.
        if any(_settings(info) == _settings(agreed) for agreed in shown):
            with session.requests("sealing a changefeed's settings") as client:
                sealed += replace_node(client, path, keyring.encode(info), version) is not None
    return sealed


def _to_seal(
    session: Session, node_paths: Sequence[str], keyring: Keyring
) -> Iterator[tuple[str, int, ChangefeedInfo]]:
    if not keyring.keys:
        raise ConfigError("there is no key to seal by; give --secret-key-file", key="secret-key-file")
    lenient = replace(keyring, accepts_unsealed=True)
    for path in node_paths:
        with session.requests("reading a changefeed") as client:
            node = read_node(client, path)
        if node is not None and not keyring.has_sealed(node[0]):
            yield path, int(node[1].version), lenient.decode(node[0])


def _node_paths(session: Session, paths: ZkPaths) -> list[str]:
    with session.requests("listing changefeeds") as client:
        try:
            namespaces = sorted(client.get_children(paths.changefeeds))
        except NoNodeError:
            return []
        return [
            paths.changefeed_info(namespace, name)
            for namespace in namespaces
            for name in sorted(client.get_children(f"{paths.changefeeds}/{namespace}"))
        ]


def _settings(info: ChangefeedInfo) -> tuple[object, ...]:
    return info.namespace, info.changefeed_id, info.upstream, info.sink_uri, info.config
