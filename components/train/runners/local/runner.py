"""The replicas of a job as processes of this machine."""

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

from kfp_distributed.components.train.durations import format_seconds
from kfp_distributed.components.train.job import (
    Fact,
    JobEnded,
    JobEvent,
    LogLine,
    Quiet,
    ReplicaChanged,
    State,
    TrainingJob,
    clock,
)
from kfp_distributed.components.train.mpirun import printed_by
from kfp_distributed.components.train.runners.lines import LineCutter
from kfp_distributed.components.train.runners.local.gpus import machine_gpus, visible_gpus
from kfp_distributed.components.train.runners.local.interpreter import find_python, mpi_command
from kfp_distributed.components.train.runners.local.ports import free_ports, is_taken
from kfp_distributed.components.train.runners.local.restart_policy import Step, next_step
from kfp_distributed.components.train.topology import replica_environment
from kfp_distributed.library.archive import ARCHIVE_KEY, make_archive
from kfp_distributed.library.content import REPLICA_PACKAGES, read_library
from kfp_distributed.library.packages import install_command, without_passwords
from kfp_distributed.processes.group import ProcessGroup
from kfp_distributed.trainers.requirements import Requirements, missing_here
from kfp_distributed.trainers.runtime.job import JOB_VARIABLE, PEAK_MEMORY

_CHUNK = 64 * 1024
_LARGEST_PIPE = 1024 * 1024
"""Bytes: what Linux lets a process without privileges make of a pipe."""
_LOOK_SECONDS = 0.05
"""How often processes are looked at. An end is mostly seen at once, by the end of the output."""

_NEVER_STARTED = ("waiting", "installing")

# What tells a process its place in a job. If we run in such a job ourselves, ours must not reach the replicas.
_PLACE = re.compile(
    "TF_CONFIG|MASTER_(ADDR|PORT)|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)"
    "|HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|ELASTIC|HOSTNAME|CONTROLLER|GLOO_(?!TIMEOUT).*)"
    "|(PET|TORCHELASTIC|OMPI|PMIX)_.*"
)


class _Process(NamedTuple):
    """A running replica: its process, what it prints, and what was read of an unfinished line."""

    child: subprocess.Popen[bytes]
    output: IO[bytes]
    cutter: LineCutter


