"""Certificates for tests, made on the spot: a CA, and what it signs."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key."""

    cert: str
    key: str


class Authority:
    """A CA with its files in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = _certificate(self._name, self._name, self._key.public_key(), days=(-1, 30), ca=True).sign(
            self._key, hashes.SHA256()
        )
        self.path = str(folder / f"{name}.pem")
        Path(self.path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, common_name: str, *, days: tuple[int, int] = (-1, 30), hosts: tuple[str, ...] = ("127.0.0.1",)
    ) -> Pair:
        """Sign a certificate valid from and to ``days`` from now, for IP addresses ``hosts``."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = _certificate(_named(common_name), self._name, key.public_key(), days=days, ca=False).add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host)) for host in hosts]), critical=False
        )
        pair = Pair(str(self._folder / f"{common_name}.pem"), str(self._folder / f"{common_name}-key.pem"))
        certificate = built.sign(self._key, hashes.SHA256())
        Path(pair.cert).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        Path(pair.key).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: tuple[int, int], ca: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
