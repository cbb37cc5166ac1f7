"""A train step that is ended with a grace period, for example because its node is drained, and retried by Argo."""

import pytest
from cluster.jobs import left_behind
from cluster.test_launch import ALONE, cancel

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.takes(20)]

# At SIGTERM the program takes ten seconds to write a checkpoint.
TRAINING = """
state="$KFP_DISTRIBUTED_CHECKPOINT_DIR/epochs"
if [ -e "$state" ]; then
    echo "starts after epoch $(cat "$state")"
    echo 1 > "$KFP_DISTRIBUTED_MODEL_DIR/weights"
    exit
fi
trap 'echo 7 > "$state"; sleep 10; exit 143' TERM
echo begun
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize(
    ("operator", "distribution"),
    [
        ("training-operator", {}),
        pytest.param("trainer", ALONE, marks=pytest.mark.trainer),
    ],
    indirect=["operator"],
    ids=["Job", "trainer"],
)
def test_a_step_that_is_ended_and_retried_resumes_its_training(start, distribution):
    program = {"command": ["bash", "-c", TRAINING]}
    first = start(program, distribution)
    first.wait_for(r"\[worker-0\] begun", 300)
    cancel(first)
    second = start(program, distribution, **{key: first.request[key] for key in ("identity", "model_uri")})
    verdict = second.verdict(400)
    assert verdict["succeeded"], second.log
    assert "waiting for pods of the previous attempt to end: " in second.log
    assert "[worker-0] starts after epoch 7" in second.log
    assert left_behind(second) == []
