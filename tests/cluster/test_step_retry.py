"""A train step that Kubernetes ends gently, as where its node is drained, and that Argo then starts again."""

import re
import time

import pytest
from cluster.jobs import left_behind
from cluster.test_launch import cancel, function

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TRAINING = """
import time
from pathlib import Path
state = Path(checkpoint_dir, "epochs")
done = int(state.read_text()) if state.exists() else 0
print(f"starts after epoch {done}", flush=True)
if not done:
    state.write_text("7")
    print("epoch 7 is done", flush=True)
    time.sleep(300)
"""


def program() -> dict:
    made = function(TRAINING.strip())
    return {**made, "source": made["source"].replace("model_dir: str,", "model_dir: str, checkpoint_dir: str,")}


@pytest.mark.parametrize(
    "distribution", [{}, {"distribution_type": "TF", "number_of_workers": 1, "number_of_parameter_servers": 0}]
)
def test_a_step_that_is_ended_gently_and_started_again_resumes_its_training(start, distribution):
    first = start(program(), distribution)
    first.wait_for(r"\[worker-0\] epoch 7 is done")
    # A checkpoint is stored when its folder has not changed for two seconds, of which the thread looks every two.
    time.sleep(6)
    cancel(first)
    request = {key: first.request[key] for key in ("identity", "model_uri")}
    second = start(program(), distribution, **request)
    verdict = second.verdict()
    assert verdict["succeeded"], second.log
    assert re.search(r"waiting for the pods of the previous attempt to end: ", second.log)
    assert "[worker-0] starts after epoch 7" in second.log
    assert left_behind(second) == []
