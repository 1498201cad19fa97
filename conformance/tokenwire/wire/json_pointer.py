"""JSON pointers (RFC 6901): the places of values in a document, as text or as tuples of keys."""

from __future__ import annotations

from typing import Annotated, Any, Final

Keys = tuple[str, ...]


class _Absent:
    """The type of `ABSENT`. Its truth value is False, so that `value or default` works."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""The result of `find` if there is no value. For a null, `find` returns None."""


def parse(pointer: str) -> Keys:
    """Return the keys of a JSON pointer. Raises ValueError if the text is not a pointer."""
    if pointer != "" and not str(pointer).startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON pointer; a pointer is empty or begins with '/'")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


Pointer = Annotated[Keys, parse]
"""The type of a table field that contains a JSON pointer; see `typed_table`."""


def join(*keys: object) -> str:
    """Return the JSON pointer that consists of these keys and indices."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def find(document: Any, keys: Keys) -> Any:
    """Return the value at the keys, or `ABSENT`."""
    for key in keys:
        if isinstance(document, dict):
            if key not in document:
                return ABSENT
            document = document[key]
        elif isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return ABSENT
    return document


def gather(document: Any, keys: Keys) -> list[Any]:
    """Return all values at the keys. The key `*` means each entry of a list."""
    found = [document]
    for key in keys:
        if key == "*":
            found = [entry for value in found if isinstance(value, list) for entry in value]
        else:
            found = [value for holder in found if (value := find(holder, (key,))) is not ABSENT]
    return found


def put(document: dict[str, Any], keys: Keys, value: Any) -> None:
    """Set a value, and create the missing objects above the value.

    Raises ValueError for the empty pointer.
    """
    if not keys:
        raise ValueError("the empty pointer names the whole document; a pointer to a member is needed")
    for key in keys[:-1]:
        document = document.setdefault(key, {})
    document[keys[-1]] = value


def remove(document: dict[str, Any], keys: Keys) -> None:
    """Remove a member if it exists, and then all objects above the member that become empty."""
    parent = find(document, keys[:-1])
    if not isinstance(parent, dict) or keys[-1] not in parent:
        return
    del parent[keys[-1]]
    if not parent and keys[:-1]:
        remove(document, keys[:-1])
