"""What may be wrong with a peer's port."""

from schemas.errors import Action, BusError


class PeerPortError(BusError):
    """The port for other captures cannot be listened on; a capture that ends may be holding it for a moment."""

    code, action = "peers.port_unavailable", Action.RETRY


class PeerAddressError(BusError):
    """Other captures could not use the address that this one would tell them."""

    code, action = "peers.illegal_address", Action.STOP_CHANGEFEED


class PeerNotAuthenticatedError(BusError):
    """Captures that others reach over the network must know each other: by certificates, or by a cluster's secret."""

    code, action = "peers.not_authenticated", Action.STOP_CHANGEFEED
