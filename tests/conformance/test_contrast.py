"""Every text of our pages stands out from what is behind it, light and dark: WCAG AA wants 4.5."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import product

import pytest

LEAST = 4.5
BEHIND = ("paper", "card", "shade", "fail-shade")
NO_TEXT = {*BEHIND, "line"}
STYLES = ("report/page.css",)
PAGES = [f"{name}.html.jinja" for name in ("page", "watched", "exchange", "requirement")]


def _luminance(colour: str) -> float:
    digits = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(text: str, behind: str) -> float:
    dark, bright = sorted(map(_luminance, (text, behind)))
    return (bright + 0.05) / (dark + 0.05)


def test_the_extremes_are_21_and_1() -> None:
    assert contrast("000", "ffffff") == pytest.approx(21)
    assert contrast("767676", "fff") == pytest.approx(4.54, abs=0.01)
    assert contrast("aaa", "aaaaaa") == 1


@pytest.mark.parametrize("name", STYLES)
def test_each_colour_of_text_is_read_on_each_ground(name: str) -> None:
    style = files("tokenwire").joinpath(name).read_text("utf-8")
    schemes = [
        dict(re.findall(r"--([\w-]+): #(\w+)", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    assert len(schemes) == 2
    pale = {
        (text, behind): round(contrast(scheme[text], scheme[behind]), 2)
        for scheme in schemes
        for text, behind in product(scheme.keys() - NO_TEXT, scheme.keys() & set(BEHIND))
        if contrast(scheme[text], scheme[behind]) < LEAST
    }
    assert pale == {}
    assert "opacity" not in style, "a colour that shows what is behind it has a contrast that nobody knows"


@pytest.mark.parametrize("name", ["inspector.css", *PAGES])
def test_other_pages_have_no_colour_of_their_own(name: str) -> None:
    style = files("tokenwire_live").joinpath("inspecting", name).read_text("utf-8")
    assert re.findall(r"(?:color|background|border[\w-]*|fill|stroke): *(#\w+|rgb\w*\(.*?\))", style) == []
    assert "opacity" not in style
