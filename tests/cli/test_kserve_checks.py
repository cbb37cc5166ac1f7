"""What the doctor makes of the versions of InferenceService that a cluster serves."""

import pytest

from kfp_distributed.cli.checks import Check, Question
from kfp_distributed.cli.kserve_checks import judge_kserve
from kfp_distributed.cli.libraries import StepLibrary

INSTALL = "install KServe 0.11 or later"


@pytest.mark.parametrize(
    ("steps", "served", "level", "message", "fix"),
    [
        ([], [], "ok", "not served; only deploy_model needs KServe", ""),
        (["train"], [], "ok", "not served; only deploy_model needs KServe", ""),
        (["train", "deploy-model"], [], "failed", "not served, and deploy-model needs KServe", INSTALL),
        (["deploy-model-2"], [], "failed", "not served, and deploy-model-2 needs KServe", INSTALL),
        (["my-deploy-model"], [], "ok", "not served; only deploy_model needs KServe", ""),
        ([], ["v1beta1"], "ok", "served as serving.kserve.io/v1beta1", ""),
        ([], ["v1", "v1beta1"], "ok", "served as serving.kserve.io/v1beta1", ""),
        (
            [],
            ["v1", "v1alpha2"],
            "warning",
            "served as serving.kserve.io/v1, v1alpha2, and deploy_model needs v1beta1",
            INSTALL,
        ),
        (
            ["deploy-model"],
            ["v1"],
            "failed",
            "served as serving.kserve.io/v1, and deploy_model needs v1beta1",
            INSTALL,
        ),
    ],
)
def test_the_served_versions(steps, served, level, message, fix):
    libraries = tuple(StepLibrary(step, "kfp-distributed-1-0", "0") for step in steps)
    result = judge_kserve(Question("team", "", libraries=libraries), served)
    assert result == Check("InferenceService", level, message, fix)
