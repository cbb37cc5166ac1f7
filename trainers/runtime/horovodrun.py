"""The launcher of an elastic MPI job: Horovod starts the ranks over Gloo, and forms a new ring when a rank is lost.

`python -m kfp_distributed.trainers.runtime.horovodrun WORKERS MIN MAX SLOTS COMMAND...` runs a command in each slot of
each worker: on this machine, or in the pods of an MPIJob v1. A worker with a failed rank is not used again.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp_distributed.trainers.runtime.job_description import LOST_SECONDS_VARIABLE, REPLICA_VARIABLE
from kfp_distributed.trainers.runtime.lifecycle.lost_step import end_when_lost
from kfp_distributed.trainers.runtime.workarounds.horovod_internals import (
    environment_of_ranks,
    environment_of_slot,
    start_driver,
)

_RUN_IN_POD, _SHOW_PODS = "/etc/mpi/kubexec.sh", "/etc/mpi/discover_hosts.sh"
"""Scripts of the training operator in the launcher's pod: one runs a command in a worker's pod, one lists the pods."""

_START_SECONDS = 366 * 24 * 3600
"""Timeout of the first workers: in effect none, because the train step has timeouts of its own."""

LOST_SECONDS = 20
"""Seconds without an answer after which the launcher is lost. One that does not answer may come back."""

_CONNECT_SECONDS = 5

_REFUSALS = 2
"""Number of refused connections in a row after which the process of the launcher has ended. Its next attempt starts new
ranks in this pod, which use the same folders."""

_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
"""Environment variable with the timeout of the ranks for one that has not joined, or died and left connections open."""


def end_without_launcher(end: Callable[[], object]) -> None:
    """Call `end` in a thread when the launcher is lost. It cannot end the ranks in other pods, and starts new ones."""
    address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])

    def wait() -> None:
        seen, refused = time.monotonic(), 0
        while time.monotonic() - seen < LOST_SECONDS and refused < _REFUSALS:
            time.sleep(1)
            try:
                socket.create_connection(address, _CONNECT_SECONDS).close()
                seen, refused = time.monotonic(), 0
            except ConnectionRefusedError:
                refused += 1
            except OSError:
                pass
        end()

    threading.Thread(target=wait, daemon=True).start()


def slot_number(host: str, local_rank: int = 0, slots: int = 1) -> int:
    """Return the number of a slot, which does not change with the ranks. The numbers of "worker-1" start at `slots`."""
    return int(host.rpartition("-")[2]) * slots + local_rank


def main(words: Sequence[str]) -> int:
    """Run a job to its end; return the exit code of rank 0, or of the rank that failed first."""
    workers, fewest, most, slots = map(int, words[:4])
    in_pods = Path(_RUN_IN_POD).exists()
    # Without a handler, the first process of a container ignores the kubelet's SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(128 + number))
    if in_pods:
        # The workers' pods end as well, and Horovod would wait for new ones. The operator restarts a launcher that ends
        # with another exit code than 0.
        end_when_lost(lambda: os._exit(0), os.environ.get(LOST_SECONDS_VARIABLE))

    def find_hosts() -> dict[str, int]:
        hosts = [f"worker-{index}" for index in range(workers)]
        if in_pods:
            hosts = [line.split(":")[0] for line in subprocess.check_output(_SHOW_PODS, text=True).split()]
        return dict.fromkeys(hosts, slots)

    driver, port = start_driver(find_hosts, fewest, most, slots, _START_SECONDS, slot_number)
    address = socket.gethostbyname(socket.gethostname() if in_pods else "localhost")
    common = {_TIMEOUT: os.environ.get(_TIMEOUT, "60"), **environment_of_ranks(address, port)}

    def run(slot: Any, events: Sequence[threading.Event]) -> tuple[int, float]:  # noqa: ANN401
        worker = "-".join(slot.hostname.split("-")[-2:])
        variables, command = {**common, **environment_of_slot(slot), REPLICA_VARIABLE: worker}, words[4:]
        if in_pods:
            # The command also has the environment of its pod, which must not appear in the command line.
            pairs = [f"{name}={value}" for name, value in variables.items()]
            command = [_RUN_IN_POD, slot.hostname, shlex.join(["env", *pairs, *command])]
        number = slot_number(slot.hostname, slot.local_rank, slots)
        return run_marked(command, {**os.environ, **variables}, number, events), time.time()

    driver.start(workers * slots, run)
    results, first = driver.get_results().worker_results, driver.get_coordinator_info()
    if results.get(f"{first.hostname}[{first.local_rank}]", (1,))[0] == 0:
        return 0  # Rank 0 has saved the model.
    # The failed rank that ended first.
    name, (code, _) = min(results.items(), key=lambda result: (not result[1][0], result[1][1]))
    host, _, local_rank = name.rstrip("]").partition("[")
    print(f"Process name: {slot_number(host, int(local_rank), slots)}", flush=True)
    return int(code) or 1


_lock = threading.Lock()


def run_marked(
    command: Sequence[str], variables: Mapping[str, str], number: int, events: Sequence[threading.Event]
) -> int:
    """Run a command until it ends or one of the events is set, and mark each line that it prints with a number.

    Args:
        command: Command with its arguments.
        variables: Environment of the command.
        number: Number of the slot.
        events: Events of Horovod that end the command.

    Returns:
        The exit code, 128 + N for signal N.
    """
    child = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def show() -> None:
        for line in child.stdout or ():
            with _lock:
                sys.stdout.buffer.write(b"[%d]<stdout>:%s\n" % (number, line.rstrip(b"\n")))
                sys.stdout.buffer.flush()

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    while child.poll() is None:
        if any(event.is_set() for event in events):
            child.terminate()
        time.sleep(0.1)
    shown.join(5)  # A process that the command has left running may keep the pipe open.
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
