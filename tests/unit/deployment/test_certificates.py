"""Certificates of our own CA, as the strictest client looks at them."""

import ssl
from pathlib import Path

import pytest

from compose.stack.secure.certificates import Authority


@pytest.mark.parametrize("is_strict", [False, True])
def test_certificate_of_our_ca_passes_the_check_of_every_python(tmp_path: Path, is_strict: bool) -> None:
    """From 3.13 on :func:`ssl.create_default_context` asks for RFC 5280's letter."""
    authority = Authority(tmp_path)
    pair = authority.issue("server", hosts=("127.0.0.1", "localhost"))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pair.cert, pair.key)
    asking = ssl.create_default_context(cafile=authority.path)
    if is_strict:
        asking.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asking.wrap_bio(back, there, server_hostname="localhost")
    server = serving.wrap_bio(there, back, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    server.do_handshake()
    assert client.getpeercert()
