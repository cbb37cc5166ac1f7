"""How the ranks of an MPI job are started, and what their launcher prints of them. Pure."""

import re
from collections.abc import Iterable, Sequence

from kfp_distributed.components.train.specification import DistributionSpecification

_TAGGED = re.compile(r"\[(?:\d+,)?(\d+)\]<std(?:out|err)>: ?(.*)", re.DOTALL)
# OpenMPI 4 and 5 say so, and horovodrun.
_FAILED = re.compile(r"(?:noticed that process rank |Process name: (?:\[.*,)?)(\d+)")

# horovodrun itself ends with 1, whatever the rank has ended with that failed.
_HOROVODRUN = """\
import re, sys
from horovod.runner.launch import run_commandline
try:
    run_commandline()
except RuntimeError as error:
    print(error, flush=True)
    sys.exit(int((re.findall(r"Exit code: (\\d+)", str(error)) or [1])[0]))
"""


def mpirun(ranks: int, program: Sequence[str], *options: str) -> list[str]:
    """The command of OpenMPI that starts so many processes, and marks what each of them prints."""
    always = ("--allow-run-as-root", "--bind-to", "none", "--tag-output")
    return ["mpirun", *always, "-np", str(ranks), *options, *program]


def horovodrun(ranks: int, program: Sequence[str], python: str) -> list[str]:
    """The same by Horovod over Gloo, for a machine without OpenMPI."""
    return [python, "-c", _HOROVODRUN, "--gloo", "-np", str(ranks), *program]


def elastic_horovodrun(spec: DistributionSpecification, program: Sequence[str], python: str = "python3") -> list[str]:
    """The same of elastic training, whose ranks meet anew when a worker is lost."""
    counts = (spec.number_of_workers, spec.min_workers, spec.max_workers, spec.slots_per_worker)
    return [python, "-m", "kfp_distributed.trainers.runtime.horovodrun", *map(str, counts), *program]


def printed_by(replica: str, line: str, spec: DistributionSpecification) -> tuple[str, str]:
    """The replica that has printed a line, and the line: a launcher prints those of all ranks, each marked."""
    match = _TAGGED.fullmatch(line) if replica == "launcher-0" else None
    if match and int(match[1]) < spec.ranks:
        return _worker(match[1], spec.slots_per_worker), match[2]
    return replica, line


def failed_worker(lines: Iterable[str], slots_per_worker: int) -> str:
    """The worker one of whose processes ended a launcher's last start, as its lines tell; "" where they do not."""
    found = [match[1] for line in lines if (match := _FAILED.search(line))]
    return _worker(found[-1], slots_per_worker) if found else ""


def _worker(rank: str, slots_per_worker: int) -> str:
    return f"worker-{int(rank) // slots_per_worker}"
