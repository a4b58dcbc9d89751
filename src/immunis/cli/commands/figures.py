"""``immunis figures``: records as pictures."""

from __future__ import annotations

from immunis.cli.console import bar, take, where
from immunis.cli.options import Output, Records, app


@app.command()
def figures(records: Records, output: Output = None) -> None:
    """Draw the figures of records: PDF for print, PNG for screens."""
    import immunis.paper.figures  # noqa: F401 - adds those of a reproduction
    from immunis.report.figures import write_figures

    folder = take(output or records[0].parent / "figures")
    with bar("figures", False):
        write_figures(records, folder)
    where(folder)
