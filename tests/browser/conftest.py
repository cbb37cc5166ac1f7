from contextlib import contextmanager

import pytest

MAX_SECONDS = 20.0
"""Processor time in which a page must be drawn, some 20 times that of the largest one on an idle machine."""

VIEWPORT = {"width": 1280, "height": 900}


@pytest.fixture
def show(browser):
    """Returns a context manager: opens a file in the browser, waits until it is drawn, and yields the page.

    The page must be drawn within `MAX_SECONDS`. At its end there were no errors and no request but that for the file.
    """

    @contextmanager
    def show(file, scheme="light"):
        context = browser.new_context(color_scheme=scheme, viewport=VIEWPORT, offline=True)
        page = context.new_page()
        messages, requests = [], []
        page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(f"error: {error}"))
        page.on("request", lambda request: requests.append(request.url))
        session = context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(file.as_uri())
        page.frames[-1].wait_for_selector("body.drawn")
        values = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
        # A frame without an origin has a process of its own, which is not measured.
        assert (0.05 if len(page.frames) == 1 else 0) < values["TaskDuration"] < MAX_SECONDS
        yield page
        assert (messages, requests) == ([], [file.as_uri()])
        context.close()

    return show
