"""What a comparison of two deployments writes: of `tokenwire twin`, and of `merge`, which asks nobody."""

from __future__ import annotations

from tokenwire.comparing.twin import TwinReport, TwinTally, twin_report, twins_as_json
from tokenwire.comparing.twin_forms import print_twins, twin_page
from tokenwire.comparing.twin_tally import write_twins
from tokenwire.disk import write_whole
from tokenwire.report.console import make_console
from tokenwire.report.document import as_json
from tokenwire.settings import Settings


def show_twins(tally: TwinTally, settings: Settings) -> TwinReport:
    """Print a comparison, and write it where the options say. Raises UsageError."""
    report = twin_report(tally)
    if settings.json is not None:
        write_whole(settings.json, as_json(twins_as_json(report)))
    if settings.html is not None:
        write_whole(settings.html, twin_page(report))
    if settings.tally is not None:
        write_twins(tally, settings.tally)
    print_twins(make_console(), report)
    return report
