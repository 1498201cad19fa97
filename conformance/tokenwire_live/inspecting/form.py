"""The page's form for a request: all fields of an endpoint, with type, range, default and description."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tokenwire.ask import RULES
from tokenwire.asking.flags import plain
from tokenwire.dialects.dialect import Dialect, Unsupported
from tokenwire.report.markdown import inline
from tokenwire.spec_files import read_yaml, spec_root

_TOKENS = 32
_TEXTS = ("text", "name")
"""Types of fields whose values the user enters as text. Other values are entered as JSON."""


def form(dialect: Dialect, model: str) -> dict[str, Any]:
    """Return the fields of the form, and the initial body."""
    asked = replace(plain(dialect), stream=True, max_new_tokens=_TOKENS)
    request = dialect.render(asked, model)
    return {
        "dialect": dialect.name,
        "method": dialect.endpoint.methods[0],
        "path": dialect.endpoint.path,
        "body": {} if isinstance(request, Unsupported) else request.body,
        "fields": list(_fields(dialect)),
    }


def _fields(dialect: Dialect) -> Iterator[dict[str, Any]]:
    rows = read_yaml(spec_root() / "fields.yaml")["request"]
    for name, keys in dialect.request.written.items():
        row = rows.get(name, {"type": "", "says": ""})
        rule = RULES.get(name)
        kind = rule.kind if rule is not None else "text" if name in {"text", "model"} else "JSON"
        yield {
            "name": name,
            "at": keys,
            "kind": "boolean" if kind == "flag or number" and row["type"] == "boolean" else kind,
            "plain": kind in _TEXTS,
            "least": rule.least if rule is not None else None,
            "type": row["type"],
            "says": inline(row["says"]).striptags(),
            "default": dialect.request.defaults.get(name),
        }
    for keys in dialect.request.asks:
        yield {
            "name": keys[-1],
            "at": keys,
            "kind": "boolean",
            "plain": False,
            "least": None,
            "type": "boolean",
            "says": f"Tell {keys[-1]}, too.",
            "default": None,
        }
