"""Judge whether a cluster serves the kind that the step `deploy_model` creates. Pure."""

from collections.abc import Sequence

from kfp_distributed.cli.checks import Check, CheckLevel, Question, deploy_steps
from kfp_distributed.components.deploy_model.inference_service import GROUP, KIND, VERSION


def judge_kserve(question: Question, versions: Sequence[str]) -> Check:
    """Return the check of KServe. Without a pipeline that deploys models, a cluster need not have it.

    Args:
        question: Options of `doctor`.
        versions: Versions in which the API server serves InferenceService.
    """
    if VERSION in versions:
        return Check(KIND, "ok", f"served as {GROUP}/{VERSION}")
    steps, install = deploy_steps(question), "install KServe 0.11 or later"
    if versions:
        level: CheckLevel = "failed" if steps else "warning"
        message = f"served as {GROUP}/{', '.join(versions)}, and deploy_model needs {VERSION}"
        return Check(KIND, level, message, install)
    if steps:
        return Check(KIND, "failed", f"not served, and {', '.join(steps)} needs KServe", install)
    return Check(KIND, "ok", "not served; only deploy_model needs KServe")
