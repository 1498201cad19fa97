"""What dialects may choose: each choice is named by the rows that leave it, and by no others."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys

import pytest
from docs_build import dialect_choices

import tokenwire.checks  # noqa: F401  # fills CHECKS
from tokenwire.checks.check import CHECKS
from tokenwire.dialects.dialect import load_dialects
from tokenwire.dialects.policy import Policy
from tokenwire.requirement import load_requirements

ROWS = load_requirements()
CHOICES = dialect_choices.choices()
POLICY_READ = re.compile(r"\bpolicy(?:_of\(\w+(?:\.stream)?\))?\.(\w+)")


def test_every_choice_of_a_dialect_is_named_by_a_row_and_every_named_one_exists():
    named = {policy for row in ROWS.values() for policy in row.policies}
    assert set(CHOICES) - named == set(), "policies of dialects that no row names"
    assert named - set(CHOICES) == set(), "policies that rows name and no dialect has"


def test_every_field_of_a_policy_says_what_it_means_and_is_chosen_otherwise_by_some_dialect():
    fields = {field.name for field in dataclasses.fields(Policy)}
    assert dialect_choices.meanings().keys() == {*fields, "nulls"}
    policies = [dialect.policy for dialect in load_dialects().values()]
    usual = Policy()
    same = {
        name for name in fields if all(getattr(policy, name) == getattr(usual, name) for policy in policies)
    }
    assert same == set(), "no dialect needs the choice"


def test_a_check_reads_no_choice_that_no_row_of_its_module_names():
    by_module: dict[str, set[str]] = {}
    for name, check in CHECKS.items():
        by_module.setdefault(check.function.__module__, set()).update(ROWS[name].policies)
    read = {module: set(POLICY_READ.findall(inspect.getsource(sys.modules[module]))) for module in by_module}
    assert sum(map(len, read.values())) >= 15, "the pattern finds what checks read"
    assert {m: keys - by_module[m] for m, keys in read.items() if keys - by_module[m]} == {}


@pytest.mark.parametrize("key", CHOICES)
def test_the_page_tells_what_is_chosen_and_what_leaves_the_choice(key):
    page = dialect_choices.page().content
    section = page.partition(f"## {key} {{ #{key} }}")[2].partition("\n## ")[0]
    assert dialect_choices.meanings()[key] in section
    for row in ROWS.values():
        assert (f"[{row.id}](" in section) == (key in row.policies), row.id
    for dialect in CHOICES[key]:
        assert f"| `{dialect}` |" in section
