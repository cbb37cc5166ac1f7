"""Between KFP's artifacts and `launch`: what a `train` step reads, writes and says."""

import math
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from kfp_distributed.components.train.launch import Request, TrainingFailed, launch
from kfp_distributed.components.train.report import job_report
from kfp_distributed.components.train.runners.choose import choose_runner
from kfp_distributed.components.train.runners.protocol import ClusterError
from kfp_distributed.storage.errors import StorageError


def run_step(
    *,
    train_dataset: Any,  # noqa: ANN401  (kfp's artifacts, which this module must not import)
    validation_dataset: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    metrics: Any,  # noqa: ANN401
    report: Any,  # noqa: ANN401
    runner_name: str,
    cluster_secret: str = "",
    task_config: Mapping[str, Any] | None,
    **wanted: Any,  # noqa: ANN401
) -> None:
    """Runs a training and writes the step's outputs.

    Args:
        train_dataset: kfp's Dataset, likewise `validation_dataset`, which may be None.
        validation_dataset: See above.
        model: kfp's Model; the leader of the replicas writes it.
        metrics: kfp's Metrics: the last epoch's.
        report: kfp's HTML, also of a training that failed.
        runner_name: "auto", "kubernetes" or "local".
        cluster_secret: Name of the Secret of another cluster; "" means the step's own.
        task_config: The fields of kfp's TaskConfig, for replicas that are pods: others have the step's environment.
        wanted: The other fields of `Request`.

    Raises:
        SystemExit: With the cause as its text, which so ends the step's log; KFP shows it nowhere else.
    """
    # A replica may print what our own output cannot: that line must not end the training.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        runner = choose_runner(runner_name, model.uri, cluster_secret, task_config)
        # Replicas that see this step's disk take what KFP has put there, and need no credentials.
        train_uri, validation_uri, model_uri = (
            (artifact.path if runner.shares_disk else artifact.uri) if artifact else ""
            for artifact in (train_dataset, validation_dataset, model)
        )
        request = Request(train_uri=train_uri, validation_uri=validation_uri, model_uri=model_uri, **wanted)
        near: AbstractContextManager[Request] = nullcontext(request)
        if not runner.shares_disk and "://" not in model_uri:
            # Only where KFP itself runs on a machine, which then has this module.
            from kfp_distributed.components.train.staging import staged

            near = staged(request)
        with near as visible:
            outcome = launch(visible, runner, partial(print, flush=True))
    except TrainingFailed as failure:
        _write(report, job_report(failure.status, failure.metrics, runner.manifest, str(failure)))
        raise SystemExit(f"\n{failure}") from None
    except (ValueError, OSError, StorageError, ClusterError) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
    _write(report, job_report(outcome.status, outcome.metrics, runner.manifest))
    model.metadata.update(framework=outcome.model.format, job=outcome.status.job)
    for measure, value in outcome.model.metrics.items():
        # JSON, in which KFP takes metrics, has no NaN.
        if math.isfinite(value):
            metrics.log_metric(measure, value)


def _write(artifact: Any, text: str) -> None:  # noqa: ANN401
    file = Path(artifact.path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
