"""What each way to spread a training costs here, by the number of processes that compute: `make bench-ways`."""

import os
import platform
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
from measure import table
from prepare import digits_file
from training import prepare

from kfp_distributed.components.train.launch import Request, launch
from kfp_distributed.components.train.log_format import LogEntry
from kfp_distributed.components.train.runners.local.interpreter import find_python
from kfp_distributed.components.train.runners.local.runner import LocalRunner

_FILE, _EXAMPLES = Path(__file__).parent / "ways.md", Path(__file__).parents[1] / "examples"
_EPOCHS, _BATCH = 6, 240
_USERS, _WIDTH = 18_000, 16
_NETWORK = {"hidden_units": [512, 512]}
_TEXT = """\
# What each way to spread a training costs

`make bench-ways` measures this anew and writes it here. Latest: {day}, Python {python}, {cores} cores of a shared
machine: with more processes than cores nothing gets faster here; what each way adds is what can be compared.

The digits ten times over, {rows:,} rows; a network of 64-512-512-10 ({parameters:,} parameters, {size:.1f} MB of
gradients a step), {batch} rows an update over all ranks (of each worker beside parameter servers), means of the last
{last} of {epochs} epochs, scoring and checkpoint included, of one run each. *Exchanged* is all that went over the
loopback device.

MirroredStrategy has devices of one process instead of processes, here of the CPU. The two stages are cut between the
two hidden layers. The table in parts has as many rows of other data, of {users:,} users with {width} numbers each
({table_size:.1f} MB) on two servers; of it only the rows of a batch travel.

{table}
"""


@dataclass(frozen=True)
class _Training:
    """What `train` is given, beside the data."""

    program: Mapping[str, object]
    distribution: Mapping[str, object]
    parameters: Mapping[str, object] = field(default_factory=lambda: _NETWORK)
    data: str = "digits"


def _trainings() -> dict[str, dict[int, _Training]]:
    """Each way with the numbers of processes, or devices, that it is measured with."""
    keras, table_parts = {"trainer": "keras_classifier"}, _example("partitioned_embedding")
    of_table = {"column": "user", "table_rows": _USERS, "dimensions": _WIDTH, "hidden_units": 512}
    some = (1, 2, 3)
    return {
        "MirroredStrategy": {
            n: _Training(_example("mirrored_classifier"), {}, {**_NETWORK, "devices": n}) for n in some
        },
        "MultiWorkerMirrored": {n: _Training(keras, _tensorflow(n, 0) if n > 1 else {}) for n in some},
        "ParameterServer": {n: _Training(keras, _tensorflow(n, 2)) for n in some},
        "Horovod, Keras": {n: _horovod("keras_horovod", n) for n in some},
        "Horovod, Keras, elastic": {n: _horovod("keras_horovod", n, min_workers=1) for n in some},
        "Horovod, PyTorch": {n: _horovod("torch_horovod", n) for n in some},
        "DistributedDataParallel": {
            n: _Training({"trainer": "torch_classifier"}, _pytorch(n) if n > 1 else {}) for n in some
        },
        "DistributedDataParallel, elastic": {
            n: _Training({"trainer": "torch_classifier"}, {**_pytorch(n), "min_workers": 1}) for n in some[1:]
        },
        "two stages": {2: _Training(_example("two_stage_classifier"), _pytorch(2))},
        "table in parts": {n: _Training(table_parts, _tensorflow(n, 2), of_table, "users") for n in some},
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
    """The command line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _use_tcp(folder)
        data = {
            "digits": prepare(folder / "digits", digits_file(folder / "digits.npz", 10)),
            "users": prepare(folder / "users", _users_file(folder / "users.csv")),
        }
        lines = []
        for way, by_number in _trainings().items():
            for number, training in by_number.items():
                measured = _measure(data[training.data], folder / f"{way}-{number}", training)
                lines.append([way, str(number), *measured])
                print(lines[-1], flush=True)
        rows = _rows(data["digits"])
    header = ["way", "processes", "steps a second", "exchanged an epoch", "an epoch", "start to end"]
    parameters = 64 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
    text = _TEXT.format(
        day=date.today().isoformat(),
        python=platform.python_version(),
        cores=os.cpu_count(),
        rows=rows,
        parameters=parameters,
        size=parameters * 4 / 1e6,
        batch=_BATCH,
        last=_EPOCHS - 1,
        epochs=_EPOCHS,
        users=_USERS,
        width=_WIDTH,
        table_size=_USERS * _WIDTH * 4 / 1e6,
        table=table(header, lines),
    )
    _FILE.write_text(text, encoding="utf-8")
    print(text)


def _users_file(file: Path) -> Path:
    """As many rows as the digits ten times over: a user, an hour, and a class that follows from the user."""
    random = np.random.default_rng(0)
    classes, users = random.integers(0, 10, _USERS), random.integers(0, _USERS, 17_970)
    rows = "".join(f"{user},{user % 24},class {classes[user]}\n" for user in users)
    file.write_text("user,hour,label\n" + rows)
    return file


def _measure(data: Path, folder: Path, training: _Training) -> list[str]:
    """One training: steps a second, bytes exchanged and seconds of an epoch, and seconds of all."""
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
    launch(request, LocalRunner(), see)
    whole = time.monotonic() - started
    (first, sent_first), (last, sent_last) = ends[0], ends[-1]
    epoch, exchanged = (last - first) / (_EPOCHS - 1), (sent_last - sent_first) / (_EPOCHS - 1)
    steps = _rows(data) / _BATCH / epoch
    return [f"{steps:.1f}", f"{exchanged / 1e6:.1f} MB", f"{epoch:.2f} s", f"{whole:.1f} s"]


def _rows(data: Path) -> int:
    from kfp_distributed.trainers.runtime.feed import read_manifest

    return read_manifest(str(data / "train")).rows


def _loopback_bytes() -> int:
    return int(Path("/sys/class/net/lo/statistics/rx_bytes").read_text())


def _use_tcp(home: Path) -> None:
    """Keeps OpenMPI from shared memory, where nobody could count what ranks exchange."""
    os.environ["KFP_DISTRIBUTED_HOROVOD_PYTHON"] = find_python({"trainer": "keras_horovod"}, "MPI")
    os.environ["KFP_DISTRIBUTED_HOROVOD_PYTORCH_PYTHON"] = find_python({"trainer": "torch_horovod"}, "MPI")
    os.environ["KFP_DISTRIBUTED_PYTORCH_PYTHON"] = find_python({"trainer": "torch_classifier"}, "PyTorch")
    settings = home / ".openmpi" / "mca-params.conf"
    settings.parent.mkdir()
    settings.write_text("btl = tcp,self\nbtl_tcp_if_include = lo\n")
    os.environ["HOME"] = str(home)


if __name__ == "__main__":
    main()
