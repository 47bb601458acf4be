"""What a capture says of itself to its processors."""

from dataclasses import dataclass, field
from pathlib import Path

from producers.tls import TlsSettings
from schemas.ids import CaptureId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorHome:
    """A capture as its processors know it."""

    capture: CaptureId
    peer_host: str = "127.0.0.1"
    """Where they listen for other processors, each at any free port."""
    advertise_peer_host: str = ""
    """Under which those reach them; empty: ``peer_host``."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    """Secures the streams between processors."""
    cluster_secret_file: Path | None = None
    """What they prove to each other that they know."""

    def arguments(self) -> list[str]:
        """Return the command's options."""
        tls = self.tls
        given = {
            "--capture": self.capture,
            "--peer-host": self.peer_host,
            "--advertise-peer-host": self.advertise_peer_host,
            "--ca": tls.ca_path,
            "--cert": tls.cert_path,
            "--key": tls.key_path,
            "--cert-allowed-cn": ",".join(tls.allowed_cn),
            "--cluster-secret-file": str(self.cluster_secret_file.resolve()) if self.cluster_secret_file else "",
        }
        return [part for option, value in given.items() if value for part in (option, value)]
