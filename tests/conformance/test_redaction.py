"""Credentials: what names one, and what becomes of its value, wherever and however it comes back."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.wire.exchange import HttpRequest, Read
from tokenwire.wire.redaction import (
    REDACTED,
    Mask,
    MaskedReads,
    names_credential,
    redact_body,
    redact_headers,
    redact_settings,
    redact_url,
)

KEY = 'sk-canary/"1234"+é'


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "Proxy-Authorization", "X-Auth", "x-oauth2", "X-Api-Key", "apikey", "accessKey"),
        *(
            "Cookie",
            "Set-Cookie",
            "X-Session",
            "x-session-id",
            "sessionid",
            "X-Auth-Token",
            "token",
            "x-token-id",
        ),
        *("X-Secret-Name", "client_secret", "password", "passwd", "x-signature", "sig", "X-Routing-Key"),
    ],
)
def test_what_names_a_credential(name: str) -> None:
    assert names_credential(name)
    assert names_credential(name.upper())


@pytest.mark.parametrize(
    "name",
    [
        *(
            "x-tokens-used",
            "x-ratelimit-remaining-tokens",
            "max_tokens",
            "x-token-count",
            "x-litellm-key-spend",
        ),
        *("x-session-limit", "tokenizer_path", "x-tokenwire-fault", "author", "X-Authority", "keep-alive"),
        *("www-authenticate", "access-control-allow-credentials", "monkey", "keywords", "X-Request-Id"),
        *("content-type", "x-sglext-return-input-ids", "design", "aside"),
    ],
)
def test_what_names_none(name: str) -> None:
    assert not names_credential(name)
    assert redact_headers(((name, "a"),)) == ((name, "a"),)


def test_urls_lose_their_users_and_their_keys() -> None:
    assert redact_url("/generate?n=1&monkey=2&flag&api_key=a&max_tokens=5&token=b") == (
        f"/generate?n=1&monkey=2&flag&api_key={REDACTED}&max_tokens=5&token={REDACTED}"
    )
    assert redact_headers((("Location", "https://me:pw@h/x?session=1&n=2#access_token=3"),)) == (
        ("Location", f"https://{REDACTED}@h/x?session={REDACTED}&n=2#access_token={REDACTED}"),
    )
    assert redact_url("https://h/me@x?mail=a@b") == "https://h/me@x?mail=a@b"


def sent(name: str, value: str) -> Mask:
    return Mask.of(HttpRequest("POST", "/generate", headers=((name, value),)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", f"Bearer {KEY}"),
        ("X-Api-Key", KEY),
        ("Cookie", f"theme=dark; session={KEY}"),
        ("Authorization", f"Basic {base64.b64encode(f'me:{KEY}'.encode()).decode()}"),
    ],
)
@pytest.mark.parametrize(
    "written", [KEY, json.dumps(KEY), json.dumps(KEY, ensure_ascii=False), quote(KEY), quote(KEY, safe="")]
)
def test_a_value_is_found_however_it_is_written(name: str, value: str, written: str) -> None:
    body = f'{{"error":{{"message":"Incorrect key: {written}."}}}}'.encode()
    masked = sent(name, value).body(body)
    assert b"canary" not in masked
    assert len(masked) == len(body)
    assert masked.startswith(b'{"error":{"message":"Incorrect key: ')
    assert "canary" not in sent(name, value).text(f"illegal header line: {written}")
    assert "canary" not in sent(name, value).text(f"illegal header line: {KEY.encode()!r}")


def test_words_that_are_sent_in_the_place_of_keys_are_left_in_answers() -> None:
    assert sent("Authorization", "Bearer EMPTY").body(b'{"text":"EMPTY"}') == b'{"text":"EMPTY"}'


def test_a_header_of_the_environment_counts_whatever_it_is_called() -> None:
    request = HttpRequest("GET", "/", headers=(("X-Tenant", "acme-canary"), ("X-Note", "of acme-canary")))
    mask = Mask.of(request, {"x-tenant"})
    assert mask.request(request, {"x-tenant"}).headers == (
        ("X-Tenant", REDACTED),
        ("X-Note", "of ***********"),
    )
    assert mask.body(b"no acme-canary here") == b"no *********** here"


@given(
    pieces=st.lists(st.sampled_from(["canary-1", "canary-22", "can", "ary-", "1", "22", "y", "é", " "])),
    cuts=st.lists(st.integers(0, 100)),
)
def test_a_value_cut_over_reads_is_found_and_no_cut_moves(pieces: list[str], cuts: list[int]) -> None:
    body = "".join(pieces).encode()
    mask = Mask.of(HttpRequest("GET", "/", headers=(("X-Key", "canary-1"), ("X-Token", "ary-22 y"))))
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    reads = [Read(float(i), body[a:b]) for i, (a, b) in enumerate(pairwise(edges))]
    masked = MaskedReads(mask)
    given = [item for read in reads for item in masked.feed(read)]
    given += masked.rest()
    assert [(read.time, len(read.data)) for read in given] == [(read.time, len(read.data)) for read in reads]
    assert b"".join(read.data for read in given) == mask.body(body)
    assert b"canary-1" not in mask.body(body)


def test_a_read_waits_only_while_a_value_may_go_on() -> None:
    masked = MaskedReads(sent("X-Key", "canary-1"))
    assert [read.data for read in masked.feed(Read(0.0, b"data: a"))] == [b"data: a"]
    assert masked.feed(Read(1.0, b"data: can")) == []
    assert [read.data for read in masked.feed(Read(2.0, b"dles"))] == [b"data: can", b"dles"]
    assert masked.feed(Read(3.0, b"canar")) == []
    assert [read.data for read in masked.rest()] == [b"canar"]


@pytest.mark.parametrize(
    "body",
    [
        '{"api_key": "CANARY", "n": 1}',
        '{"a":[{"client_secret":"CANARY"}]}',
        '{"Password":"a\\"CANARY"}',
        'data: {"x":1,"access_token":"CANARY"}\n\n',
        '{"api_key":"CANARY',
        '{"x":' + "9" * 5000 + ',"api_key":"CANARY"}',
        '{"a":' * 100_000 + '{"api_key":"CANARY"}' + "}" * 100_000,
    ],
)
def test_members_that_name_a_credential_lose_their_strings(body: str) -> None:
    for redacted in (redact_body(body.encode()), redact_settings(body.encode())):
        assert b"CANARY" not in redacted
        assert len(redacted) == len(body)


def test_what_an_answer_says_is_no_credential() -> None:
    body = b'{"token":"Hello","key":"k","decoded_token":" a","password":12,"secret":{"type":"string"}}'
    assert redact_body(body) == body
    assert redact_settings(b'{"hf_token":"abc","tokenizer_path":"x","eos_token_id":2}') == (
        b'{"hf_token":"***","tokenizer_path":"x","eos_token_id":2}'
    )


def test_values_that_a_client_sends_in_a_body_are_known_too() -> None:
    request = HttpRequest("POST", "/x", raw_body=b'{"api_key":"canary-1234","prompt":"hi"}')
    mask = Mask.of(request)
    assert mask.whole_request(request).raw_body == b'{"api_key":"***********","prompt":"hi"}'
    assert mask.body(b"wrong: canary-1234") == b"wrong: ***********"
