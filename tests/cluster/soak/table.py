"""The page with the results of a soak. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.soak.judge import Observed
from cluster.soak.plan import FAULTS, KINDS, Plan

SUCCEEDED, NAMED, WRONG = "succeeded", "failed with its fault named", "violated an invariant"
UNDISTURBED = "none"
_HEADER = ("fault", *KINDS, SUCCEEDED, NAMED, WRONG, "not begun", "longest")

_TEXT = """\
# Trainings with random faults

`make soak` runs small trainings of every kind of job on the cluster of `KUBECONFIG`, injects faults that are drawn
from a seed, and writes this page. Latest run: {day}, `{command}`,
Kubernetes {kubernetes}, kfp-distributed {version}, {node}.
{count} trainings, {parallel} at the same time, took {minutes:.0f} minutes.

The training operator runs each TFJob, PyTorchJob and MPIJob. (On some clusters the MPI operator runs the MPIJobs.)
Kubeflow Trainer v2 runs each TrainJob, whose training is of TF, PyTorch or MPI. A Job needs neither. The seed draws the
operator of each training from those that the cluster serves, in this run: {operators}.

Each training must keep these invariants:

- It ends as SUCCEEDED, with the model of an undisturbed training. Or it ends as FAILED, because the faults exceed
  `restart_limit`, and the cause names the injected fault. The model is a chain of hashes over all rows, so a row that
  is lost, repeated or swapped changes it.
- A replica starts once, and once more for each fault that may restart it within `restart_limit`.
- Its metrics have each epoch once, with all of its rows.
- Each attempt of the step shows the numbered lines of each start of a replica from the first one, once and in order.
  The last lines of a start that a fault has ended may be missing. Those of the start that saved the model may not.
- The stored log of all attempts has these lines once and in order, and the stored summary has the outcome. A training
  whose store was away may lack the end of both.
- No object of it is left in the cluster, and the bucket has only its model, its records, its metrics and its last
  checkpoints. A step whose store is away at the end may leave its heartbeat there, and says so in its log.

The numbers in the columns of the kinds are trainings in which the fault began. A training with two faults counts in the
rows of both. *Not begun* are faults whose training ended before. *Longest* is the time from the start of the step to
its verdict, of which {undisturbed} without a fault.

{table}

{violations}

How the faults are injected:

| fault | how |
| --- | --- |
| replica killed, out of memory | the program ends itself with SIGKILL, or allocates more than its memory limit |
| pod deleted, replica evicted | requests to the API server, without and with a grace period |
| step killed | SIGKILL, during the training or right after the model was saved; started again after 1 to 15 s |
| two steps | a second step with the same identity beside the first one |
| API server away, answers 500 | for the step: a proxy resets all connections, or answers 500, for 3 to 90 s |
| kubelet restarted | for the step: a proxy answers requests for logs as without the kubelet, for 2 to 8 s |
| store away, answers 503 | for the step and its replicas: a proxy resets connections, or answers 503, for 3 to 90 s |
| log rotated | each replica prints 13 MB, so that the kubelet rotates its log |

The proxies belong to one training, so that its faults do not disturb other users of the cluster. The API server and the
kubelet themselves go on, so the operators and the pods do not see these faults.

`make soak SEED=7 TRAININGS=1 FIRST=23` repeats training 23 of seed 7. The logs of all attempts are in build/soak.
"""


@dataclass(frozen=True)
class Result:
    """A training, what was observed of it, and the violations of the invariants."""

    plan: Plan
    observed: Observed
    violations: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """How the training ended."""
        if self.violations:
            return WRONG
        return SUCCEEDED if self.observed.succeeded else NAMED


@dataclass(frozen=True)
class Circumstances:
    """How a soak was run.

    Attributes:
        day: Its date.
        command: Its command.
        operators: What ran its trainings.
        kubernetes: Version of the cluster.
        version: Version of kfp-distributed.
        node: The machine.
        parallel: Number of trainings at the same time.
        minutes: Its duration.
    """

    day: str
    command: str
    operators: Sequence[str]
    kubernetes: str
    version: str
    node: str
    parallel: int
    minutes: float


def page(results: Sequence[Result], circumstances: Circumstances) -> str:
    """Return the page."""
    undisturbed = [result.observed.seconds for result in results if not result.plan.faults]
    return _TEXT.format(
        **vars(circumstances) | {"operators": " and ".join(circumstances.operators)},
        count=len(results),
        undisturbed=f"{min(undisturbed):.0f} to {max(undisturbed):.0f} s" if undisturbed else "nothing is known",
        table=fault_table(results),
        violations=_violations(results),
    )


def fault_table(results: Sequence[Result]) -> str:
    """Return the Markdown table of faults, types of jobs and outcomes."""
    rows = []
    for fault in (UNDISTURBED, *FAULTS):
        planned = [result for result in results if fault in (result.plan.kinds or (UNDISTURBED,))]
        began = [result for result in planned if fault in (*result.observed.injected, UNDISTURBED)]
        longest = f"{max(result.observed.seconds for result in began):.0f} s" if began else ""
        counts = [
            *(sum(result.plan.kind == kind for result in began) for kind in KINDS),
            *(sum(result.outcome == outcome for result in began) for outcome in (SUCCEEDED, NAMED, WRONG)),
            len(planned) - len(began),
        ]
        rows.append([fault, *(str(count or "") for count in counts), longest])
    lines = [list(_HEADER), ["---"] * len(_HEADER), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _violations(results: Sequence[Result]) -> str:
    lines = [f"- {result.plan}: {text}" for result in results for text in result.violations]
    return "\n".join(["Violations:", "", *lines]) if lines else "No invariant was violated."
