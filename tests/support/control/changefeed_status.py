"""A changefeed's status written by hand, in place of its sorter."""

from kazoo.exceptions import NoNodeError

from consumers.control.changefeeds.store import ChangefeedStore
from schemas.nodes.changefeed import NAMESPACE_DEFAULT, ChangefeedStatus, encode_changefeed_status


def write_status(store: ChangefeedStore, changefeed_id: str, status: ChangefeedStatus) -> None:
    """Write how far it is, whatever was written before."""
    path = store._paths.changefeed_status(NAMESPACE_DEFAULT, changefeed_id)
    with store._session.requests("writing a changefeed's status") as client:
        try:
            client.set(path, encode_changefeed_status(status))
        except NoNodeError:
            client.create(path, encode_changefeed_status(status))
