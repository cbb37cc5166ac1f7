"""Record when each test starts and ends, so that a run that is killed shows what it was running.

The file of the variable TESTS_RECORD gets a line `SECONDS start TEST` and `SECONDS end TEST` for each, with the seconds
since 1970, and `SECONDS passed TEST` if it passes. tools/flaky_tests.py sets the variable and reads the file.
"""

import os
import time
from pathlib import Path


def pytest_configure(config):
    path = os.environ.get("TESTS_RECORD")
    if path and not hasattr(config, "workerinput"):  # Workers of pytest-xdist report to a process that records.
        config.pluginmanager.register(_Record(Path(path)))


class _Record:
    def __init__(self, path):
        self.path = path

    def pytest_runtest_logstart(self, nodeid):
        self.add("start", nodeid)

    def pytest_runtest_logfinish(self, nodeid):
        self.add("end", nodeid)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.add("passed", report.nodeid)

    def add(self, event, nodeid):
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{time.time():.1f} {event} {nodeid}\n")
