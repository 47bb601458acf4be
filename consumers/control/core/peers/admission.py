"""Who may talk as which capture: proofs made with a secret that all captures of a cluster share.

    client -> server    greeting: its nonce, its id, whom it means
    server -> client    challenge, proof(server, client's nonce, challenge, both ids)
    client -> server    epoch, challenge, proof(client, challenge, epoch, both ids), then the stream

A proof is HMAC-SHA256 over length-prefixed fields, so no two sets of fields have the same bytes, and the role is one of
them, so none can be sent back to who made it. The id of the sender is inside: nobody but its holder can be it.

A challenge carries the server's own MAC and its moment, so greetings cost the server no memory; each is good for one
proof. This proves who opens a stream. It does not hide or sign what goes over it afterwards: that is TLS's job.
"""

import hashlib
import hmac
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from schemas.ids import CaptureId

NONCE_BYTES: Final = 16
_MAC_BYTES, _TIME_BYTES = 16, 8
CHALLENGE_BYTES: Final = _TIME_BYTES + NONCE_BYTES + _MAC_BYTES
CHALLENGE_LIFE_MS: Final = 10_000
"""Between greeting and stream; both are sent on one connection that is open already."""


class ProofSide(Enum):
    """Whose proof it is."""

    CLIENT = b"tidebus peer client"
    SERVER = b"tidebus peer server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Who opens a stream and to whom."""

    sender: CaptureId
    receiver: CaptureId


def proof(secret: bytes, role: ProofSide, ends: Ends, *parts: bytes) -> str:
    """Return a proof of knowing the secret, as hexadecimal."""
    fields = (role.value, ends.sender.encode(), ends.receiver.encode(), *parts)
    message = b"".join(len(part).to_bytes(4, "big") + part for part in fields)
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def is_proven(secrets: Sequence[bytes], shown: Collection[str], role: ProofSide, ends: Ends, *parts: bytes) -> bool:
    """Say whether one of the proofs ``shown`` was made with one of the secrets."""
    right = [proof(secret, role, ends, *parts) for secret in secrets]
    return any(hmac.compare_digest(made.encode(), other.encode()) for made in right for other in shown)


class Challenges:
    """A server's; not thread-safe. ``key`` is random and its own; ``now_ms`` is of any clock that does not go back."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._used: dict[bytes, int] = {}
        """Those that were answered rightly, with their ends: only holders of the secret can make it grow."""

    def make(self, nonce: bytes, now_ms: int) -> bytes:
        """Return a challenge; ``nonce`` is random."""
        head = now_ms.to_bytes(_TIME_BYTES, "big") + nonce
        return head + self._mac(head)

    def is_open(self, challenge: bytes, now_ms: int) -> bool:
        """Say whether it is ours, of a moment ago, and not used up."""
        head, mac = challenge[:-_MAC_BYTES], challenge[-_MAC_BYTES:]
        if len(challenge) != CHALLENGE_BYTES or not hmac.compare_digest(mac, self._mac(head)):
            return False
        age_ms = now_ms - int.from_bytes(head[:_TIME_BYTES], "big")
        return 0 <= age_ms <= CHALLENGE_LIFE_MS and challenge not in self._used

    def use_up(self, challenge: bytes, now_ms: int) -> None:
        """Take it for no second stream."""
        self._used = {nonce: end_ms for nonce, end_ms in self._used.items() if end_ms >= now_ms}
        self._used[challenge] = now_ms + CHALLENGE_LIFE_MS

    def _mac(self, head: bytes) -> bytes:
        return hmac.new(self._key, head, hashlib.sha256).digest()[:_MAC_BYTES]


def names_host(shown: Collection[str], host: str) -> bool:
    """Say whether one of a certificate's names stands for ``host``; ``*.`` stands for one label, as for servers."""
    host = host.lower().rstrip(".")
    rest = host.partition(".")[2]
    return any(
        name == host or (name.startswith("*.") and "." in rest and name[2:] == rest)
        for name in (shown_name.lower().rstrip(".") for shown_name in shown)
    )
