"""Measure each distribution strategy by the number of processes."""

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from measure import header, installed, log, parser, table, write_page
from prepared_data import prepare, write_digits

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.interpreter import find_python
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.shown_progress.log_entry import LogEntry
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.components.train.tell.step_log import StepLog
from kfp_distributed.trainers.runtime.data_loading.epoch_steps import read_manifest

_EXAMPLES = Path(__file__).parents[1] / "examples"
_EPOCHS, _BATCH = 6, 240
_USERS, _WIDTH = 18_000, 16
_NETWORK = {"hidden_units": [512, 512]}
_TEXT = """\
# The cost of each distribution strategy

{header} With more processes than cores, more processes do not make the training faster here. Compare what each strategy
adds.

The data are the digits ten times over, {rows:,} rows. The network is 64-512-512-10, with {parameters:,} parameters and
{size:.1f} MB of gradients for each step. An update uses {batch} rows over all ranks (with parameter servers: {batch}
rows of one worker). The numbers are means of the last {last} of {epochs} epochs of one run, including validation and
checkpoints. *Exchanged* is the traffic on the loopback device.

MirroredStrategy uses devices of one process instead of processes, here CPU devices. The two stages are divided between
the two hidden layers. The partitioned table is trained on as many rows of other data. It has {users:,} users with
{width} numbers each ({table_size:.1f} MB) on two parameter servers, and only the rows of a batch are transferred.

{table}
"""


@dataclass(frozen=True)
class _Training:
    """The arguments of `train`, except the data."""

    program: Mapping[str, object]
    distribution: Mapping[str, object]
    parameters: Mapping[str, object] = field(default_factory=lambda: _NETWORK)
    data: str = "digits"


def _trainings() -> dict[str, dict[int, _Training]]:
    """Return the trainings of each strategy by the number of processes or devices."""
    keras, table_parts = {"trainer": "keras_classifier"}, _example("partitioned_embedding")
    of_table = {"column": "user", "table_rows": _USERS, "dimensions": _WIDTH, "hidden_units": 512}
    numbers = (1, 2, 3)
    return {
        "MirroredStrategy": {
            n: _Training(_example("mirrored_classifier"), {}, {**_NETWORK, "devices": n}) for n in numbers
        },
        "MultiWorkerMirrored": {n: _Training(keras, _tensorflow(n, 0) if n > 1 else {}) for n in numbers},
        "ParameterServer": {n: _Training(keras, _tensorflow(n, 2)) for n in numbers},
        "Horovod, Keras": {n: _horovod("keras_horovod", n) for n in numbers},
        "Horovod, Keras, elastic": {n: _horovod("keras_horovod", n, min_workers=1) for n in numbers},
        "Horovod, PyTorch": {n: _horovod("torch_horovod", n) for n in numbers},
        "DistributedDataParallel": {
            n: _Training({"trainer": "torch_classifier"}, _pytorch(n) if n > 1 else {}) for n in numbers
        },
        "DistributedDataParallel, elastic": {
            n: _Training({"trainer": "torch_classifier"}, {**_pytorch(n), "min_workers": 1}) for n in numbers[1:]
        },
        "two stages": {2: _Training(_example("two_stage_classifier"), _pytorch(2))},
        "partitioned table": {n: _Training(table_parts, _tensorflow(n, 2), of_table, "users") for n in numbers},
    }


def _example(name: str) -> dict[str, object]:
    return {"function": name, "source": (_EXAMPLES / f"{name}.py").read_text(encoding="utf-8")}


def _tensorflow(workers: int, servers: int) -> dict[str, object]:
    return {"distribution_type": "TF", "number_of_workers": workers, "number_of_parameter_servers": servers}


def _horovod(trainer: str, ranks: int, **elastic: int) -> _Training:
    distribution = {"distribution_type": "MPI", "number_of_workers": ranks, **elastic}
    return _Training({"trainer": trainer}, distribution, _NETWORK)


def _pytorch(ranks: int) -> dict[str, object]:
    return {"distribution_type": "PyTorch", "number_of_workers": ranks - 1}


