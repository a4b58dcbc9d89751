"""A local page that lists all runs below a folder, and shows their cards.

It answers this machine only, reads records and what their owner says of them (``about.toml``), and
takes no path from a request: a card has a number in the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from immunis.core.errors import ImmunisError
from immunis.core.records import Record, printable
from immunis.report.about import NAME, About
from immunis.report.card import KINDS, PAGES, render
from immunis.report.evidence import Evidence, refusal
from immunis.report.runs import SIDE_BY_SIDE, found_records, subjects
from immunis.report.text import harmful_score

HOST = "127.0.0.1"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


class Row(NamedTuple):
    """A model in the list, or a run of another kind: its records, where they are, and their badge.

    ``highest`` is the highest score of any attack on it. ``error`` says why there is no card.
    """

    places: list[str]
    records: list[Record]
    about: About
    badge: str = ""
    highest: str = ""
    error: str = ""

    @property
    def card(self) -> bool:
        """True if the row has a card."""
        return not self.error and self.records[0].kind in KINDS


def rows(folder: Path) -> list[Row]:
    """Return what is below a folder, newest first; what cannot be read last, with the reason.

    All records about the same models are one row, so that no audit hides what another one found.
    """
    found: list[Row] = []
    paths: dict[str, list[Path]] = {}  # of records that share a card, by digest
    known: dict[str, Record] = {}
    for path, record in found_records(folder):
        place = printable(str(path.relative_to(folder)))
        if isinstance(record, str):
            found.append(Row([place], [], About(), error=printable(record)))
        elif record.kind in SIDE_BY_SIDE:
            known[record.digest()] = record
            paths.setdefault(record.digest(), []).append(path)
        else:
            found.append(Row([place], [record], About()))
    models = subjects(list(known.values()))
    found += [_row(of, [p for each in of for p in paths[each.digest()]], folder) for of in models]
    return sorted(found, key=_newest, reverse=True)


def _newest(row: Row) -> str:
    return max((record.created for record in row.records), default="")


def _row(records: list[Record], paths: Sequence[Path], folder: Path) -> Row:
    """Return the row of records about the same models."""
    bare = Row([printable(str(path.relative_to(folder))) for path in paths], records, About())
    try:
        about = _about([*(path.parent for path in paths), folder])
        badge, highest = _judged(records, about)
        return bare._replace(about=about, badge=badge, highest=highest)
    except ImmunisError as error:
        return bare._replace(error=printable(str(error)))


def _about(folders: Iterable[Path]) -> About:
    """Return what the owner says in the first of some folders that holds it."""
    beside = (folder / NAME for folder in folders)
    path = next((each for each in beside if each.exists()), None)
    return About() if path is None else About.load(path)


def _judged(records: Sequence[Record], about: About) -> tuple[str, str]:
    """Return the badge of records about the same models, and the highest score of any attack."""
    audits, immunized = (
        tuple(each for each in records if each.kind == kind) for kind in ("audit", "immunize")
    )
    refused = "Refused" if refusal(immunized) else ""
    if not audits:
        return refused, ""
    evidence = Evidence(audits, about, immunized)
    best = evidence.reached(evidence.model)
    told = f"{harmful_score(audits[0], best.score)} by {best.attack}" if best else ""
    return refused or evidence.judgement.badge, told


def page(folder: Path, path: str) -> str | None:
    """Return the list (``/``) or the card of a row (``/card/3``); None for any other path.

    Raises:
        ImmunisError: for a record without a card.
    """
    if path == "/":
        return PAGES.get_template("runs.html").render(
            rows=rows(folder), folder=printable(folder.resolve().name)
        )
    start, _, number = path.rpartition("/")
    if start != "/card" or not number.isdecimal() or not number.isascii() or len(number) > 6:
        return None
    listed = rows(folder)
    row = listed[int(number)] if int(number) < len(listed) else None
    return render(*row.records, about=row.about) if row and row.card else None


def server(folder: str | Path, port: int) -> ThreadingHTTPServer:
    """Return a server of a folder's runs on this machine; ``port`` 0 takes a free one."""
    top = Path(folder)

    class Handler(BaseHTTPRequestHandler):
        """Answers GET with a page; everything else is refused."""

        def do_GET(self) -> None:
            """Send a page, if the request names this server: no other site's name leads here."""
            name = (self.headers.get("Host") or "").rpartition(":")[0]
            if name not in (HOST, "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN)
                return
            try:
                found = page(top, self.path)
            except ImmunisError as error:
                self.log_error("%s", error)
                found = None
            if found is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            content = found.encode("utf-8")
            self.send_response(HTTPStatus.OK)
            heads = {"Content-Type": "text/html; charset=utf-8", "Content-Length": len(content)}
            heads |= {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
            for head, value in heads.items():
                self.send_header(head, str(value))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    return ThreadingHTTPServer((HOST, port), Handler)
