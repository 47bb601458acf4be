"""A capture's API server: where it listens, who may come in, and what it shows of the capture's settings."""

import logging
from typing import Final

from compose.capture.settings.options import CaptureOptions
from consumers.control.api.access.credentials import CredentialsFile
from consumers.control.api.access.tls import ApiTls
from consumers.control.api.serving.server import ApiServer, listen_address
from consumers.control.console.routes import ROUTERS
from consumers.control.console.watch import HistoryWatch
from schemas.addresses import is_loopback
from schemas.errors import ConfigError

log = logging.getLogger(__name__)

__all__ = ["HistoryWatch", "api_server", "shown_settings"]

ANY_HOST: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 # to refuse it


def api_server(options: CaptureOptions) -> ApiServer:
    """Return a capture's server, which answers 503 until it is given a backend. Its TLS is that to PD and TiKV.

    Raises:
        ConfigError, ApiAddressError, ApiTlsError: it cannot listen so.
    """
    host, _ = listen_address(options.addr)
    if host in ANY_HOST and not options.advertise_addr:
        raise ConfigError("others cannot reach this address; give --advertise-addr", key="addr", got=options.addr)
    tls = options.puller.tls
    shown = ApiTls(
        ca_path=tls.ca_path,
        cert_path=tls.cert_path,
        key_path=tls.key_path,
        allowed_cn=tls.allowed_cn if tls.cert_path else (),
        mtls=options.mtls,
    )
    if options.mtls and not shown.serves:
        raise ConfigError("--mtls needs --ca, --cert and --key", key="mtls")
    users = CredentialsFile(options.credentials) if options.credentials else None
    if not shown.serves and not is_loopback(host):
        if users is not None:
            reason = "passwords would cross the network in the clear; give --cert and --key, or listen on loopback"
            raise ConfigError(reason, key="client-credentials", addr=options.addr)
        log.warning(
            "the API is served to the network in the clear, to everybody; --cert, --mtls and --client-credentials",
            extra={"addr": options.addr, "ca": tls.ca_path or "none", "cert": "none"},
        )
    hosts = (options.advertise_addr, *options.api_hosts)
    return ApiServer(options.addr, tls=shown, credentials=users, hosts=hosts, routers=ROUTERS)


def shown_settings(options: CaptureOptions) -> dict[str, object]:
    """Return what `GET /config` shows: TiCDC's names where it has them."""
    tls = options.puller.tls
    return {
        "addr": options.addr,
        "advertise_addr": options.advertise_addr or options.addr,
        "cluster_id": options.cluster,
        "tz": options.time_zone,
        "upstream": options.upstream,
        "pd": options.pd,
        "kafka": options.kafka.servers,
        "zookeeper": options.zookeeper.servers,
        "schema_registry": options.schema_registry.url,
        "gc_ttl": options.puller.gc_ttl_s,
        "capture_session_ttl": options.session_timeout_s,
        "owner_flush_interval": round(options.reign.tick_s * 1e9),
        "security": {
            "ca_path": tls.ca_path,
            "cert_path": tls.cert_path,
            "key_path": tls.key_path,
            "cert_allowed_cn": list(tls.allowed_cn),
            "mtls": options.mtls,
            "client_user_required": options.credentials is not None,
        },
    }
