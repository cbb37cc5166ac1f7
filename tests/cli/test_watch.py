"""What `watch` prints of a job that fails."""

from types import SimpleNamespace

from click.testing import CliRunner
from step_lines import brief_lines
from train.programs.jobs import make_job, workers

from kfp_distributed.cli.commands import watch
from kfp_distributed.cli.jobs.cluster_jobs import ClusterJob
from kfp_distributed.components.train.describe.manifests.cluster_settings import ClusterSettings
from kfp_distributed.components.train.describe.manifests.job_objects import plan_objects
from kfp_distributed.components.train.run.facts import JobEnded, LogLine, ReplicaChanged

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 31, in fit',
    "    loss = model(x)",
    "ValueError: bad shape",
]


def test_the_cause_of_a_failure_has_the_frames_of_the_traceback(monkeypatch):
    """No other line of `watch` has them: of the lines of a replica it prints epochs alone."""
    objects = plan_objects(make_job((), workers(2)), ClusterSettings("team-a", image="image", mpi_version=None))
    manifest = {**objects.manifest, "status": {}}
    manifest["metadata"] = {"creationTimestamp": "2026-11-23T14:00:00Z", **manifest["metadata"]}
    facts = [
        *(LogLine(2, "worker-1", line) for line in TRACEBACK),
        ReplicaChanged(3, "worker-1", "failed", exit_code=1),
        JobEnded(4, False, "It is so."),
    ]
    monkeypatch.setattr(watch, "connected", lambda namespace: SimpleNamespace(namespace="team-a"))
    monkeypatch.setattr(watch, "existing_job", lambda api, name: ClusterJob(objects.kind, manifest))
    monkeypatch.setattr(watch, "follow_job", lambda api, job: iter(facts))
    result = CliRunner().invoke(watch.command, ["a-job"])
    assert result.exit_code == 1, result.output
    lines = brief_lines(result.output)
    first = lines.index(f"[worker-1] {TRACEBACK[0]}")
    assert lines[first : first + 4] == [f"[worker-1] {line}" for line in TRACEBACK]
