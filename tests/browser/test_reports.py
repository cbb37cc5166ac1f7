"""The report of a training in a real browser."""

import html
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from browser.sample_reports import WAITING, training_report

from kfp_distributed.reports.palette import MARK, STATES

pytestmark = [pytest.mark.takes(44), pytest.mark.figures]

AXIS_COLORS = {"light": "#59636e", "dark": "#9aa5b1"}
MAX_BYTES = 2_000_000


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    file = tmp_path_factory.mktemp("reports") / "report.html"
    file.write_text(training_report(3, 20, failed=True))
    return file


def canvas(page, number=0):
    return page.locator("[data-figure]").nth(number).locator("canvas").first


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
def test_a_report_is_drawn_in_both_color_schemes_and_follows_a_change(show, report, scheme, other):
    with show(report, scheme) as page:
        assert page.locator("[data-figure]").count() == 7
        colors = canvas(page).evaluate(DISTINCT_COLORS)
        assert {AXIS_COLORS[scheme], MARK} <= {*colors}
        assert AXIS_COLORS[other] not in colors
        page.emulate_media(color_scheme=other)
        page.wait_for_timeout(200)
        assert AXIS_COLORS[other] in canvas(page).evaluate(DISTINCT_COLORS)


# Canvas -> the colors of its opaque pixels as #rrggbb.
DISTINCT_COLORS = """canvas => {
  const context = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const colors = new Set();
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] === 255) colors.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
  }
  return [...colors].map(color => "#" + color.toString(16).padStart(6, "0"));
}"""


def test_a_report_is_drawn_in_the_frame_of_the_kfp_ui(show, report, tmp_path):
    # The KFP UI shows an HTML artifact in a frame without an origin: no cookies, no storage, no requests.
    file = tmp_path / "frame.html"
    srcdoc = html.escape(report.read_text())
    file.write_text(f'<iframe sandbox="allow-scripts" width="1200" height="800" srcdoc="{srcdoc}"></iframe>')
    with show(file) as page:
        frame = page.frames[1]
        assert frame.evaluate("origin") == "null"
        assert frame.locator("[data-figure] canvas").count() >= 7


def test_hovering_over_the_timeline_shows_the_reason(show, report):
    with show(report) as page:
        figure = page.locator("[data-figure^='Timeline of 3 replicas']")
        figure.scroll_into_view_if_needed()
        box = figure.bounding_box()
        x, y = figure.locator("canvas").first.evaluate(FIRST_PIXEL, STATES["waiting"])
        page.mouse.move(box["x"] + x + 3, box["y"] + y + 3)
        tooltip = page.locator(".bk-Tooltip:visible")
        tooltip.wait_for()
        text = tooltip.evaluate("element => element.shadowRoot.textContent")
        assert all(part in text for part in ("worker-0", "waiting", WAITING))


# Canvas, color as #rrggbb -> x and y of the first pixel that has it.
FIRST_PIXEL = """(canvas, color) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const number = parseInt(color.slice(1), 16);
  for (let i = 0; i < data.length; i += 4) {
    if ((data[i] << 16 | data[i + 1] << 8 | data[i + 2]) === number) {
      return [i / 4 % canvas.width, Math.floor(i / 4 / canvas.width)];
    }
  }
}"""


def test_every_chart_and_table_is_reached_by_the_keyboard(show, report):
    with show(report) as page:
        stops = []
        for _ in range(40):
            page.keyboard.press("Tab")
            stop = page.evaluate(FOCUSED)
            if stop is None:
                break
            stops.append(stop)
        figures = [figure.get_attribute("data-figure") for figure in page.locator("[data-figure]").all()]
        summaries = [summary.inner_text() for summary in page.locator("figure summary").all()]
        charts = [stop for pair in zip(figures, summaries, strict=True) for stop in pair]
        assert stops == ["Last log lines", *charts, "Replicas", "Events", "Manifest"]
        for figure in page.locator("figure.chart").all():
            assert figure.get_by_role("img").count() == 1
        page.locator("figure summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("figure details[open] table").count() == 1


# Name of the focused element, also inside shadow trees; None at the end of the page.
FOCUSED = """() => {
  let element = document.activeElement;
  while (element?.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
  if (element === document.body) return null;
  return element.getAttribute("aria-label") ?? element.innerText;
}"""


@pytest.mark.takes(20)
def test_300_replicas_and_1000_epochs_are_drawn(show, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(training_report(300, 1000))
    assert file.stat().st_size < MAX_BYTES
    with show(file) as page:
        assert page.locator("[data-figure] canvas").count() >= 7


def test_a_browser_without_decompression_says_where_the_data_is(browser, report):
    context = browser.new_context()
    context.add_init_script("delete window.DecompressionStream")
    page = context.new_page()
    page.goto(report.as_uri())
    page.get_by_text("data is in the table below").first.wait_for()
    context.close()
