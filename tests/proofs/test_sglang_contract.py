"""Each field of SGLang's own contract of `/generate` is bound with its type, or is listed with a reason.

`fixtures/sglang_contract.py` records the contract.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from proofs.newest import reasons
from proofs.released_names import Name

from tokenwire.spec_files import load_schema, read_yaml, spec_root

DIALECT = "sglang-generate"
SCRIPT = Path(__file__).parents[2] / "fixtures" / "sglang_contract.py"
CONTRACT = read_yaml(Path(__file__).parent / "recordings" / "sglang-contract.yaml")
LEAST = {"request": 40, "answer": 20}
"""Fields that a schema and the contract share at least."""
SCHEMAS = {"request": ("generate-request",), "answer": ("generate-response", "generate-event")}


def _resolved(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its alternatives, references followed."""
    if "$ref" in schema:
        found: Any = whole
        for key in schema["$ref"].split("/")[1:]:
            found = found[key]
        yield from _resolved(found, whole)
    yield schema
    for word in ("allOf", "anyOf", "oneOf"):
        for alternative in schema.get(word, ()):
            yield from _resolved(alternative, whole)


def kinds(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kinds of JSON values that a schema admits, as the recording writes them."""
    for part in _resolved(schema, whole):
        stated = part.get("type", ())
        for kind in [stated] if isinstance(stated, str) else stated:
            if kind != "array":
                yield kind
        for entry in (part.get("items"), *part.get("prefixItems", ())):
            if entry:
                yield from (f"list of {kind}" for kind in kinds(entry, whole))


def places(
    schema: Mapping[str, Any], whole: Mapping[str, Any], at: str = ""
) -> Iterator[tuple[str, set[str]]]:
    """Yield the place of each property, in lists and objects, with its kinds."""
    for part in _resolved(schema, whole):
        for name, value in part.get("properties", {}).items():
            if found := set(kinds(value, whole)):
                yield f"{at}/{name}", found
                yield from places(value, whole, f"{at}/{name}")
        if "items" in part:
            yield from places(part["items"], whole, at)


def known() -> set[str]:
    """Return the places of a request or of an answer that the dialect binds."""
    table = read_yaml(spec_root() / "dialects" / f"{DIALECT}.yaml")
    return {place for side in ("request", "answer") for place in _pointers(table[side])}


def _pointers(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from _pointers(key)
            yield from _pointers(value)
    elif isinstance(part, list):
        for value in part:
            yield from _pointers(value)
    elif isinstance(part, str) and part.startswith("/"):
        yield part


def schema_places(name: str) -> Mapping[str, set[str]]:
    """Return the kinds of each place of a schema, null aside: the contract writes null as an absent value."""
    schema = load_schema(name)
    found: dict[str, set[str]] = {}
    for place, kinds_there in places(schema, schema):
        found[place] = found.get(place, set()) | kinds_there - {"null"}
    return found


def unknown(contract: Mapping[str, Any]) -> list[str]:
    """Return the places of a contract that neither a schema nor the dialect has.

    Fields in a field that no schema describes are not looked at.
    """
    bound = known()
    missing = []
    for side, schemas in SCHEMAS.items():
        described: set[str] = set().union(*map(schema_places, schemas))
        for place in contract[side]:
            parent = place.rpartition("/")[0]
            if place not in described | bound and (not parent or parent in described):
                missing.append(place)
    return missing


def without_reason(contract: Mapping[str, Any], listed: Mapping[str, Any]) -> list[str]:
    """Return the unknown places of a contract that no entry of a table of reasons covers."""
    entries = reasons(listed)
    names = {place: Name(DIALECT, "field", place.rpartition("/")[2]) for place in unknown(contract)}
    return [place for place, name in names.items() if not any(entry.covers(name) for entry in entries)]


def test_each_field_of_the_contract_is_bound_or_has_a_reason() -> None:
    assert without_reason(CONTRACT, read_yaml(spec_root() / "unbound.yaml")) == []


def test_a_field_needs_a_reason_of_its_dialect() -> None:
    assert "/kept" in without_reason(
        {"request": {"/kept": ["string"]}, "answer": {}}, {"sglang-chat": {"kept": "x"}}
    )
    assert without_reason({"request": {"/kept": ["string"]}, "answer": {}}, {DIALECT: {"kept": "x"}}) == []


def test_a_new_field_is_unknown() -> None:
    request = {**CONTRACT["request"], "/another": ["string"], "/sampling_params/another": ["string"]}
    answer = {**CONTRACT["answer"], "/meta_info/another": ["integer"]}
    new = {"/another", "/sampling_params/another", "/meta_info/another"}
    assert set(unknown({"request": request, "answer": answer})) - set(unknown(CONTRACT)) == new


@pytest.mark.parametrize(
    ("side", "schema"), [(side, schema) for side, schemas in SCHEMAS.items() for schema in schemas]
)
def test_a_field_has_the_kinds_of_the_contract(side: str, schema: str) -> None:
    ours = schema_places(schema)
    theirs = {place: set(CONTRACT[side][place]) - {"null"} for place in ours.keys() & CONTRACT[side].keys()}
    assert len(theirs) > LEAST[side]
    differing = {
        place: (ours[place], kinds_there)
        for place, kinds_there in theirs.items()
        if "any" not in kinds_there and ours[place] != kinds_there
    }
    assert differing == {}


SOURCE = '''
class Request:
    """api.Request: JSON object (unknown keys ignored)."""

    text: Optional[TextOrList] = None
    entries: List[Entry] = []
    inner: Optional[Inner] = None
    of_any: Optional[Any] = None

class Entry:
    """api.Entry: JSON positional array [logprob, id]."""

    logprob: Optional[float] = None
    id: int = 0

class Inner:
    """api.Inner: JSON object (unknown keys rejected)."""

    labels: Dict[str, str] = {}

TextOrList = Union[str, TextList]
TextList = List[str]
'''


def test_the_recording_has_the_place_and_the_kinds_of_each_field() -> None:
    contract = runpy.run_path(str(SCRIPT))["Contract"](SOURCE)
    assert dict(contract.fields("Request")) == {
        "/text": {"list of string", "null", "string"},
        "/entries": {"list of list of integer", "list of list of null", "list of list of number"},
        "/inner": {"null", "object"},
        "/inner/labels": {"object"},
        "/of_any": {"any", "null"},
    }


def test_an_unknown_type_is_not_recorded_as_another() -> None:
    contract = runpy.run_path(str(SCRIPT))["Contract"]("class Request:\n    text: Missing = None\n")
    with pytest.raises(KeyError, match="Missing"):
        dict(contract.fields("Request"))
