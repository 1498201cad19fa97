"""Network addresses of servers. An address has the host, the port, and a flag for TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from tokenwire.usage_error import UsageError
from tokenwire.wire.redaction import redact_url

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Address:
    """The address of the target server, or an address to listen on."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def listening(cls, words: str) -> Self:
        """Parse `HOST:PORT`; port 0 means any free port. Raises UsageError for other text."""
        host, colon, port = words.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise UsageError(
                f"{words!r} is not an address to listen on; write HOST:PORT, as in 127.0.0.1:8080"
            )
        return cls(host.strip("[]"), int(port))

    @classmethod
    def of_target(cls, url: str) -> Self:
        """Return the address of a server from its URL. Raises UsageError for any other text, including a URL
        with a path.
        """
        shown = redact_url(url)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{shown!r} is not a URL: {error}; write http://host:port") from error
        if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
            raise UsageError(f"{shown!r} is not the URL of a server; write http://host:port")
        if parts.path not in {"", "/"} or parts.query or parts.fragment:
            raise UsageError(
                f"{shown!r} has a path, but requests have paths of their own; write only http://host:port"
            )
        return cls(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https")
