"""The site in a browser: no table is cut off, no page overflows a phone, and the search finds."""

import functools
import json
import queue
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helpers import ROOT

pytest.importorskip("material", reason="needs the extra docs")
pytest.importorskip("mkdocstrings", reason="needs the extra docs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium"),
]
PROBE = """
const sleep = ms => new Promise(done => setTimeout(done, ms))
async function shown(address, width) {
  const frame = document.createElement("iframe")
  frame.style = `width:${width}px;height:900px;border:0`
  frame.src = address
  await new Promise(done => { frame.onload = done; document.body.append(frame) })
  return frame
}
async function look(page, width) {
  const frame = await shown(page, width), wide = frame.contentWindow, text = frame.contentDocument
  await sleep(200)
  const cut = [...text.querySelectorAll(".md-typeset__scrollwrap")]
    .filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => [box.innerText.slice(0, 60), !!box.previousElementSibling?.matches(".scroll-hint")
      && box.previousElementSibling.offsetHeight > 0 && box.tabIndex === 0])
  const tables = text.querySelectorAll(".md-typeset__scrollwrap table").length
  const overflows = text.documentElement.scrollWidth > wide.innerWidth
  const missing = [...text.images].filter(image => !image.naturalWidth).map(image => image.src)
  frame.remove()
  return { page, width, cut, tables, overflows, missing }
}
async function search(words) {
  const frame = await shown("index.html?q=" + encodeURIComponent(words), 1280)
  for (let tries = 0; tries < 100; tries++) {
    const found = [...frame.contentDocument.querySelectorAll("a.md-search-result__link")]
    if (found.length) return found.map(link => new URL(link.href).pathname)
    await sleep(100)
  }
  return []
}
(async () => {
  const looks = []
  for (const page of PAGES) for (const width of [1280, 390]) looks.push(await look(page, width))
  const found = await search("default defence")
  await fetch("/", { method: "POST", body: JSON.stringify({ looks, found }) })
})()
"""


class Served(SimpleHTTPRequestHandler):
    """A folder's files; what the page posts is put into the server's queue."""

    def do_POST(self):
        self.server.posted.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a browser sees of the built site, served on this machine."""
    folder = tmp_path_factory.mktemp("site")
    site = folder / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", site]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True)
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    pages.remove("404.html")
    probe = f"const PAGES = {json.dumps(pages)};{PROBE}"
    (site / "probe.html").write_text(f"<body><script>{probe}</script>", encoding="utf-8")
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--no-first-run", "--window-size=1400,1000",
        "--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}",
    ]  # fmt: skip
    serve = functools.partial(Served, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        server.posted = queue.Queue()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/probe.html"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        browser = subprocess.Popen(["chromium", *flags, address], **quiet)
        try:
            return json.loads(server.posted.get(timeout=300))
        finally:
            browser.terminate()
            browser.wait(30)
            server.shutdown()


def test_no_page_overflows_a_laptop_or_a_phone(seen):
    assert len(seen["looks"]) > 40
    assert [(each["page"], each["width"]) for each in seen["looks"] if each["overflows"]] == []


def test_every_picture_is_there(seen):
    assert [each["missing"] for each in seen["looks"] if each["missing"]] == []


def test_no_table_is_cut_off_on_a_laptop_and_a_hint_says_it_on_a_phone(seen):
    wide = [each for each in seen["looks"] if each["width"] == 1280]
    narrow = [each for each in seen["looks"] if each["width"] == 390]
    assert sum(each["tables"] for each in wide) > 50
    assert [(each["page"], each["cut"]) for each in wide if each["cut"]] == []
    hinted = [hint for each in narrow for _, hint in each["cut"]]
    assert hinted and all(hinted)


def test_the_search_finds(seen):
    assert any(page.endswith("networks.html") for page in seen["found"]), seen["found"]
