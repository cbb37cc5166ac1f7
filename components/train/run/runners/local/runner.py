"""Runner that runs the replicas of a job as processes of this machine."""

import contextlib
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from kfp_distributed.components.train.describe.durations import format_seconds
from kfp_distributed.components.train.describe.mpirun import LAUNCHER, RankLines, printed_by
from kfp_distributed.components.train.describe.topology import replica_environment
from kfp_distributed.components.train.describe.training_job import TrainingJob
from kfp_distributed.components.train.run.conclusions.restarts import Restarts, answer_time
from kfp_distributed.components.train.run.facts import (
    Fact,
    JobEnded,
    JobEvent,
    LogLine,
    ReplicaChanged,
    State,
    Tick,
    clock,
)
from kfp_distributed.components.train.run.runners.lines import LineCutter
from kfp_distributed.components.train.run.runners.local.gpus import machine_gpus, visible_gpus
from kfp_distributed.components.train.run.runners.local.interpreter import find_python, mpi_command
from kfp_distributed.components.train.run.runners.local.language_models import check_language_model
from kfp_distributed.components.train.run.runners.local.ports import free_ports, is_taken
from kfp_distributed.components.train.run.runners.local.restart_policy import Decision, decide, is_retryable
from kfp_distributed.components.train.run.runners.newest_checkpoint import NewestCheckpoint
from kfp_distributed.library.address_secrets import mask_secrets
from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.library.packages import install_command
from kfp_distributed.processes.group import ProcessGroup
from kfp_distributed.trainers.programs.requirements import Requirements, missing_here
from kfp_distributed.trainers.runtime.job_description import GRACE_VARIABLE, JOB_VARIABLE, PEAK_MEMORY, STORE_AWAY

_CHUNK = 64 * 1024
_LARGEST_PIPE = 1024 * 1024
"""Maximum size of a pipe in bytes that Linux allows a process without privileges."""
_POLL_SECONDS = 0.05
"""Interval at which processes are polled. Usually the end of its output already signals the end of a process."""

_NEVER_STARTED = ("waiting", "installing")

# Variables that describe the position of a process in a job. If the step itself runs in such a job, the replicas must
# not inherit them.
_JOB_VARIABLES = re.compile(
    "TF_CONFIG|MASTER_(ADDR|PORT)|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)"
    "|HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|ELASTIC|HOSTNAME|CONTROLLER|GLOO_(?!TIMEOUT).*)"
    "|(PET|TORCHELASTIC|OMPI|PMIX)_.*"
)


class _Process(NamedTuple):
    """A running replica.

    Attributes:
        child: The process.
        output: Pipe with its output.
        cutter: Cuts the output into lines.
        ranks: Joins the lines of ranks, if the process is their launcher.
    """

    child: subprocess.Popen[bytes]
    output: IO[bytes]
    cutter: LineCutter
    ranks: RankLines


