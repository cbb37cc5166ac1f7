"""What each way to spread a training costs here, by the number of processes that compute: `make bench-ways`."""

import os
import platform
import re
import tempfile
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from measure import table
from prepare import digits_file
from training import prepare

from kfp_distributed.components.train.launch import Request, launch
from kfp_distributed.components.train.runners.interpreter import find_python
from kfp_distributed.components.train.runners.local import LocalRunner

_FILE = Path(__file__).parent / "ways.md"
_EPOCHS, _BATCH = 6, 240
_TEXT = """\
# What each way to spread a training costs

`make bench-ways` measures this anew and writes it here. Latest: {day}, Python {python}, {cores} cores of a shared
machine: with more processes than cores nothing gets faster here; what each way adds is what can be compared.

The digits ten times over, {rows:,} rows; a network of 64-512-512-10 ({parameters:,} parameters, {size:.1f} MB of
gradients a step), {batch} rows an update over all ranks (of each worker beside parameter servers), means of the last
{last} of {epochs} epochs, scoring and checkpoint included. *Exchanged* is all that went over the loopback device.

{table}
"""


def _distribution(way: str, processes: int) -> tuple[str, dict[str, object]]:
    """The trainer and the dict that make so many processes compute."""
    if way == "Horovod":
        return "keras_horovod", {"distribution_type": "MPI", "number_of_workers": processes}
    if way == "DistributedDataParallel":
        pods = {"distribution_type": "PyTorch", "number_of_workers": processes - 1}
        return "torch_classifier", pods if processes > 1 else {}
    servers = 2 if way == "ParameterServer" else 0
    spread = {"distribution_type": "TF", "number_of_workers": processes, "number_of_parameter_servers": servers}
    return "keras_classifier", spread if servers or processes > 1 else {}


def main() -> None:
    """The command line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _use_tcp(folder)
        data = prepare(folder / "data", digits_file(folder / "digits.npz", 10))
        lines, rows = [], _rows(data)
        for way in ("MultiWorkerMirrored", "ParameterServer", "Horovod", "DistributedDataParallel"):
            for processes in (1, 2, 3):
                measured = _measure(data, folder / f"{way}-{processes}", *_distribution(way, processes))
                lines.append([way, str(processes), *measured])
                print(lines[-1], flush=True)
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
        table=table(header, lines),
    )
    _FILE.write_text(text, encoding="utf-8")
    print(text)


def _measure(data: Path, folder: Path, trainer: str, distribution: Mapping[str, object]) -> list[str]:
    """One training: steps a second, bytes exchanged and seconds of an epoch, and seconds of all."""
    folder.mkdir()
    ranks = int(str(distribution.get("number_of_workers", 1)))
    batch = _BATCH // ranks if trainer == "keras_horovod" else _BATCH  # Horovod's is of one rank.
    request = Request(
        train_uri=str(data / "train"),
        validation_uri=str(data / "validation"),
        model_uri=str(folder / "model"),
        train_specification={"trainer": trainer},
        train_parameters={"epochs": _EPOCHS, "batch_size": batch, "hidden_units": [512, 512]},
        distribution_specification=distribution,
        identity=(str(folder),),
    )
    ends: list[tuple[float, int]] = []

    def see(line: str) -> None:
        # One replica says it for all; those beside it may say it too.
        if re.match(rf"\[\S+\] epoch {len(ends) + 1}/", line):
            ends.append((time.monotonic(), _loopback_bytes()))

    started = time.monotonic()
    launch(request, LocalRunner(), see)
    whole = time.monotonic() - started
    (first, sent_first), (last, sent_last) = ends[0], ends[-1]
    epoch, exchanged = (last - first) / (_EPOCHS - 1), (sent_last - sent_first) / (_EPOCHS - 1)
    steps = _rows(data) / _BATCH / epoch
    return [f"{steps:.1f}", f"{exchanged / 1e6:.1f} MB", f"{epoch:.2f} s", f"{whole:.1f} s"]


def _rows(data: Path) -> int:
    from kfp_distributed.trainers.feed import read_manifest

    return read_manifest(str(data / "train")).rows


def _loopback_bytes() -> int:
    return int(Path("/sys/class/net/lo/statistics/rx_bytes").read_text())


def _use_tcp(home: Path) -> None:
    """Keeps OpenMPI from shared memory, where nobody could count what ranks exchange."""
    os.environ["KFP_DISTRIBUTED_HOROVOD_PYTHON"] = find_python({"trainer": "keras_horovod"}, "MPI")
    os.environ["KFP_DISTRIBUTED_PYTORCH_PYTHON"] = find_python({"trainer": "torch_classifier"}, "PyTorch")
    settings = home / ".openmpi" / "mca-params.conf"
    settings.parent.mkdir()
    settings.write_text("btl = tcp,self\nbtl_tcp_if_include = lo\n")
    os.environ["HOME"] = str(home)


if __name__ == "__main__":
    main()
