"""Network addresses as users write them."""

import ipaddress


def host_of(address: str) -> str:
    """Return the host of ``host:port``, without the brackets of an IPv6 address; '' if there is none."""
    return address.rpartition(":")[0].strip("[]")


def is_ip_address(host: str) -> bool:
    """Say whether ``host`` is an address, and no name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches ``host``. A name other than localhost may resolve to anything: it does not
    count."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
