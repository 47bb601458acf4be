"""How Kafka and ZooKeeper are locked down: settings of the servers, and the users and rights that a broker is given.

Sources: Kafka's security documentation (listeners, PEM stores, StandardAuthorizer), ZooKeeper's administrator's guide.
"""

import socket
import ssl

from compose.ports import LOOPBACK
from compose.stack.secure.acls import acls, admit
from compose.stack.secure.folder import MECHANISM, ROLES, StackSecrets
from edges.kafka.clients import kafka_admin

_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def kafka_settings(secrets: StackSecrets, port: int, controller_port: int, admin_port: int) -> list[str]:
    """Return lines of server.properties: SASL over TLS for all, certificates for the broker itself and the stack."""
    listeners = {
        "CLIENT": f"{LOOPBACK}:{port}",
        "INTERNAL": f"{LOOPBACK}:{admin_port}",
        "CONTROLLER": f"{LOOPBACK}:{controller_port}",
    }
    return [
        "listeners=" + ",".join(f"{name}://{address}" for name, address in listeners.items()),
        f"advertised.listeners=CLIENT://{listeners['CLIENT']},INTERNAL://{listeners['INTERNAL']}",
        "listener.security.protocol.map=CLIENT:SASL_SSL,INTERNAL:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name=INTERNAL",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={secrets.java_key_store('kafka')}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={secrets.ca_path}",
        "listener.name.internal.ssl.client.auth=required",
        "listener.name.controller.ssl.client.auth=required",
        "ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        f"listener.name.client.sasl.enabled.mechanisms={MECHANISM}",
        f"listener.name.client.{MECHANISM.lower()}.sasl.jaas.config={_SCRAM}",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:kafka;User:tidebus-operator",
        "allow.everyone.if.no.acl.found=false",
    ]


def admin_config(secrets: StackSecrets, admin_port: int) -> dict[str, str | int]:
    """Return a client's settings with all rights, by the operator's certificate on the broker's own listener."""
    return {
        "bootstrap.servers": f"{LOOPBACK}:{admin_port}",
        "security.protocol": "SSL",
        "ssl.ca.location": secrets.ca_path,
        "ssl.certificate.location": secrets.operator.cert,
        "ssl.key.location": secrets.operator.key,
        "log_level": 0,
    }


def admit_roles(secrets: StackSecrets, admin_port: int) -> None:
    """Give a broker the users of all roles, and their rights. Giving them again changes nothing but passwords.

    Raises:
        KafkaException: it did not take them.
    """
    admit(kafka_admin(admin_config(secrets, admin_port)), {role: secrets.password(role) for role in ROLES}, acls())


def zookeeper_settings(secrets: StackSecrets, port: int) -> str:
    """Return lines of zoo.cfg: TLS only, for clients whose certificate our CA has signed."""
    return "\n".join(
        [
            f"secureClientPort={port}",
            f"secureClientPortAddress={LOOPBACK}",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            "sslQuorum=false",
            "ssl.clientAuth=need",
            "ssl.hostnameVerification=false",  # of clients, whose certificates name no host; ours check the server's
            "ssl.keyStore.type=PEM",
            f"ssl.keyStore.location={secrets.java_key_store('zookeeper')}",
            "ssl.trustStore.type=PEM",
            f"ssl.trustStore.location={secrets.ca_path}",
            "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
            "",
        ]
    )


def zookeeper_says_ok(secrets: StackSecrets, port: int) -> bool:
    """Ask a locked-down ZooKeeper by its own word for it."""
    context = ssl.create_default_context(cafile=secrets.ca_path)
    context.load_cert_chain(secrets.captures.cert, secrets.captures.key)
    try:
        with (
            socket.create_connection((LOOPBACK, port), timeout=2.0) as wire,
            context.wrap_socket(wire, server_hostname=LOOPBACK) as secured,
        ):
            secured.sendall(b"ruok")
            return secured.recv(16) == b"imok"
    except OSError:
        return False
