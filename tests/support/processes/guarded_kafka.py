"""A broker that lets clients in by each way that Kafka knows: TLS, mutual TLS, and SASL by every mechanism."""

import base64
import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from compose.ports import LOOPBACK, free_ports
from compose.stack.children import Child, Nursery
from compose.stack.jars import kafka_jars
from compose.stack.java import find_java
from compose.stack.secure.certificates import Authority

USER, PASSWORD = "bus", 'a "quoted" \\ pass=word;'
"""One that would break a line of JAAS if it were not quoted."""
ADMIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_bus="a \\"quoted\\" \\\\ pass=word;";'
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
LISTENERS = ("OPEN", "TLS", "MUTUAL", "SASL", "CLEAR", "OIDC")
READY_S = 90.0


@dataclass(frozen=True)
class GuardedKafka:
    """Where it listens in which way, and what a client needs."""

    ports: dict[str, int]
    """By listener; OPEN asks for nothing."""
    authority: Authority
    token_url: str
    process: Child
    folder: Path
    """Where it keeps its logs, below ``log``."""

    def servers(self, listener: str) -> str:
        """Return bootstrap servers."""
        return f"{LOOPBACK}:{self.ports[listener]}"

    def wait_ready(self) -> None:
        """Wait until the broker serves."""
        self.process.wait_ready(self._is_ready, READY_S)

    def _is_ready(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.servers("OPEN"), "log_level": 0})
        with contextlib.suppress(Exception):
            return bool(admin.list_topics(timeout=2.0).brokers)
        return False


@contextlib.contextmanager
def guarded_kafka(folder: Path) -> Iterator[GuardedKafka]:
    """Yield a running broker, with the user :data:`USER` by PLAIN and SCRAM."""
    authority = Authority(folder)
    pair = authority.issue("broker")
    store = folder / "broker-store.pem"
    store.write_bytes(Path(pair.key).read_bytes() + Path(pair.cert).read_bytes())
    controller, *ports = free_ports(1 + len(LISTENERS))
    with tokens() as token_url, Nursery() as nursery:
        listening = dict(zip(LISTENERS, ports, strict=True))
        config = folder / "server.properties"
        config.write_text("\n".join(settings(folder, listening, controller, store, authority.path, token_url)))
        java = [str(find_java()), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", ":".join(map(str, kafka_jars()))]
        urls = f"{token_url}/token,{token_url}/keys"
        java.append(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}")
        tool = [*java, "kafka.tools.StorageTool", "format", "-t", "dGlkZWJ1cy1ndWFyZGVkMQ", "-c", str(config)]
        subprocess.run(tool, check=True, capture_output=True, timeout=READY_S)
        broker = nursery.start("kafka", [*java, "kafka.Kafka", str(config)], log=folder / "kafka.log")
        kafka = GuardedKafka(listening, authority, f"{token_url}/token", broker, folder)
        kafka.wait_ready()
        admin = AdminClient({"bootstrap.servers": kafka.servers("OPEN")})
        kinds = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        for kind in kinds:
            user = UserScramCredentialUpsertion(USER, ScramCredentialInfo(kind, 4096), PASSWORD.encode())
            for answer in admin.alter_user_scram_credentials([user]).values():
                answer.result(30)
        yield kafka


def settings(
    folder: Path, ports: dict[str, int], controller: int, store: Path, ca_path: str, token_url: str
) -> list[str]:
    """Return the broker's settings."""
    kinds = {"OPEN": "PLAINTEXT", "TLS": "SSL", "MUTUAL": "SSL", "SASL": "SASL_SSL", "CLEAR": "SASL_PLAINTEXT"}
    kinds |= {"OIDC": "SASL_SSL", "CONTROLLER": "PLAINTEXT"}
    addresses = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())
    sasl = "listener.name.sasl"
    return [
        "process.roles=broker,controller",
        "node.id=1",
        f"controller.quorum.voters=1@{LOOPBACK}:{controller}",
        "controller.listener.names=CONTROLLER",
        f"listeners={addresses},CONTROLLER://{LOOPBACK}:{controller}",
        f"advertised.listeners={addresses}",
        "listener.security.protocol.map=" + ",".join(f"{name}:{kind}" for name, kind in kinds.items()),
        "inter.broker.listener.name=OPEN",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={store}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={ca_path}",
        "listener.name.mutual.ssl.client.auth=required",
        f"{sasl}.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{sasl}.plain.sasl.jaas.config={_escaped(ADMIN)}",
        f"{sasl}.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
        f"{sasl}.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
        f"{sasl}.oauthbearer.sasl.jaas.config={OAUTH}",
        "listener.name.clear.sasl.enabled.mechanisms=PLAIN",
        f"listener.name.clear.plain.sasl.jaas.config={_escaped(ADMIN)}",
        "listener.name.oidc.sasl.enabled.mechanisms=OAUTHBEARER",
        f"listener.name.oidc.oauthbearer.sasl.jaas.config={OAUTH}",
        f"listener.name.oidc.oauthbearer.sasl.server.callback.handler.class={VALIDATOR}",
        f"listener.name.oidc.oauthbearer.sasl.oauthbearer.jwks.endpoint.url={token_url}/keys",
        "listener.name.oidc.oauthbearer.sasl.oauthbearer.expected.audience=kafka",
        f"log.dirs={folder}/log",
        "offsets.topic.replication.factor=1",
        "offsets.topic.num.partitions=1",
        "group.initial.rebalance.delay.ms=0",
        "",
    ]


def _escaped(text: str) -> str:
    """Return a value as a file of Java's properties holds it."""
    return text.replace("\\", "\\\\")


@contextlib.contextmanager
def tokens() -> Iterator[str]:
    """Serve signed tokens to the client ``bus`` with the secret ``s3cret``, and the key that they are checked with."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_numbers()
    numbers = {name: _url64(number.to_bytes(size)) for name, number, size in (("n", public.n, 256), ("e", public.e, 3))}
    keys = {"keys": [{"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", **numbers}]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, keys)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            wanted = "Basic " + base64.b64encode(b"bus:s3cret").decode()
            if self.headers.get("Authorization") != wanted:
                self._answer(401, {"error": "invalid_client"})
                return
            now = int(time.time())
            claims = {"iss": "test", "sub": "bus", "aud": "kafka", "iat": now, "exp": now + 3600, "scope": "kafka"}
            signed = ".".join(_url64(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "1"}, claims))
            signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
            token = f"{signed}.{_url64(signature)}"
            self._answer(200, {"access_token": token, "token_type": "bearer", "expires_in": 3600})

        def _answer(self, status: int, body: Any) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{LOOPBACK}:{server.server_port}"
        server.shutdown()


def _url64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
