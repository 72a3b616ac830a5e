"""The report in a real browser: on a phone and on a desk, by day and by night, on paper. Skipped without Chromium."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kept.verify.report import write_reports
from tests.pure.verify.runs import make_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")
DARK, LIGHT = 0, 1
PHONE, DESK = 360, 1200
LOOK = Path(__file__).with_name("look.js").read_text()
FRAME = """<!doctype html><iframe id="f" src="looked-at.html" style="width:{width}px;height:3000px;border:0"></iframe>
<pre id="seen"></pre><script>onmessage = e => {{ document.getElementById('seen').textContent = e.data; }}</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("browser") / "run")
    write_reports(run)
    return run.path / "report.html"


def chromium(folder: Path, *arguments: str) -> str:
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--hide-scrollbars", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    return subprocess.run(
        [*command, f"--user-data-dir={folder / 'profile'}", *arguments],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip


def looked_at(page: Path, width: int, scheme: int) -> dict[str, object]:
    """A frame of this width holds the page with a script that looks around; the frame tells what it saw."""
    folder = page.parent
    (folder / "looked-at.html").write_text(page.read_text().replace("</body>", f"<script>{LOOK}</script></body>"))
    (folder / "frame.html").write_text(FRAME.format(width=width))
    settings = f"--blink-settings=preferredColorScheme={scheme}"
    shown = chromium(folder, settings, "--virtual-time-budget=3000", "--dump-dom", (folder / "frame.html").as_uri())
    seen = re.search(r'<pre id="seen">(.*?)</pre>', shown, re.DOTALL)
    assert seen is not None
    assert seen[1], "the page did not answer"
    found: dict[str, object] = json.loads(seen[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
    return found


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["day", "night"])
@pytest.mark.parametrize("width", [PHONE, DESK], ids=["phone", "desk"])
def test_everything_fits_and_can_be_read(page: Path, width: int, scheme: int) -> None:
    seen = looked_at(page, width, scheme)
    assert seen["wide"] == width, "nothing makes the page scroll sideways"
    assert seen["pale"] == [], "every text stands out from what is behind it, 4.5 to 1"
    assert seen["small"] == []
    assert seen["cut"] == 0, "no word of a chart is cut off"
    assert float(str(seen["letters"])) >= 8
    assert float(str(seen["squares"])) >= 90
    assert (seen["background"] == "rgb(20, 23, 26)") == (scheme == DARK)


def test_on_paper(page: Path) -> None:
    sheet = page.parent / "report.pdf"
    chromium(page.parent, "--no-pdf-header-footer", f"--print-to-pdf={sheet}", page.as_uri())
    assert sheet.read_bytes().startswith(b"%PDF")
    assert sheet.stat().st_size > 20_000