def main() -> None:
    """Measure, print the table and write the page."""
    arguments = parser(__doc__, "ways.md")
    arguments.add_argument("--strategy", action="append", help="only this strategy, by its name; repeatable")
    options, rows = arguments.parse_args(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _use_tcp(folder)
        data = {
            "digits": prepare(folder / "digits", write_digits(folder / "digits.npz", 10)),
            "users": prepare(folder / "users", _users_file(folder / "users.csv")),
        }
        for strategy, by_number in _trainings().items():
            for number, training in by_number.items():
                if strategy in (options.strategy or [strategy]):
                    cells = _run(data[training.data], folder / f"{strategy}-{number}", training)
                    rows.append([strategy, str(number), *cells])
                    log(" | ".join(rows[-1]))
        size = read_manifest(str(data["digits"] / "train")).rows
    write_page(options.page, _page(size, rows))


def _page(rows: int, lines: list[list[str]]) -> str:
    parameters = 64 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
    return _TEXT.format(
        header=header("bench-ways", installed("tensorflow")),
        rows=rows,
        parameters=parameters,
        size=parameters * 4 / 1e6,
        batch=_BATCH,
        last=_EPOCHS - 1,
        epochs=_EPOCHS,
        users=_USERS,
        width=_WIDTH,
        table_size=_USERS * _WIDTH * 4 / 1e6,
        table=table(["strategy", "processes", "steps/s", "exchanged for each epoch", "epoch", "total"], lines),
    )


def _users_file(file: Path) -> Path:
    """Write as many rows as the digits ten times over: a user, an hour, and a class that depends on the user."""
    random = np.random.default_rng(0)
    classes, users = random.integers(0, 10, _USERS), random.integers(0, _USERS, 17_970)
    rows = "".join(f"{user},{user % 24},class {classes[user]}\n" for user in users)
    file.write_text("user,hour,label\n" + rows)
    return file


def _run(data: Path, folder: Path, training: _Training) -> list[str]:
    """Run a training. Return steps/s, exchanged bytes and seconds of an epoch, and the total seconds."""
    folder.mkdir()
    request = Request(
        train_uri=str(data / "train"),
        validation_uri=str(data / "validation"),
        model_uri=str(folder / "model"),
        train_specification=training.program,
        train_parameters={"epochs": _EPOCHS, "batch_size": _BATCH, **training.parameters},
        distribution_specification=training.distribution,
        identity=(str(folder),),
    )
    ends: list[tuple[float, int]] = []

    def see(entry: LogEntry) -> None:
        # The first replica that prints an epoch counts.
        if entry.message.startswith(f"epoch {len(ends) + 1}/"):
            ends.append((time.monotonic(), _loopback_bytes()))

    started = time.monotonic()
    launch(request, LocalRunner(), StepLog(see))
    total = time.monotonic() - started
    (first, sent_first), (last, sent_last) = ends[0], ends[-1]
    epoch, exchanged = (last - first) / (_EPOCHS - 1), (sent_last - sent_first) / (_EPOCHS - 1)
    steps = read_manifest(str(data / "train")).rows / _BATCH / epoch
    return [f"{steps:.1f}", f"{exchanged / 1e6:.1f} MB", f"{epoch:.2f} s", f"{total:.1f} s"]


def _loopback_bytes() -> int:
    return int(Path("/sys/class/net/lo/statistics/rx_bytes").read_text())


def _use_tcp(home: Path) -> None:
    """Disable the shared memory of OpenMPI, whose traffic cannot be measured."""
    os.environ["KFP_DISTRIBUTED_HOROVOD_PYTHON"] = find_python({"trainer": "keras_horovod"}, "MPI")
    os.environ["KFP_DISTRIBUTED_HOROVOD_PYTORCH_PYTHON"] = find_python({"trainer": "torch_horovod"}, "MPI")
    os.environ["KFP_DISTRIBUTED_PYTORCH_PYTHON"] = find_python({"trainer": "torch_classifier"}, "PyTorch")
    settings = home / ".openmpi" / "mca-params.conf"
    settings.parent.mkdir()
    settings.write_text("btl = tcp,self\nbtl_tcp_if_include = lo\n")
    os.environ["HOME"] = str(home)


if __name__ == "__main__":
    main()
