"""JSON pointers: the examples of RFC 6901, and how null differs from nothing."""

import pytest

from tokenwire.wire.json_pointer import ABSENT, find, join, parse, put, remove

_RFC_DOCUMENT = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "i\\j": 5, " ": 7, "m~n": 8}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", _RFC_DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/i\\j", 5),
        ("/ ", 7),
        ("/m~0n", 8),
        ("/foo/2", ABSENT),
        ("/foo/-1", ABSENT),
        ("/foo/x", ABSENT),
        ("/nope", ABSENT),
        ("//deeper", ABSENT),
    ],
)
def test_find(pointer: str, value: object) -> None:
    found = find(_RFC_DOCUMENT, parse(pointer))
    assert found is value or found == value


def test_null_is_there() -> None:
    assert find({"a": None}, ("a",)) is None
    assert find({}, ("a",)) is ABSENT


def test_join_undoes_parse() -> None:
    for pointer in ("", "/", "/a~1b/m~0n/0"):
        assert join(*parse(pointer)) == pointer


def test_a_text_without_slash_is_no_pointer() -> None:
    with pytest.raises(ValueError, match="'foo'"):
        parse("foo")


def test_put_and_remove() -> None:
    body: dict[str, object] = {"keep": 1}
    put(body, ("a", "b"), 2)
    assert body == {"keep": 1, "a": {"b": 2}}
    remove(body, ("a", "absent"))
    assert body == {"keep": 1, "a": {"b": 2}}
    remove(body, ("a", "b"))
    assert body == {"keep": 1}
    with pytest.raises(ValueError, match="whole document"):
        put(body, (), 1)