class LocalRunner:
    """Runs each replica of a job as a process in its own folder.

    The thread that iterates `facts` reads the output of the replicas, detects their ends and executes the decisions of
    `decide`. Output is not buffered, so a slow reader slows the replicas down.
    """

    shares_disk = True
    manifest: Mapping[str, Any] = MappingProxyType({})
    namespace = ""

    def __init__(self, choose_ports: Callable[[int], list[int]] = free_ports) -> None:
        """Create a runner for one job.

        Args:
            choose_ports: Returns free ports, of which each replica gets one.
        """
        self._choose_ports = choose_ports
        self._resources = contextlib.ExitStack()
        self._processes: dict[str, _Process] = {}
        self._install_seconds = 0.0

    def check(self, job: TrainingJob) -> None:
        """Check that this machine has a Python and the launcher that the job needs. See `check_language_model`, too.

        Raises:
            ValueError: One of them is missing.
        """
        check_language_model(job, len(machine_gpus()))
        spec = job.specification
        self._python = find_python(job.description.program, spec.distribution_type)
        self._argv = list(job.argv or (self._python, "-m", "kfp_distributed.trainers.runtime.entry"))
        if spec.distribution_type == "MPI":
            self._argv = mpi_command(self._python, spec, self._argv)

    def start(self, job: TrainingJob) -> None:
        """Create the folder of the checked job. The processes start when `facts` is iterated."""
        self._job = job
        self._restarts = Restarts(job.specification)
        self._newest_checkpoint = NewestCheckpoint(job.description.checkpoint_uri)
        names = [replica.name for replica in job.topology.replicas]
        self._last = {name: ReplicaChanged(clock(), name, "waiting") for name in names}
        self._folder = Path(tempfile.mkdtemp(prefix=f"{job.name}-"))
        if not job.specification.keep_job:
            self._resources.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._packages = self._folder / "packages"
        self._code = self._folder / "code"
        self._code.mkdir()
        (self._code / ARCHIVE_KEY).write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
        (self._code / "job.json").write_text(job.description.to_json())
        self._selector = self._resources.enter_context(selectors.DefaultSelector())
        folder = "" if job.specification.keep_job else self._folder
        group = ProcessGroup(job.specification.termination_grace_seconds, folder)
        self._group = self._resources.enter_context(group)

    def adopt(self, job: TrainingJob) -> bool:
        """Return False: processes do not outlive the step that started them."""
        return False

    def stop(self) -> None:
        """End all processes and delete the folder of the job."""
        self._resources.close()
        for process in self._processes.values():
            process.output.close()

    def facts(self) -> Iterator[Fact]:
        """Start the replicas and yield facts until the job has ended."""
        yield from map(self._warn, self._ignored_settings())
        program = self._job.description.program
        is_own_python = self._python == sys.executable
        requirements = missing_here(program) if is_own_python else Requirements(tuple(program.get("packages", ())))
        if requirements.packages or requirements.alone:
            yield from self._install(requirements)
            if not self._packages.is_dir():
                return
        count = len(self._last)
        yield JobEvent(clock(), f"starting {count} process{'es' * (count > 1)} in {self._folder}")
        yield from self._start_replicas(tuple(self._last))
        decision = None
        while decision is None or decision.action in ("stop", "restart"):
            yield from self._read()
            yield from self._collect()
            decision = self._decide()
            if decision:
                yield from self._execute(decision)
            yield Tick(clock())
        yield JobEnded(clock(), decision.action == "succeed", decision.reason)

    def _ignored_settings(self) -> Iterator[str]:
        """Yield a warning for each setting of the job that only a cluster, or a machine with more GPUs, can follow."""
        if self._job.description.program.get("image"):
            yield f"image of train_specification is ignored; all replicas run {self._python}"
        if self._job.specification.volumes:
            yield "volumes of distribution_specification are ignored; their paths are read on this machine"
        requested = sum(replica.resources.gpus for replica in self._job.topology.replicas)
        available = len(machine_gpus())
        if requested > available and len(self._last) > 1:
            yield f"{requested} GPUs are requested but {available} are available; all replicas run without a GPU"

    @staticmethod
    def _warn(text: str) -> JobEvent:
        return JobEvent(clock(), text, "WARNING")

    def _install(self, requirements: Requirements) -> Iterator[Fact]:
        """Install packages with pip. If that fails, the job has failed and there is no folder of packages."""
        packages, alone = requirements.packages, requirements.alone
        yield JobEvent(clock(), f"installing {mask_secrets(' '.join((*packages, *alone)))}")
        for name in self._last:
            yield self._changed(name, "installing", reason="installing packages with pip")
        started = clock()
        log = self._folder / "pip.log"
        with log.open("wb") as output:
            command = install_command(packages, alone, folder=str(self._packages), python=self._python)
            environment = {**os.environ, "PYTHONPATH": str(self._code / ARCHIVE_KEY), "PYTHONUNBUFFERED": "1"}
            child = self._group.start("pip", command, env=environment, cwd=self._folder, stdout=output)
        while child.poll() is None:
            yield Tick(clock())
            time.sleep(_POLL_SECONDS)
        if child.returncode:
            shutil.rmtree(self._packages, ignore_errors=True)
            last_lines = " ".join(log.read_text(errors="replace").split("\n")[-4:])
            yield JobEnded(clock(), False, f"pip could not install the packages of the program: {last_lines.strip()}")
            return
        self._install_seconds = clock() - started
        yield JobEvent(clock(), f"packages installed in {format_seconds(self._install_seconds)}")

    def _decide(self) -> Decision | None:
        failed = [change for change in self._last.values() if change.state == "failed"]
        taken = {change.replica for change in failed if is_taken(self._ports[change.replica])}
        if taken or any(map(is_retryable, failed)):
            self._restarts = self._restarts.after_failure(self._newest_checkpoint.read())
        return decide(self._job.topology, self._last, clock(), self._restarts, taken)

    def _execute(self, decision: Decision) -> Iterator[Fact]:
        is_restart, names = decision.action == "restart", decision.replicas
        if is_restart:
            restarted = "all replicas" if len(names) == len(self._last) else ", ".join(names)
            number = self._restarts.next_restart(names) if decision.counts else "restart"
            yield self._warn(f"{number}: {restarted} ({decision.reason})")
            if decision.counts:
                self._restarts = self._restarts.after_restart(names)
        running = [name for name in names if self._last[name].state in ("starting", "running")]
        self._group.stop(running)
        for name in running:
            if name in self._processes:
                yield from self._drain(name)
            reason = "the job failed" if decision.action == "fail" else decision.reason
            yield self._changed(name, "stopped", reason=reason)
        if is_restart:
            yield from self._start_replicas(names)

    def _start_replicas(self, names: tuple[str, ...]) -> Iterator[Fact]:
        if len(names) == len(self._last):
            self._ports = dict(zip(names, self._choose_ports(len(names)), strict=True))
        for name in names:
            before = self._last[name]
            yield self._changed(name, "starting", restart=before.restart + (before.state not in _NEVER_STARTED))
            # The MPI launcher starts the processes of the workers.
            if self._job.topology.distribution_type != "MPI" or name == self._job.topology.leader:
                self._start_process(name)
            yield self._changed(name, "running")

    def _start_process(self, name: str) -> None:
        job, slots = self._job, self._job.specification.slots_per_worker
        addresses = {replica: f"127.0.0.1:{port}" for replica, port in self._ports.items()}
        # Empty, like the disk of a new pod.
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        environment = {
            # Otherwise Python would buffer the output of a pipe.
            "PYTHONUNBUFFERED": "1",
            # Otherwise PyTorch would start a thread per CPU in each replica.
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(job.topology.data_replicas) // slots)),
            **{key: value for key, value in os.environ.items() if not _JOB_VARIABLES.fullmatch(key)},
            **visible_gpus(job.topology, name, machine_gpus()),
            **job.environment,
            # So that `python` in a command is the Python of the replicas.
            "PATH": os.pathsep.join((str(Path(self._python).parent), os.environ.get("PATH", ""))),
            "PYTHONPATH": os.pathsep.join(self._import_path()),
            **replica_environment(job.topology, name, addresses, job.specification),
            JOB_VARIABLE: str(self._code / "job.json"),
            GRACE_VARIABLE: str(job.specification.termination_grace_seconds),
        }
        child = self._group.start(name, self._argv, env=environment, cwd=folder, stdout=subprocess.PIPE)
        output: IO[bytes] = child.stdout  # type: ignore[assignment]  # Set because of PIPE.
        os.set_blocking(output.fileno(), False)
        self._processes[name] = _Process(child, output, LineCutter(), RankLines())
        self._selector.register(output, selectors.EVENT_READ, name)

    def _import_path(self) -> Iterator[str]:
        """Yield PYTHONPATH: the packages of the job, the library, and the PYTHONPATH of this process."""
        if self._packages.is_dir():
            yield str(self._packages)
        yield str(self._code / ARCHIVE_KEY)
        inherited = self._job.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        if inherited and self._python == sys.executable:
            yield inherited

    def _read(self) -> Iterator[LogLine]:
        """Yield the output of the replicas, a chunk of each; wait a moment if there is none."""
        for key, _ in self._selector.select(_POLL_SECONDS):
            data = os.read(key.fd, _CHUNK)
            yield from self._cut(key.data, data)
            if not data:
                self._selector.unregister(key.fileobj)

    def _cut(self, name: str, data: bytes) -> Iterator[LogLine]:
        now = clock()
        process = self._processes[name]
        lines = process.cutter.feed(data, now)
        if name == LAUNCHER:
            lines = [text for line in lines for text in process.ranks.join(line)]
            lines += [] if data else process.ranks.end()
        for line in lines:
            fact = LogLine(now, *printed_by(name, line, self._job.specification))
            if answer_time(fact) is not None:
                self._restarts = self._restarts.after_answer()
            yield fact

    def _collect(self) -> Iterator[Fact]:
        """Yield the ends of replicas, each after its last lines."""
        ended = {name: code for name, process in self._processes.items() if (code := process.child.poll()) is not None}
        # Remaining child processes would keep the pipes open.
        self._group.stop(ended, grace_seconds=0)
        for name, code in ended.items():
            yield from self._drain(name)
            if code == STORE_AWAY:
                self._restarts = self._restarts.after_answer()
            if code < 0:
                yield self._changed(name, "failed", signal=-code)
            else:
                yield self._changed(name, "failed" if code else "succeeded", exit_code=code)

    def _drain(self, name: str) -> Iterator[LogLine]:
        """Yield the last lines of a replica that has ended."""
        output = self._processes[name].output
        # Limited, because a process that has left the session may keep the pipe open and write forever.
        with contextlib.suppress(BlockingIOError):
            for _ in range(_LARGEST_PIPE // _CHUNK):
                yield from self._cut(name, os.read(output.fileno(), _CHUNK))
        yield from self._cut(name, b"")
        with contextlib.suppress(KeyError):
            self._selector.unregister(output)
        output.close()
        del self._processes[name]

    def _changed(self, name: str, state: State, **details: Any) -> ReplicaChanged:  # noqa: ANN401
        known: dict[str, float] = {"restart": self._last[name].restart, "install_seconds": self._install_seconds}
        with contextlib.suppress(OSError, ValueError):
            known["peak_memory"] = int((self._folder / name / PEAK_MEMORY).read_text())
        fact = ReplicaChanged(clock(), name, state, **{**known, **details})
        self._last[name] = fact
        return fact
