"""Redaction: recognize credentials by their names, and replace their values.

- The value of a header or URL parameter whose name is a credential's becomes `[redacted]`. So does the user
  part of a URL in a header.
- If a request sends a value as a credential, the value becomes asterisks wherever the response repeats it: in
  headers, in bodies, and in error details. Offsets, lengths and the division into reads do not change.
- String members with the name of a credential become asterisks as well, in a server's settings and in bodies
  that `tokenwire watch` sees.

The name of a credential contains `auth`, `cookie`, `credential`, `key`, `passw`, `secret`, `session`,
`signature`, `token` or a similar word. Not credentials are counts (`x-tokens-used`, `x-key-count`), longer
words (`tokenizer`, `author`, `keyword`), a server's challenge (`www-authenticate`), and `access-control-*`.

Values with fewer than LEAST_VALUE characters are not searched for. Users send words such as `EMPTY` or `none`
instead of keys, and these words occur in answers. A value is also not found if the server encodes it,
shortens it, or divides it among events.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import quote, quote_plus

from tokenwire.wire.exchange import HttpRequest, Read

REDACTED = "[redacted]"
LEAST_VALUE = 8

Headers = tuple[tuple[str, str], ...]

_CREDENTIAL = re.compile(
    r"auth(?!or(?!i[sz]))|bearer|cookie|credential|jwt|passphrase|passw|secret|session|signature"
    r"|token(?!s|i[sz]|w)|(?<!mon)key(?!board|word)|(?<![a-z])(pwd|sid|sig)(?![a-z])",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"^access-control-|authenticate$"
    r"|(?<![a-z])(cost|count|left|length|limit|max|min|remaining|reset|spend|total|usage|used)s?$",
    re.IGNORECASE,
)
_CREDENTIALS_OF_A_BODY = (
    *(b"api_key", b"api-key", b"apikey", b"private_key", b"authorization", b"cookie", b"credential"),
    *(b"passw", b"secret", b"access_token", b"auth_token", b"bearer_token", b"refresh_token"),
    b"session_token",
)
"""Parts of names, in lower case. `token` and `key` are not among them, because answers contain them as names
of content.
"""

_USERINFO = re.compile(r"(?<=//)[^\s/?#]*@")
_PARAMETER = re.compile(r"(?<=[?&#])([^\s=?&#]+)=([^\s&#<>\"]+)")
_MEMBER = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+){0,32}+)"(\s*+:\s*+")([^"\\]*+(?:\\.[^"\\]*+)*+)', re.DOTALL)
"""Matches a member whose value is a string. A name may have at most 32 escapes.

