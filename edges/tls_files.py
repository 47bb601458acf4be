"""Whether the files of TLS can be used, said before a client library tries them in a thread of its own."""

import ssl

from schemas.errors import ConfigError


def check_tls_files(ca_path: str, cert_path: str, key_path: str, key_password: str = "") -> None:
    """Read PEM files as a client would; empty paths are not asked for.

    Raises:
        ConfigError: one is not readable or no PEM, or the key is not the certificate's, or its password is wrong.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca_path:
            context.load_verify_locations(ca_path)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError("file of a CA cannot be used", key="ssl.ca.location", file=ca_path, reason=error) from error
    try:
        if cert_path:
            # An empty password fails where one is needed; None would ask for it at the terminal.
            context.load_cert_chain(cert_path, key_path, lambda: key_password)
    except (OSError, ValueError) as error:
        where = {"key": "ssl.certificate.location", "file": cert_path, "key_file": key_path}
        raise ConfigError("certificate and key cannot be used", **where, reason=error) from error
