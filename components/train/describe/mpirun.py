"""Commands that start the ranks of an MPI job, and the lines that their launcher prints. Pure."""

import re
from collections.abc import Iterable, Sequence

from kfp_distributed.components.train.describe.specification import DistributionSpecification

LAUNCHER = "launcher-0"
"""Name of the replica that prints the lines of ranks."""

_LONGEST_LINE = 65_536
"""Characters of a joined line after which it is split."""

_TAGGED = re.compile(r"\[(?:\d+,)?(\d+)\]<std(?:out|err)>: ?(.*)", re.DOTALL)
# The tag of OpenMPI, which it also prints within a line.
_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
# Messages of OpenMPI 4, OpenMPI 5 and horovodrun.
_FAILED = re.compile(r"(?:noticed that process rank |Process name: (?:\[.*,)?)(\d+)")

# horovodrun exits with 1 whatever the exit code of the failed rank. This program exits with the code of the rank.
_HOROVODRUN = """\
import re, sys
from horovod.runner.launch import run_commandline
try:
    run_commandline()
except RuntimeError as error:
    print(error, flush=True)
    sys.exit(int((re.findall(r"Exit code: (\\d+)", str(error)) or [1])[0]))
"""


UNLESS_TRAINED = ("-m", "kfp_distributed.trainers.runtime.unless_trained")
"""Arguments of Python before the command that starts the ranks, so that a job which has saved its model ends."""


def mpirun(ranks: int, program: Sequence[str], *options: str) -> list[str]:
    """Return the OpenMPI command that starts a program in so many ranks and tags each line with its rank."""
    common_options = ("--allow-run-as-root", "--bind-to", "none", "--tag-output")
    return ["mpirun", *common_options, "-np", str(ranks), *options, *program]


def horovodrun(ranks: int, program: Sequence[str], python: str) -> list[str]:
    """Return the command that starts the ranks by horovodrun with Gloo, for a machine without OpenMPI."""
    return [python, "-c", _HOROVODRUN, "--gloo", "-np", str(ranks), *program]


def elastic_horovodrun(spec: DistributionSpecification, program: Sequence[str], python: str = "python3") -> list[str]:
    """Return the command that starts an elastic training, whose ranks reconnect when a worker is lost."""
    counts = (spec.number_of_workers, spec.min_workers, spec.max_workers, spec.slots_per_worker)
    return [python, "-m", "kfp_distributed.trainers.runtime.horovodrun", *map(str, counts), *program]


class RankLines:
    """Joins the fragments of lines in the output of mpirun.

    OpenMPI reads up to 4,096 bytes of a rank at once, and prints them with a tag before them and after each newline. If
    they end within a line, the next bytes of any rank follow, again with a tag: "[1,0]<stdout>:epo[1,1]<stdout>:row 7"
    and then "[1,0]<stdout>:ch 1".
    """

    def __init__(self) -> None:
        """Create an object for the output of one launcher."""
        self._begun: dict[str, str] = {}

    def join(self, line: str) -> list[str]:
        """Return the lines that a line of the launcher completes, each with one tag at its beginning.

        Text before the first tag is a line of the launcher itself.
        """
        first = _TAG.search(line)
        if not first:
            return [line]
        lines = [line[: first.start()]] if first.start() else []
        while first:
            following = _TAG.search(line, first.end())
            tag, text = first[0], line[first.end() : following.start() if following else None]
            self._begun[tag] = self._begun.get(tag, "") + text
            if not following or len(self._begun[tag]) > _LONGEST_LINE:
                lines.append(tag + self._begun.pop(tag))
            first = following
        return lines

    def end(self) -> list[str]:
        """Return the lines that were begun, at the end of the output."""
        lines = [tag + text for tag, text in self._begun.items()]
        self._begun.clear()
        return lines


def printed_by(replica: str, line: str, spec: DistributionSpecification) -> tuple[str, str]:
    """Return the replica whose process printed a line, and the line without the tag of its rank.

    A launcher prints the lines of all ranks, each tagged with the rank.
    """
    match = _TAGGED.fullmatch(line) if replica == LAUNCHER else None
    if match and int(match[1]) < spec.ranks:
        return _worker(match[1], spec.slots_per_worker), match[2]
    return replica, line


def failed_worker(lines: Iterable[str], slots_per_worker: int) -> str:
    """Return the worker whose process failed last according to the lines of a launcher; "" if no line names one."""
    ranks = [match[1] for line in lines if (match := _FAILED.search(line))]
    return _worker(ranks[-1], slots_per_worker) if ranks else ""


def _worker(rank: str, slots_per_worker: int) -> str:
    return f"worker-{int(rank) // slots_per_worker}"
