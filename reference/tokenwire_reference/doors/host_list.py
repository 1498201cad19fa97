"""Hosts that an operator permits: a request may make the server contact only these."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

LOOPBACK = ("localhost", "127.0.0.0/8", "::1")
"""The names and addresses of this machine."""


class HostList:
    """A list of host names, addresses and networks. Host names are compared as text, without a DNS lookup."""

    def __init__(self, named: Sequence[str]) -> None:
        networks = {host: _network(host) for host in named}
        self._names = {host.lower() for host, network in networks.items() if network is None}
        self._networks = [network for network in networks.values() if network is not None]

    def __contains__(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host.lower() in self._names
        return any(address in network for network in self._networks)


def _network(host: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(host, strict=False)
    except ValueError:
        return None
