"""The logs of a training's pods so far, merged by time."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from heapq import merge
from typing import Any

from kfp_distributed.cli.jobs.cluster_jobs import ClusterJob, objects_of
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError
from kfp_distributed.components.model_formats.quiet_import import STARTUP_REMARK
from kfp_distributed.components.train.describe.manifests import JOB_LABEL
from kfp_distributed.components.train.describe.mpirun import LAUNCHER, RankLines, printed_by
from kfp_distributed.components.train.describe.specification import DistributionSpecification
from kfp_distributed.components.train.run.runners.kubernetes.cluster_records.pods import replica_of, started_containers
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.trainers.runtime.monitoring.samples import split_sample

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{1,6})\d*(Z|[+-]\d\d:\d\d)")
"""Time of a line as the kubelet writes it, with nanoseconds and the zone of the node."""

_IDLE_SECONDS = 60.0


def read_logs(api: ClusterApi, job: ClusterJob, replica: str = "") -> Iterator[LogEntry]:
    """Yield the lines of the replicas by time, without samples and without TensorFlow's remarks at each start.

    If a container was restarted in its pod, the lines of the start before the current one are included.

    Args:
        api: The cluster.
        job: The training.
        replica: Name of the replica to read. Default: "", all replicas.

    Raises:
        ClusterError: The account may not list the pods or read their logs, or the API server does not answer.
    """
    spec = objects_of(job).job.specification
    core = f"/api/v1/namespaces/{api.namespace}"
    pods = api.list_objects(f"{core}/pods", {"labelSelector": f"{JOB_LABEL}={job.name}"}).items
    logs = [
        _read_container(api, replica_of(pod), f"{core}/pods/{pod['metadata']['name']}/log", container, restarts, spec)
        for pod in pods
        for container, (restarts, _) in started_containers(pod).items()
    ]
    for entry in merge(*logs, key=lambda entry: entry.time):
        if replica in ("", entry.replica):
            yield entry


def read_entries(replica: str, lines: Iterable[str], spec: DistributionSpecification) -> Iterator[LogEntry]:
    """Yield the entries of one container's log.

    Args:
        replica: Name of the replica.
        lines: Lines with their times, as the API server sends them.
        spec: Specification of the job, to recognize lines of ranks in the log of an MPI launcher.
    """
    time, ranks = 0.0, RankLines()
    for line in lines:
        stamp, _, text = line.partition(" ")
        if match := _STAMP.fullmatch(stamp):
            # A log has two streams, whose times may be out of order by some milliseconds.
            time = max(time, _seconds(match))
        else:
            text = line
        for part in ranks.join(text) if replica == LAUNCHER else [text]:
            yield from _entry(time, replica, part, spec)
    for part in ranks.end():
        yield from _entry(time, replica, part, spec)


def _entry(time: float, replica: str, line: str, spec: DistributionSpecification) -> Iterator[LogEntry]:
    rank, text = printed_by(replica, line, spec)
    # As on a terminal, the text after a carriage return replaces the text before it.
    text, sample = split_sample(text.rstrip("\r").rpartition("\r")[2])
    if (text or sample is None) and not re.search(STARTUP_REMARK, text):
        yield LogEntry(time, "INFO", rank, text)


def _read_container(
    api: ClusterApi, replica: str, path: str, container: str, restarts: int, spec: DistributionSpecification
) -> Iterator[LogEntry]:
    """Yield the entries of a container. Those of its previous start come first. The kubelet keeps no earlier ones."""
    mark, time = f"--- restart {restarts} of the container; only the start before it is kept ---", 0.0
    is_marked = not restarts
    if restarts:
        for entry in read_entries(replica, _lines(api, path, container, {"previous": "true"}), spec):
            if entry.time:  # If the log was deleted, the kubelet sends a text without a time instead.
                yield entry
            time = entry.time
    for entry in read_entries(replica, _lines(api, path, container, {}), spec):
        if not is_marked:
            is_marked = True
            yield LogEntry(entry.time, "WARNING", replica, mark)
        yield entry
    if not is_marked and time:
        yield LogEntry(time, "WARNING", replica, mark)


def _lines(api: ClusterApi, path: str, container: str, start: Mapping[str, str]) -> Iterator[str]:
    query: Mapping[str, Any] = {"container": container, "timestamps": "true", **start}
    try:
        yield from api.lines(path, query, _IDLE_SECONDS)
    except ClusterError as error:
        if error.status not in (400, 404):  # The container has no log yet, or its pod is gone.
            raise


def _seconds(match: re.Match[str]) -> float:
    zone = match[3].replace("Z", "+00:00")
    moment = datetime.strptime(f"{match[1]}{zone}", "%Y-%m-%dT%H:%M:%S%z")
    return (moment + timedelta(microseconds=int(match[2].ljust(6, "0")))).timestamp()
