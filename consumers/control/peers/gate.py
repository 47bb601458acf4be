"""The door of the connections between captures: nothing of a stream is read before it is known whose it is.

Everything is in gRPC's headers, which are at most 8 KiB: a server that has not let somebody in reads no message, keeps
no thread and remembers nothing. The pure half is :mod:`consumers.control.core.peers.admission`.
"""

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import grpc

from consumers.control.core.peers.admission import (
    NONCE_BYTES,
    Challenges,
    Ends,
    ProofSide,
    is_proven,
    names_host,
    proof,
)
from consumers.control.peers.errors import PeerNotAuthenticatedError
from schemas.addresses import host_of
from schemas.ids import CaptureId

SENDER, RECEIVER, EPOCH = "tidebus-sender", "tidebus-receiver", "tidebus-epoch"
GREETING, CHALLENGE, PROOF = "tidebus-greeting", "tidebus-challenge", "tidebus-proof"
GREETING_TIMEOUT_S: Final = 10.0
SECRETS_MAX: Final = 8
"""Proofs in one header: those of a server with as many secrets."""
Headers = tuple[tuple[str, str], ...]


class Gate:
    """A server's; safe to use from any thread."""

    def __init__(
        self,
        me: CaptureId,
        *,
        cluster_secrets: Sequence[bytes] = (),
        is_tls: bool = False,
        allowed_cn: Collection[str] = (),
        address_of: Callable[[CaptureId], str] = lambda capture: "",
    ) -> None:
        """Ask for a proof of one of ``cluster_secrets``, if there are any.

        With ``is_tls`` whoever connects has shown a certificate that the CA has signed: its common name must be among
        ``allowed_cn``; where that is empty one of its names must be the host at which ``address_of`` the sender is.
        """
        self._me, self._secrets = me, tuple(cluster_secrets)
        self._is_tls, self._allowed_cn, self._address_of = is_tls, frozenset(allowed_cn), address_of
        self._lock = threading.Lock()
        self._challenges = Challenges(secrets.token_bytes(32))

    def answer(self, context: grpc.ServicerContext) -> bool:
        """Answer a greeting by a challenge; return whether this was one, and the stream is over."""
        headers = _headers(context.invocation_metadata())
        if GREETING not in headers or not self._secrets:
            return False
        ends = Ends(sender=CaptureId(headers.get(SENDER, "")), receiver=self._me)
        with self._lock:
            challenge = self._challenges.make(secrets.token_bytes(NONCE_BYTES), _now_ms())
        greeting = headers[GREETING].encode()
        proofs = [proof(secret, ProofSide.SERVER, ends, greeting, challenge) for secret in self._secrets[:SECRETS_MAX]]
        context.send_initial_metadata(((CHALLENGE, challenge.hex()), (PROOF, ",".join(proofs))))
        return True

    def refusal(self, context: grpc.ServicerContext) -> str:
        """Return why this stream is not let in, before anything of it is read; '' if it is.

        Whose it is by its headers is for :meth:`belongs` to hold its first packet against.
        """
        headers = _headers(context.invocation_metadata())
        if self._secrets and (refusal := self._unproven(headers)):
            return refusal
        if self._is_tls:
            return self._wrong_name(CaptureId(headers.get(SENDER, "")), cast(Any, context.auth_context()))
        return ""

    def belongs(self, context: grpc.ServicerContext, sender: str, epoch: int) -> bool:
        """Say whether the first packet of a stream that was let in is by whom the stream's headers name."""
        headers = _headers(context.invocation_metadata())
        if not self._secrets and not self._is_tls:
            return True
        return headers.get(SENDER) == sender and (not self._secrets or headers.get(EPOCH) == str(epoch))

    def _unproven(self, headers: Mapping[str, str]) -> str:
        try:
            challenge = bytes.fromhex(headers.get(CHALLENGE, ""))
        except ValueError:
            challenge = b""
        if not challenge or PROOF not in headers:
            return "this capture asks for a proof of the cluster's secret; give all of them --cluster-secret-file"
        ends, epoch = Ends(sender=CaptureId(headers.get(SENDER, "")), receiver=self._me), headers.get(EPOCH, "")
        with self._lock:
            if not self._challenges.is_open(challenge, _now_ms()):
                return "the proof is of no challenge that was made a moment ago"
            shown = (headers[PROOF],)
            if not is_proven(self._secrets, shown, ProofSide.CLIENT, ends, challenge, epoch.encode()):
                return "the proof is not of this cluster's secret"
            self._challenges.use_up(challenge, _now_ms())
        return ""

    def _wrong_name(self, sender: CaptureId, shown: Mapping[str, Sequence[bytes]]) -> str:
        common = _texts(shown.get("x509_common_name", ()))
        if self._allowed_cn:
            if common & self._allowed_cn:
                return ""
            return f"common name is {', '.join(sorted(common)) or 'none'}, allowed: {_listed(self._allowed_cn)}"
        address = self._address_of(sender)
        if not address:
            return f"no capture of the id {sender[:50] or 'that is not given'} is known here yet"
        names = _texts(shown.get("x509_subject_alternative_name", ())) or common
        if names_host(names, host_of(address)):
            return ""
        return f"the certificate is for {_listed(names) or 'nobody'}, and the capture is at {host_of(address)}"


def stream_headers(
    greet: Callable[[Headers], Any], ends: Ends, epoch: int, cluster_secrets: Sequence[bytes] = ()
) -> Headers:
    """Return the headers of a stream; with a secret ``greet`` first asks the server for a challenge, with headers.

    Raises:
        PeerNotAuthenticatedError: the server does not prove that it knows the secret, too.
        grpc.RpcError: it does not answer.
    """
    own: Headers = ((SENDER, ends.sender), (RECEIVER, ends.receiver), (EPOCH, str(epoch)))
    if not cluster_secrets:
        return own
    greeting = secrets.token_hex(NONCE_BYTES)
    answer = _headers(greet((*own, (GREETING, greeting))).initial_metadata())
    try:
        challenge = bytes.fromhex(answer.get(CHALLENGE, ""))
    except ValueError:
        challenge = b""
    shown = answer.get(PROOF, "").split(",")[:SECRETS_MAX]
    if not challenge or not is_proven(cluster_secrets, shown, ProofSide.SERVER, ends, greeting.encode(), challenge):
        raise PeerNotAuthenticatedError(
            "a peer does not prove that it knows the cluster's secret; give all captures the same file",
            peer=ends.receiver,
        )
    own_proof = proof(cluster_secrets[0], ProofSide.CLIENT, ends, challenge, str(epoch).encode())
    return (*own, (CHALLENGE, challenge.hex()), (PROOF, own_proof))


def _headers(metadata: Any) -> dict[str, str]:
    return {str(key): value for key, value in metadata or () if isinstance(value, str)}


def _texts(names: Collection[bytes] | Iterator[bytes]) -> set[str]:
    return {name.decode(errors="replace") for name in names}


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
