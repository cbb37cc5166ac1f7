"""Draws the trainings of the soak and their faults from a seed. Pure: a number of a seed always has the same plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from cluster.soak.program import EPOCHS, ROWS

from kfp_distributed.components.train.describe.manifests.cluster_settings import Operator

REPLICA_KILLED = "replica killed"
POD_DELETED = "pod deleted"
EVICTED = "replica evicted"
OUT_OF_MEMORY = "replica out of memory"
STEP_KILLED = "step killed"
STEP_KILLED_LATE = "step killed after the model"
TWO_STEPS = "two steps"
API_AWAY = "API server away"
API_FAILS = "API server answers 500"
KUBELET_RESTARTED = "kubelet restarted"
STORE_AWAY = "store away"
STORE_FAILS = "store answers 503"
LOG_ROTATED = "log rotated"

GROUPS = {
    "replica": (REPLICA_KILLED, POD_DELETED, EVICTED, OUT_OF_MEMORY),
    "step": (STEP_KILLED, STEP_KILLED_LATE, TWO_STEPS),
    "cluster": (API_AWAY, API_FAILS, KUBELET_RESTARTED),
    "store": (STORE_AWAY, STORE_FAILS),
    "log": (LOG_ROTATED,),
}
"""The kinds of faults. Two faults of one training are of different groups."""

FAULTS = tuple(kind for kinds in GROUPS.values() for kind in kinds)

CAUSES = {REPLICA_KILLED: "exit code 137", POD_DELETED: "pod deleted", OUT_OF_MEMORY: "OOMKilled"}
"""The faults that count for restart_limit, and how the cause of a failed step names them."""

ALONE = (LOG_ROTATED,)
"""Faults of trainings without a second one: a step that adopts a job cannot read a log file that was rotated away."""

LONGEST_OUTAGE = 90
"""Seconds of the longest outage of the API server or the store."""

LONGEST_OUTAGE_OF_A_START = 40
"""The same if a step may start during the outage: one that starts is refused if no answer comes for a minute."""

LONGEST_KUBELET_RESTART = 8
"""Seconds of the longest restart of the kubelet. It ends before the training does: no kubelet, no end of a pod."""

REPLICAS = {
    "Job": ("worker-0",),
    "TFJob": ("worker-0", "worker-1"),
    "PyTorchJob": ("master-0", "worker-0"),
    "MPIJob": ("worker-0", "worker-1", "launcher-0"),
}
"""The replicas of each type of job, the one with the model first."""

JOBS = tuple(REPLICAS)

OPERATORS: tuple[Operator, ...] = ("training-operator", "trainer")
"""What may run a training that is no Job: the training operator (or the MPI operator), or Kubeflow Trainer."""

TRAIN_JOBS = {"TFJob": "TrainJob of TF", "PyTorchJob": "TrainJob of PyTorch", "MPIJob": "TrainJob of MPI"}
"""Names of the kinds with which Kubeflow Trainer runs the same trainings."""

KINDS = (*JOBS, *TRAIN_JOBS.values())

_DISTRIBUTIONS: Mapping[str, Mapping[str, object]] = {
    "Job": {},
    "TFJob": {"distribution_type": "TF", "number_of_workers": 2, "number_of_parameter_servers": 0},
    "PyTorchJob": {"distribution_type": "PyTorch", "number_of_workers": 1},
    "MPIJob": {"distribution_type": "MPI", "number_of_workers": 2},
}


@dataclass(frozen=True)
class Fault:
    """A fault of one training.

    Attributes:
        kind: One of `FAULTS`.
        row: The fault begins when the replica with the model has printed this row. The rows of all epochs count from 1.
        replica: The replica that fails; "" for other faults.
        seconds: Duration of an outage, or seconds until a killed step is started again; 0 for other faults.
    """

    kind: str
    row: int
    replica: str = ""
    seconds: int = 0


@dataclass(frozen=True)
class Plan:
    """A training and its faults.

    Attributes:
        seed: Seed of the soak.
        number: Number of the training, from 1.
        job: Type of the job, one of `JOBS`.
        restart_limit: The key of the distribution_specification.
        faults: One or two faults.
        operator: The key of the distribution_specification. It does not matter for a Job.
    """

    seed: int
    number: int
    job: str
    restart_limit: int
    faults: tuple[Fault, ...]
    operator: Operator = "training-operator"

    @property
    def kind(self) -> str:
        """Kind of the job's object, one of `KINDS`."""
        return TRAIN_JOBS.get(self.job, self.job) if self.operator == "trainer" else self.job

    @property
    def leader(self) -> str:
        """The replica whose model is saved."""
        return REPLICAS[self.job][0]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the faults."""
        return tuple(fault.kind for fault in self.faults)

    @property
    def may_fail(self) -> bool:
        """Whether the faults exceed restart_limit, so that the training may end as failed."""
        return len([kind for kind in self.kinds if kind in CAUSES]) > self.restart_limit

    def cause(self, kind: str) -> str:
        """Return how the cause of a failed step names one of `CAUSES`.

        The kubelet reports no OOMKilled if sshd, the first process of an MPI worker, survives. mpirun tells of the end.
        """
        return "often a lack of memory" if (self.job, kind) == ("MPIJob", OUT_OF_MEMORY) else CAUSES[kind]

    @property
    def distribution(self) -> dict[str, object]:
        """The distribution_specification."""
        keys = {**_DISTRIBUTIONS[self.job], "restart_limit": self.restart_limit, "termination_grace_seconds": 10}
        keys |= {"operator": self.operator} if self.job in TRAIN_JOBS else {}
        return keys | ({"worker_memory": "500Mi"} if OUT_OF_MEMORY in self.kinds else {})

    def __str__(self) -> str:
        """Describe the plan in one line."""
        faults = " and ".join(_describe(fault) for fault in self.faults) or "no fault"
        return f"training {self.number} of seed {self.seed}: {self.kind}, restart_limit {self.restart_limit}, {faults}"


def _describe(fault: Fault) -> str:
    seconds = f" for {fault.seconds} s" if fault.seconds else ""
    return f"{fault.kind}{fault.replica and f' ({fault.replica})'}{seconds} at row {fault.row}"


def draw(seed: int, number: int, operators: Sequence[Operator] = OPERATORS[:1]) -> Plan:
    """Return the plan of a training.

    Of the trainings 1 to 13, 14 to 26 and so on, each has another kind of fault as its first one.

    Args:
        seed: Seed of the soak.
        number: Number of the training, from 1.
        operators: The operators of the cluster. They only decide about the operator of the training, and nothing else.
            Default: the training operator.
    """
    block, index = divmod(number - 1, len(FAULTS))
    kind = Random(f"{seed} block {block}").sample(FAULTS, len(FAULTS))[index]
    random = Random(f"{seed} training {number}")
    job = random.choice(JOBS)
    kinds = [kind]
    if kind not in ALONE and random.random() < 0.35:
        kinds.append(random.choice([other for other in FAULTS if _fit(kind, other)]))
    longest = LONGEST_OUTAGE_OF_A_START if set(kinds) & set(GROUPS["step"]) else LONGEST_OUTAGE
    faults = tuple(_draw_fault(random, job, kind, longest) for kind in kinds)
    restart_limit = random.choice((0, 3, 3, 3))
    return Plan(seed, number, job, restart_limit, faults, _draw_operator(seed, number, operators))


def _draw_operator(seed: int, number: int, operators: Sequence[Operator]) -> Operator:
    # A generator of its own, so that the rest of the plan is the same on each cluster.
    return Random(f"{seed} operator of training {number}").choice(operators)


def undisturbed(seed: int, operators: Sequence[Operator]) -> list[Plan]:
    """Return a training without faults of each kind that the operators serve, with the numbers 0, -1, -2 and so on."""
    pairs = [(job, operator) for operator in operators for job in JOBS if job in TRAIN_JOBS or operator == operators[0]]
    return [Plan(seed, -index, job, 0, (), operator) for index, (job, operator) in enumerate(pairs)]


def _fit(first: str, second: str) -> bool:
    return second not in ALONE and not any(first in kinds and second in kinds for kinds in GROUPS.values())


def _draw_fault(random: Random, job: str, kind: str, longest_outage: int) -> Fault:
    row = random.randint(2, EPOCHS * ROWS - 2)
    if kind in GROUPS["replica"]:
        # The program of a replica is asked to fail. The launcher runs none.
        programs = [name for name in REPLICAS[job] if name != "launcher-0" or kind in (POD_DELETED, EVICTED)]
        return Fault(kind, row, random.choice(programs))
    if kind == KUBELET_RESTARTED:
        return Fault(kind, random.randint(2, EPOCHS * ROWS // 3), seconds=random.randint(2, LONGEST_KUBELET_RESTART))
    if kind in (*GROUPS["cluster"], *GROUPS["store"]):
        return Fault(kind, row, seconds=random.randint(3, longest_outage))
    if kind == STEP_KILLED:
        return Fault(kind, row, seconds=random.randint(1, 15))
    if kind == STEP_KILLED_LATE:
        return Fault(kind, EPOCHS * ROWS, seconds=random.randint(1, 15))
    return Fault(kind, 1 if kind == LOG_ROTATED else row)
