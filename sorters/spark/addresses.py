"""Where a session's driver listens: its UI on the loopback address, the rest where executors reach it.

Spark binds its UI to the address that the environment has in ``SPARK_LOCAL_IP``, else to all of the machine's, and
takes the driver's own name from the same variable. So that is loopback, and the driver's name is said by itself.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping

from schemas.errors import Action, BusError

DRIVER_HOST = "spark.driver.host"
LOCAL_IP_ENV, PUBLIC_NAME_ENV = "SPARK_LOCAL_IP", "SPARK_PUBLIC_DNS"
"""Where Spark's UI listens, and as what it is shown."""
LOOPBACK = "127.0.0.1"
_FAR_AWAY = "192.0.2.1"
"""Of TEST-NET-1, where nobody is: the way there is the default route."""
_HOST = re.compile(r"^(?:spark://|k8s://(?:https?://)?)(?P<host>\[[^]]+\]|[^:/,]+)")


class DriverHostError(BusError):
    """No address is known by which executors would reach the driver."""

    code, action = "sorter.spark_driver_host", Action.STOP_CHANGEFEED


def driver_host(master: str, environment: Mapping[str, str]) -> str:
    """Return the address under which executors find the driver: that of this machine on the way to the master.

    An address in ``SPARK_LOCAL_IP`` that is not loopback is somebody's wish, and goes before.

    Raises:
        DriverHostError: there is no way.
    """
    asked_for = environment.get(LOCAL_IP_ENV, "")
    if master.startswith("local"):
        return LOOPBACK
    if asked_for and not _is_loopback(asked_for):
        return asked_for
    known = _HOST.match(master)
    host = known["host"].strip("[]") if known else _FAR_AWAY
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as to_master:
            to_master.connect(address)  # sends nothing
            return str(to_master.getsockname()[0])
    except OSError as error:
        raise DriverHostError(
            f"no address of this machine is known by which executors reach the driver: name it by {DRIVER_HOST}",
            master=master,
            host=host,
            reason=error,
        ) from error


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
