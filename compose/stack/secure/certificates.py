"""Certificates made on the spot: a CA of our own, and what it signs. For local stacks, deployments and tests."""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS_VALID = 30
_LOOPBACK = ("127.0.0.1",)
_PEM = serialization.Encoding.PEM
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""Of a CA."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Paths of a certificate and its key, both PEM; the key is PKCS #8, which Java reads too."""

    cert: str
    key: str


class CertificateAuthority:
    """A CA whose key is in memory only: nothing can be signed once this process is gone."""

    def __init__(self, name: str = "ca", days_valid: int = DAYS_VALID) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        own = self._key.public_key()
        built = _certificate(self._name, self._name, own, own, days=(-1, days_valid)).add_extension(
            _SIGNS, critical=True
        )
        self.pem = built.sign(self._key, hashes.SHA256()).public_bytes(_PEM)

    def sign(self, common_name: str, hosts: tuple[str, ...], days: tuple[int, int]) -> tuple[bytes, bytes]:
        """Return certificate and key as PEM, valid from and to ``days`` from now, for IP addresses and host names."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        built = _certificate(_named(common_name), self._name, key.public_key(), self._key.public_key(), days=days)
        certificate = built.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        plain = serialization.NoEncryption()
        return (
            certificate.public_bytes(_PEM),
            key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain),
        )


class Authority(CertificateAuthority):
    """A CA that writes what it signs into a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        super().__init__(name)
        self._folder = folder
        self.path = str(folder / f"{name}.pem")
        Path(self.path).write_bytes(self.pem)

    def issue(
        self, common_name: str, *, days: tuple[int, int] = (-1, DAYS_VALID), hosts: tuple[str, ...] = _LOOPBACK
    ) -> Pair:
        """Sign a certificate and write it beside its key; see :meth:`sign`."""
        pair = Pair(str(self._folder / f"{common_name}.pem"), str(self._folder / f"{common_name}-key.pem"))
        certificate, key = self.sign(common_name, hosts, days)
        Path(pair.cert).write_bytes(certificate)
        write_private(Path(pair.key), key)
        return pair


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, from the first byte on."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    *,
    days: tuple[int, int],
) -> x509.CertificateBuilder:
    """Return one with what RFC 5280 wants, which OpenSSL's strict check (Python's default from 3.13 on) insists on."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=key == issuer_key, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )
