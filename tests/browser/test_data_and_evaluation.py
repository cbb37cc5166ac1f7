"""The data page and the evaluation page in a real browser."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from browser.sample_pages import write_pages

pytestmark = [pytest.mark.takes(39), pytest.mark.figures]

PAGES = {
    # Name: number of charts and a text of the page.
    "data-digits": (2, "No value is missing."),
    "data-table": (8, "'ring_color' alone predicts the label of 98."),
    "evaluation-digits": (5, "The 7 classes with the lowest average precision are shown."),
    "evaluation-regression": (3, "A sample of 2,000 of 5,000 rows."),
    "evaluation-table": (5, "Each curve is that of one class against all others."),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_drawn_without_errors_and_requests(show, files, name, scheme):
    charts, text = PAGES[name]
    assert files[name].stat().st_size < 2_000_000
    with show(files[name], scheme) as page:
        assert page.locator("[data-figure] canvas").first.is_visible()
        assert page.locator("[data-figure]").count() == charts
        assert text in page.inner_text("body")
        # No chart and no table is wider than the page.
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_table_with_problems_has_a_warning_for_each(show, files):
    with show(files["data-table"]) as page:
        warnings = page.locator(".warnings li").all_inner_texts()
    for part in (
        "column 'station' has the same value in all",
        "column 'ring_color' alone predicts the label",
        "rows of the test split",
        "column 'bill_length' has no value in",
        "column 'sex' has no value in",
    ):
        assert any(part in warning for warning in warnings)


def test_pages_fit_on_a_narrow_screen(show, files):
    for file in files.values():
        with show(file) as page:
            page.set_viewport_size({"width": 400, "height": 800})
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_worst_mistakes_come_first(show, files):
    with show(files["evaluation-table"]) as page:
        cells = page.get_by_role("region", name="Worst mistakes").locator("tr td:nth-child(5)").all_inner_texts()
    probabilities = [float(cell.removesuffix("%")) for cell in cells]
    assert len(probabilities) > 3
    assert probabilities == sorted(probabilities, reverse=True)
