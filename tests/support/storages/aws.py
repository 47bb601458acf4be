"""AWS on loopback, by moto: the server that speaks S3 and Glue, and how its buckets are looked at without a client."""

import http.client
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """The server's address."""
    from moto.server import ThreadedMotoServer  # it takes half a second, and three files of all want it

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def ask_s3(endpoint: str, path: str, method: str = "GET") -> bytes:
    """Ask for a bucket or an object; the server looks at no signature, but wants one."""
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, f"/{path}", headers={"Authorization": "AWS ak:x"})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content
    finally:
        connection.close()


def s3_keys(endpoint: str, bucket: str, prefix: str = "") -> list[str]:
    """Return the keys of a bucket's objects."""
    listed = ElementTree.fromstring(ask_s3(endpoint, f"{bucket}?list-type=2&prefix={prefix}"))
    return [element.text or "" for element in listed.iter() if element.tag.endswith("}Key")]
