"""JSON pointers (RFC 6901): the place of a value in a document, as text and as a tuple of keys."""

from __future__ import annotations

from typing import Annotated, Any, Final

Keys = tuple[str, ...]


class _Absent:
    """The type of `ABSENT`; false, so that `value or default` reads well."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""The result of `find` if the document has nothing there; null is a value and not absent."""


def parse(pointer: str) -> Keys:
    """Return the keys of a pointer. Raises ValueError for what is not a pointer."""
    if pointer != "" and not str(pointer).startswith("/"):
        raise ValueError(f"{pointer!r} is not a JSON pointer; a pointer is empty or begins with '/'")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


Pointer = Annotated[Keys, parse]
"""The type of a field that is a pointer in a table; see `typed_table`."""


def join(*keys: object) -> str:
    """Return the pointer that goes through some keys or positions, one after the other."""
    return "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in keys)


def find(document: Any, keys: Keys) -> Any:
    """Return the value that the keys lead to, or `ABSENT`."""
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
    """Return the values that the keys lead to; the key `*` means each entry of a list."""
    found = [document]
    for key in keys:
        if key == "*":
            found = [entry for value in found if isinstance(value, list) for entry in value]
        else:
            found = [value for holder in found if (value := find(holder, (key,))) is not ABSENT]
    return found


def put(document: dict[str, Any], keys: Keys, value: Any) -> None:
    """Set a value, making the objects on the way to it. Raises ValueError for the empty pointer."""
    if not keys:
        raise ValueError("the empty pointer names the whole document, which cannot be put into itself")
    for key in keys[:-1]:
        document = document.setdefault(key, {})
    document[keys[-1]] = value


def remove(document: dict[str, Any], keys: Keys) -> None:
    """Take a member away, and the objects that are left empty by it; no matter if it is absent."""
    parent = find(document, keys[:-1])
    if not isinstance(parent, dict) or keys[-1] not in parent:
        return
    del parent[keys[-1]]
    if not parent and keys[:-1]:
        remove(document, keys[:-1])
