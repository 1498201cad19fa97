"""The Markdown of the specification on pages: nothing of it is left, and nothing in it is HTML."""

from __future__ import annotations

import re

from tokenwire.explanation import explain
from tokenwire.report.markdown import blocks, inline
from tokenwire.requirement import load_requirements

_CODE = re.compile(r"<pre.*?</pre>|<code>.*?</code>", re.S)
_LEFT = re.compile(r"(?<!\w)\*|\*(?!\w)|[`|]|\]\(|^\d\. ", re.M)


def test_no_mark_is_left_of_a_sentence_or_a_passage() -> None:
    left = {}
    for name in load_requirements():
        explained = explain(name)
        passages = blocks(explained.passage.before) + blocks(explained.passage.after)
        written = _CODE.sub("", str(passages + inline(explained.requirement.sentence)))
        left |= {name: marks} if (marks := _LEFT.findall(written.replace("<br>1. ", ""))) else {}
    assert left == {}


def test_each_mark_becomes_its_element_and_html_stays_text() -> None:
    assert inline("a *b* **c `d`** [e](f.md) `<g>*` h*i <img>") == (
        "a <em>b</em> <b>c <code>d</code></b> e <code>&lt;g&gt;*</code> h*i &lt;img&gt;"
    )
    assert blocks("| a | `b|c` |\n|---|---|\n| 1 | <i> |\n\n```json title\n<x>\n\n*y*\n```\n") == (
        "<table><tr><td>a</td><td><code>b|c</code></td></tr><tr><td>1</td><td>&lt;i&gt;</td></tr></table>"
        '<pre tabindex="0">&lt;x&gt;\n\n*y*</pre>'
    )
