"""The inspector and the reference engine: a request that is aborted by its id ends as aborted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from by_hand import BODY, Page, inspected


def test_a_request_is_aborted_by_its_id(start_reference: Callable[..., str], tmp_path: Path) -> None:
    async def talk(page: Page) -> None:
        sampling = {"max_new_tokens": 4000, "ignore_eos": True}
        asked = {**BODY, "rid": "mine", "sampling_params": sampling}
        (number,) = await page.send(asked)
        async for news in page.news(f"?show={number}"):
            if news.get("view", {}).get("playback"):
                break
        words = await page.post("abort", {"number": number})
        assert words == "POST /abort_request for 'mine' was answered 200"
        assert "&#34;type&#34;:&#34;abort&#34;" in await page.ended(number)

    inspected(start_reference(), tmp_path, talk)
