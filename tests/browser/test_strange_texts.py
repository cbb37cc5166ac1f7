"""Pages with texts and numbers that would break a layout, on a wide and on a narrow screen."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from evaluate.test_report import page_of
from train.programs.jobs import make_job, workers

from kfp_distributed.components.train.run.conclusions.status import advance, begin, failure_cause
from kfp_distributed.components.train.run.facts import JobEnded, JobEvent, LogLine, ReplicaChanged
from kfp_distributed.components.train.tell.report import job_page
from kfp_distributed.reports.page import render_page
from kfp_distributed.trainers.runtime.outputs.fine_tuning_file import FineTuning, HeldOutAnswer

pytestmark = [pytest.mark.takes(16), pytest.mark.figures]

MARKUP = "<img src=x onerror=alert(1)></script><script>alert(2)</script><!--"
RIGHT_TO_LEFT = "שלום עולם \u202eabc"
LONG = "x" * 300
TEXTS = (MARKUP, RIGHT_TO_LEFT, LONG)


def training():
    reason = " ".join(TEXTS)
    status = begin(make_job(["unused"], workers(2), reason), 0.0)
    for fact in (
        ReplicaChanged(1, "worker-0", "waiting", reason=reason),
        ReplicaChanged(60, "worker-0", "running", node=LONG),
        JobEvent(61, reason),
        LogLine(62, "worker-0", reason),
        ReplicaChanged(90, "worker-0", "failed", exit_code=1, reason=reason),
        JobEnded(91, False, reason),
    ):
        status = advance(status, fact)
    metrics = {"worker-0": [{"epoch": 1, "loss": math.nan, **dict.fromkeys(TEXTS, 1e300)}, {"epoch": 2, LONG: 1}]}
    fine_tuning = FineTuning(LONG, (HeldOutAnswer(reason, *TEXTS),))
    content = job_page(status, metrics, {"kind": reason}, failure_cause(status), fine_tuning=fine_tuning)
    return render_page("train.html", content)


def evaluation():
    probabilities = np.tile([0.2, 0.3, 0.5], (30, 1))
    return render_page("evaluate.html", page_of(TEXTS, probabilities, np.arange(30) % 3))


def evaluation_of_one_class():
    return render_page("evaluate.html", page_of(("a", "b"), [[1, 0], [0.9, 0.1]], [0, 0]))


@pytest.mark.parametrize("make", [training, evaluation, evaluation_of_one_class])
def test_no_text_is_wider_than_the_page_or_hides_a_figure(show, tmp_path, make):
    file = tmp_path / "page.html"
    file.write_text(make())
    with show(file) as page:
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            frames = page.evaluate(FRAMES)
            assert len(frames) == page.locator("[data-figure]").count()
            assert min(frames) > 40


# Smaller side of the area between the axes of each figure.
FRAMES = """() => Bokeh.index.roots
  .filter(({ frame }) => frame)
  .map(({ frame }) => Math.min(frame.bbox.width, frame.bbox.height))"""


def test_a_page_can_be_scrolled_by_touching_a_chart(show, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(training())
    with show(file) as page:
        touch_actions = page.evaluate(
            "() => Bokeh.index.roots.filter(view => view.frame)"
            ".map(view => getComputedStyle(view.canvas_view.events_el).touchAction)"
        )
    assert {*touch_actions} == {"pan-y pinch-zoom"}
