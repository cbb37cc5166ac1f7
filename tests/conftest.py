"""What all tests share."""

import sys
from pathlib import Path

# Tests import what they share (tests/environments.py, tests/compiled.py) by name, under any import mode.
sys.path.insert(0, str(Path(__file__).parent))
# The stand-in for an API server is there.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "stub"))
# What users copy.
sys.path.append(str(Path(__file__).parents[1] / "examples"))

# The processes that tests start, also where a part of the tests is run by its path.
pytest_plugins = ["process_hygiene"]