Without this limit, an unclosed string would take quadratic time.
"""

_REST_OF_A_MEMBER = re.compile(rb'[^"\\]{0,40}"\s{0,9}:\s{0,9}"([^"\\]*+(?:\\.[^"\\]*+)*+)', re.DOTALL)


def names_credential(name: str) -> bool:
    """True if a header, parameter or setting with this name is a credential."""
    return _CREDENTIAL.search(name) is not None and _HARMLESS.search(name) is None


def redact_headers(headers: Headers, secrets: Collection[str] = ()) -> Headers:
    """Return the headers without the values of credentials. `secrets` are further header names in
    lower case.
    """
    return tuple(
        (name, REDACTED if names_credential(name) or name.lower() in secrets else redact_url(value))
        for name, value in headers
    )


def redact_url(text: str) -> str:
    """Return a text whose URLs and paths contain neither users nor credentials."""
    return _PARAMETER.sub(_redacted_parameter, _USERINFO.sub(f"{REDACTED}@", text))


def _redacted_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}={REDACTED}" if names_credential(found[1]) else found[0]


def redact(request: HttpRequest, secrets: Collection[str] = ()) -> HttpRequest:
    """Return the request without credentials in its headers and path. The body does not change.

    `secrets` are the names, in lower case, of further headers with credentials.
    """
    return replace(request, path=redact_url(request.path), headers=redact_headers(request.headers, secrets))


def redact_settings(body: bytes) -> bytes:
    """Mask the strings in a server's settings that are credentials.

    Settings may include keys (SGLang's `/server_info` does). If the body is cut off or not valid JSON, all
    members that can be recognized as credentials are masked.
    """

    def redacted(found: re.Match[bytes]) -> bytes:
        name, colon, value = found.groups()
        return b'"' + name + b'"' + colon + _mask(value) if names_credential(_spelled(name)) else found[0]

    return _MEMBER.sub(redacted, body)


def redact_body(body: bytes) -> bytes:
    """Mask the strings in a request or response body whose names are certainly those of credentials."""
    spans = _credentials(body)
    if not spans:
        return body
    masked = bytearray(body)
    for start, end in spans:
        masked[start:end] = _mask(body[start:end])
    return bytes(masked)


def _credentials(body: bytes) -> list[tuple[int, int]]:
    """Return the byte ranges of credentials in a body.

    The function searches for words without parsing the body, because live traffic waits for the result.
    """
    lower, spans = body.lower(), []
    for word in _CREDENTIALS_OF_A_BODY:
        position = lower.find(word)
        while position >= 0:
            position += len(word)
            if found := _REST_OF_A_MEMBER.match(body, position):
                spans.append(found.span(1))
            position = lower.find(word, position)
    return spans


def _spelled(string: bytes) -> str:
    """Return the value of a JSON string. If the string is invalid, return its text unchanged."""
    text = string.decode("utf-8", "replace")
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text


def _mask(value: bytes) -> bytes:
    return b"*" * len(value)


def _parts(value: str) -> Iterator[str]:
    """Yield the parts of a header's value that a response may repeat: the value, the value without its
    scheme, and each word.
    """
    scheme, _, rest = value.strip().partition(" ")
    rest = rest.strip() or scheme
    yield from (value.strip(), rest)
    for word in re.split(r"[\s;,]+", rest):
        yield from (word.strip('"'), word.partition("=")[2].strip('"'))
    if scheme.lower() == "basic":
        try:
            user = base64.b64decode(rest, validate=True).decode()
        except ValueError:
            return
        yield from (user, user.partition(":")[2])


def _forms(value: str) -> set[str]:
    """Return the spellings in which a response may repeat a value."""
    return {
        value,
        value.encode().decode("latin-1"),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(value)[1:-1].replace("/", "\\/"),
        repr(value.encode())[2:-1],
        html.escape(value),
        quote(value),
        quote(value, safe=""),
        quote_plus(value),
    }


def _encoded(form: str) -> Iterator[bytes]:
    yield form.encode("utf-8", "surrogatepass")
    if not form.isascii() and all(ord(character) < 256 for character in form):
        yield form.encode("latin-1")


@dataclass(frozen=True)
class Mask:
    """Masks the values that one request sent as credentials."""

    texts: tuple[str, ...] = ()
    """All spellings of the values. The longest comes first."""
    bytes_: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, request: HttpRequest, secrets: Collection[str] = ()) -> Self:
        """Return the mask for a request. `secrets` are the names, in lower case, of further headers with
        credentials.
        """
        values = [
            part
            for name, value in request.headers
            if names_credential(name) or name.lower() in secrets
            for part in _parts(value)
        ]
        values += [value for name, value in _PARAMETER.findall(request.path) if names_credential(name)]
        raw = request.raw_body or b""
        values += [_spelled(raw[start:end]) for start, end in _credentials(raw)]
        texts = {form for value in values if len(value) >= LEAST_VALUE for form in _forms(value)}
        encoded = {data for text in texts for data in _encoded(text)}
        return cls(tuple(sorted(texts, key=len, reverse=True)), tuple(sorted(encoded, key=len, reverse=True)))

    def text(self, text: str) -> str:
        for value in self.texts:
            text = text.replace(value, "*" * len(value))
        return text

    def body(self, data: bytes) -> bytes:
        for value in self.bytes_:
            data = data.replace(value, _mask(value))
        return data

    def headers(self, headers: Headers, secrets: Collection[str] = ()) -> Headers:
        """Return the headers without credentials, and with repeated values masked."""
        return tuple((self.text(name), self.text(value)) for name, value in redact_headers(headers, secrets))

    def request(self, request: HttpRequest, secrets: Collection[str] = ()) -> HttpRequest:
        """Return the request without credentials. Its body does not change."""
        shown = redact(request, secrets)
        return replace(shown, headers=self.headers(shown.headers, secrets))

    def whole_request(self, request: HttpRequest) -> HttpRequest:
        """Return the request without credentials, and with its raw body masked as well."""
        shown = self.request(request)
        body = request.raw_body
        path = self.text(shown.path)
        return replace(shown, path=path, raw_body=None if body is None else self.body(redact_body(body)))

    def open_end(self, data: bytes) -> int:
        """Return the position at which an incomplete value at the end of the data begins.

        If there is none, return the length of the data.
        """
        longest = len(self.bytes_[0]) if self.bytes_ else 1
        first = {value[0] for value in self.bytes_}
        for start in range(max(0, len(data) - longest + 1), len(data)):
            if data[start] in first and any(value.startswith(data[start:]) for value in self.bytes_):
                return start
        return len(data)


def _cut_like(body: bytes, reads: Iterable[Read]) -> Iterator[Read]:
    """Yield a body of the same length, with the times and sizes of these reads."""
    start = 0
    for read in reads:
        end = start + len(read.data)
        yield replace(read, data=body[start:end])
        start = end


def redact_reads(reads: Sequence[Read], *changes: Callable[[bytes], bytes]) -> tuple[Read, ...]:
    """Return the reads of a whole body after changes that keep its length, such as masking."""
    whole = body = b"".join(read.data for read in reads)
    for change in changes:
        body = change(body)
    return tuple(reads) if body == whole else tuple(_cut_like(body, reads))


class MaskedReads:
    """Masks values in the reads of a body as they arrive, even if a value is divided among several reads.

    If a read ends with the beginning of a value, the read is returned only after the next read.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._waiting: list[Read] = []

    def feed(self, read: Read) -> list[Read]:
        """Add the next read, and return the reads that cannot change any more."""
        if not self._mask.bytes_:
            return [read]
        reads = [*self._waiting, read]
        body = self._mask.body(b"".join(waiting.data for waiting in reads))
        self._waiting = list(_cut_like(body, reads))
        left = self._mask.open_end(body)
        settled = []
        while self._waiting and len(self._waiting[0].data) <= left:
            left -= len(self._waiting[0].data)
            settled.append(self._waiting.pop(0))
        return settled

    def rest(self) -> list[Read]:
        """Return the remaining reads at the end of the body."""
        waiting, self._waiting = self._waiting, []
        return waiting