class LocalRunner:
    """Runs each replica of a job as a process in a folder of its own.

    One thread does everything while `facts` is iterated: it reads what the replicas print, sees them end, and does
    what `next_step` says. So nothing is buffered here, and a slow reader slows the replicas down.
    """

    shares_disk = True
    manifest: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, choose_ports: Callable[[int], list[int]] = free_ports) -> None:
        """Makes a runner for one job, whose ports `choose_ports` finds."""
        self._choose_ports = choose_ports
        self._resources = contextlib.ExitStack()
        self._processes: dict[str, _Process] = {}
        self._install_seconds = 0.0

    def check(self, job: TrainingJob) -> None:
        """Looks for what the replicas run in.

        Raises:
            ValueError: It is not there.
        """
        spec = job.specification
        self._python = find_python(job.description.program, spec.distribution_type)
        self._argv = list(job.argv or (self._python, "-m", "kfp_distributed.trainers.runtime.entry"))
        if spec.distribution_type == "MPI":
            self._argv = mpi_command(self._python, spec, self._argv)

    def start(self, job: TrainingJob) -> None:
        """Prepares the folder of the job that was checked; the processes start with the first fact."""
        self._job = job
        self._last = {each.name: ReplicaChanged(clock(), each.name, "waiting") for each in job.topology.replicas}
        self._folder = Path(tempfile.mkdtemp(prefix=f"{job.name}-"))
        if not job.specification.keep_job:
            self._resources.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._packages = self._folder / "packages"
        self._code = self._folder / "code"
        self._code.mkdir()
        (self._code / ARCHIVE_KEY).write_bytes(make_archive(read_library(REPLICA_PACKAGES)))
        (self._code / "job.json").write_text(job.description.to_json())
        self._selector = self._resources.enter_context(selectors.DefaultSelector())
        self._group = self._resources.enter_context(ProcessGroup())

    def stop(self) -> None:
        """Ends all processes and removes the job's folder."""
        self._resources.close()
        for process in self._processes.values():
            process.output.close()

    def facts(self) -> Iterator[Fact]:
        """Starts the replicas and tells what happens until the job has ended."""
        program = self._job.description.program
        if program.get("image"):
            yield JobEvent(clock(), f"image of train_specification is ignored: {self._python} runs all", "WARNING")
        if self._job.specification.volumes:
            yield JobEvent(
                clock(), "volumes of distribution_specification are ignored: a path is of this machine", "WARNING"
            )
        wanted, here = sum(each.resources.gpus for each in self._job.topology.replicas), len(machine_gpus())
        if wanted > here and len(self._last) > 1:
            yield JobEvent(
                clock(), f"{wanted} GPUs are asked for and {here} are here: all replicas train without", "WARNING"
            )
        own = self._python == sys.executable
        needed = missing_here(program) if own else Requirements(tuple(program.get("packages", ())))
        if needed.packages or needed.alone:
            yield from self._install(needed)
            if not self._packages.is_dir():
                return
        count = len(self._last)
        yield JobEvent(clock(), f"starts {count} process{'es' * (count > 1)} in {self._folder}")
        yield from self._start_replicas(tuple(self._last))
        step = None
        while step is None or step.action in ("stop", "restart"):
            yield from self._read()
            yield from self._collect()
            step = self._next_step()
            if step:
                yield from self._do(step)
            yield Quiet(clock())
        yield JobEnded(clock(), step.action == "succeed", step.reason)

    def _install(self, needed: Requirements) -> Iterator[Fact]:
        """Runs pip; where it fails the job has failed, and the packages' folder is not there."""
        yield JobEvent(clock(), f"installs {without_passwords(' '.join((*needed.packages, *needed.alone)))}")
        for name in self._last:
            yield self._changed(name, "installing", reason="pip installs its packages")
        started = clock()
        log = self._folder / "pip.log"
        with log.open("wb") as output:
            command = install_command(needed.packages, needed.alone, folder=str(self._packages), python=self._python)
            environment = {**os.environ, "PYTHONPATH": str(self._code / ARCHIVE_KEY), "PYTHONUNBUFFERED": "1"}
            child = self._group.start("pip", command, env=environment, cwd=self._folder, stdout=output)
        while child.poll() is None:
            yield Quiet(clock())
            time.sleep(_LOOK_SECONDS)
        if child.returncode:
            shutil.rmtree(self._packages, ignore_errors=True)
            last = " ".join(log.read_text(errors="replace").split("\n")[-4:])
            yield JobEnded(clock(), False, f"pip could not install what the program needs: {last.strip()}")
            return
        self._install_seconds = clock() - started
        yield JobEvent(clock(), f"packages installed in {format_seconds(self._install_seconds)}")

    def _next_step(self) -> Step | None:
        everyone = tuple(self._last)
        limit = self._job.specification.restart_limit
        taken = {name for name in everyone if self._last[name].state == "failed" and is_taken(self._ports[name])}
        return next_step(self._job.topology, self._last, clock(), limit, taken)

    def _do(self, step: Step) -> Iterator[Fact]:
        again = step.action == "restart"
        if again:
            number = max(self._last[name].restart for name in step.replicas) + 1
            limit = self._job.specification.restart_limit
            who = "all replicas" if len(step.replicas) == len(self._last) else ", ".join(step.replicas)
            yield JobEvent(clock(), f"restart {number} of {limit}: {who} ({step.reason})", "WARNING")
        running = [name for name in step.replicas if self._last[name].state in ("starting", "running")]
        self._group.stop(running)
        for name in running:
            if name in self._processes:
                yield from self._drain(name)
            yield self._changed(name, "stopped", reason="the job failed" if step.action == "fail" else step.reason)
        if again:
            yield from self._start_replicas(step.replicas)

    def _start_replicas(self, names: tuple[str, ...]) -> Iterator[Fact]:
        if len(names) == len(self._last):
            self._ports = dict(zip(names, self._choose_ports(len(names)), strict=True))
        for name in names:
            before = self._last[name]
            yield self._changed(name, "starting", restart=before.restart + (before.state not in _NEVER_STARTED))
            # The launcher of MPI starts what would run in its workers.
            if self._job.topology.distribution_type != "MPI" or name == self._job.topology.leader:
                self._start_process(name)
            yield self._changed(name, "running")

    def _start_process(self, name: str) -> None:
        job, slots = self._job, self._job.specification.slots_per_worker
        addresses = {each: f"127.0.0.1:{port}" for each, port in self._ports.items()}
        # As fresh as the disk of a new pod.
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        environment = {
            # Python would keep what it prints in a buffer: no line would be seen before the buffer is full.
            "PYTHONUNBUFFERED": "1",
            # PyTorch would start as many threads in each replica as there are processors.
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(job.topology.data_replicas) // slots)),
            **{key: value for key, value in os.environ.items() if not _PLACE.fullmatch(key)},
            **visible_gpus(job.topology, name, machine_gpus()),
            **job.environment,
            # A command's `python` is the one that has what it needs, too.
            "PATH": os.pathsep.join((str(Path(self._python).parent), os.environ.get("PATH", ""))),
            "PYTHONPATH": os.pathsep.join(self._import_path()),
            **replica_environment(job.topology, name, addresses, job.specification),
            JOB_VARIABLE: str(self._code / "job.json"),
        }
        child = self._group.start(name, self._argv, env=environment, cwd=folder, stdout=subprocess.PIPE)
        output: IO[bytes] = child.stdout  # type: ignore[assignment]  # PIPE makes one.
        os.set_blocking(output.fileno(), False)
        self._processes[name] = _Process(child, output, LineCutter())
        self._selector.register(output, selectors.EVENT_READ, name)

    def _import_path(self) -> Iterator[str]:
        """What was installed for the job comes first, then our modules, then what this process was given itself."""
        if self._packages.is_dir():
            yield str(self._packages)
        yield str(self._code / ARCHIVE_KEY)
        given = self._job.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        if given and self._python == sys.executable:
            yield given

    def _read(self) -> Iterator[LogLine]:
        """What the replicas have printed; waits a moment where that is nothing. Each gets its turn."""
        for key, _ in self._selector.select(_LOOK_SECONDS):
            data = os.read(key.fd, _CHUNK)
            yield from self._cut(key.data, data)
            if not data:
                self._selector.unregister(key.fileobj)

    def _cut(self, name: str, data: bytes) -> Iterator[LogLine]:
        now = clock()
        for line in self._processes[name].cutter.feed(data, now):
            yield LogLine(now, *printed_by(name, line, self._job.specification))

    def _collect(self) -> Iterator[Fact]:
        """The replicas that have ended, each after its last lines."""
        ended = {name: code for name, each in self._processes.items() if (code := each.child.poll()) is not None}
        # What they left running would keep the pipes open, and is no part of the job any more.
        self._group.stop(ended, grace_seconds=0)
        for name, code in ended.items():
            yield from self._drain(name)
            if code < 0:
                yield self._changed(name, "failed", signal=-code)
            else:
                yield self._changed(name, "failed" if code else "succeeded", exit_code=code)

    def _drain(self, name: str) -> Iterator[LogLine]:
        """The last lines of a replica that has ended."""
        output = self._processes[name].output
        # No end comes where a process that left the session holds the pipe open.
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
