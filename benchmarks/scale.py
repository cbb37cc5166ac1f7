"""Compute what a fine-tuning of 70 billion parameters on 64 GPUs stores and waits for, from rates measured here."""

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from measure import header, log, measure, parser, table, write_page

from kfp_distributed.components import prepare_data
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.interpreter import find_python
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.storage.object_stores.embedded import embedded_object_store
from kfp_distributed.storage.opener import open_store
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.programs.language_parameters import LanguageModelParameters
from kfp_distributed.trainers.programs.memory_estimate import memory_estimate
from kfp_distributed.trainers.programs.model_size import ModelSize, model_size
from kfp_distributed.trainers.programs.requirements import variable_of

_RANKS = 64
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
"""Those of Llama 3 70B."""

_GB = 1e9
_TEXT = """\
# A fine-tuning at scale

{header}

[All measurements](../docs/explanation/benchmarks.md) has the other pages.

Nothing here ran on {ranks} GPUs. The rates were measured with one rank on this machine, and the bytes follow from the
model. A model of {parameters:,} parameters (Llama 3 70B) is fine-tuned by `language_model` on {ranks} GPUs with
`"sharding": "fsdp"`, each in a replica of its own.

## Measured

One rank saves and loads a checkpoint of {size:.1f} GB by `save_sharded`, with a local S3 server on the same disk. Then
it kills itself.

{measured}

## Computed

Seconds are bytes divided by those rates, for each rank by itself. They hold if the store gives each of {ranks} ranks as
much as this one got: that is {needed:.0f} GB/s in all. A store with less needs the bytes of all ranks divided by what
it has.

{computed}

- The dataset and the model never pass through the step. It gets manifests, metrics and the lines of the log.
- A training stands still for the pause of a checkpoint. It is stored while the training goes on.
- After the loss of a node, the operator starts all replicas again. The row adds the start of the process, its imports,
  the base model in rank 0, and the part of the checkpoint of each rank. The time in which Kubernetes notices the loss,
  finds a node and pulls the image comes on top, as do the {weights:.0f} GB of weights that rank 0 sends to the others
  over the network of the GPUs.
"""


class _Rates(NamedTuple):
    """GB per second of a rank, and seconds.

    Attributes:
        pause: Rate at which a checkpoint is written to the local disk, while the training stands still.
        store: Rate at which it is stored then.
        load: Rate at which it is loaded.
        restart: Seconds from the kill until the program begins again.
        imports: Seconds of the imports of the trainer.
    """

    pause: float
    store: float
    load: float
    restart: float
    imports: float


def saves(model_dir: str, folder: str, count: int) -> None:
    """Save a checkpoint twice, die, load it, and write how long each took."""
    import json
    import os
    import signal
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist

    from kfp_distributed.trainers.torch_checkpoint import load_sharded, save_sharded

    begun, file = time.time(), Path(folder, "times.json")
    dist.init_process_group("gloo", init_method=f"file://{folder}/group-{os.getpid()}", rank=0, world_size=1)
    state = {"weights": torch.arange(count, dtype=torch.float32)}
    if not file.exists():
        times = {}
        for step, name in enumerate(("pause", "all"), start=1):
            before = time.perf_counter()
            save_sharded(state, step, wait=name == "all")
            times[name] = time.perf_counter() - before
            if name == "pause":  # The next save would wait for its upload.
                save_sharded(state, step, wait=True)
        file.write_text(json.dumps({**times, "killed": time.time()}))
        os.kill(os.getpid(), signal.SIGKILL)
    before = time.perf_counter()
    assert load_sharded(state) == 2
    times = json.loads(file.read_text())
    load = time.perf_counter() - before
    file.write_text(json.dumps({**times, "load": load, "restart": begun - times["killed"]}))
    Path(model_dir, "model.onnx").write_text("none")


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__, "scale.md")
    arguments.add_argument("--size", type=float, default=1.0, help="GB of the checkpoint (default: 1)")
    options = arguments.parse_args()
    rates = _measure(int(options.size * _GB / 4))
    size = model_size(_CONFIG)
    assert size
    measured = [[name, f"{value:.2f} {'s' if name in ('restart', 'imports') else 'GB/s'}"] for name, value in
                rates._asdict().items()]  # fmt: skip
    text = _TEXT.format(
        header=header("bench-scale", {}, "columns"),
        parameters=size.parameters,
        ranks=_RANKS,
        size=options.size,
        measured=table(["what", "measured"], measured),
        computed=table(["", "lora", "full"], _rows(size, rates)),
        needed=_RANKS * rates.store,
        weights=2 * size.parameters / _GB,
    )
    write_page(options.page, text)


def _measure(count: int) -> _Rates:
    with tempfile.TemporaryDirectory() as name, embedded_object_store(Path(name, "store")) as store:
        python = find_python({"trainer": "language_model"}, "PyTorch")
        # A job of one process has the Python of TensorFlow otherwise.
        os.environ.update({**store.environment(), variable_of("", "PYTHON"): python})
        open_store("s3://scale").make_bucket()
        folder = Path(name)
        names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
        outputs = {one: SimpleNamespace(path=str(folder / one), uri=str(folder / one), metadata={}) for one in names}
        prepare_data.python_func(**outputs, source="digits")
        request = Request(
            train_uri=str(folder / "train_dataset"),
            model_uri="s3://scale/model",
            checkpoint_uri="s3://scale/checkpoints",
            train_specification=train_specification(saves),
            train_parameters={"folder": name, "count": count},
            identity=(name,),
        )
        launch(request, LocalRunner(), log)
        times = json.loads((folder / "times.json").read_text())
    size = 4 * count / _GB
    imports = measure([python, "-c", "import torch, transformers, peft, accelerate, datasets, trl"]).seconds
    stored = times["all"] - times["pause"]
    return _Rates(size / times["pause"], size / stored, size / times["load"], times["restart"], imports)


def _rows(size: ModelSize, rates: _Rates) -> list[list[str]]:
    base, columns = 2 * size.parameters / _GB, []
    for method in ("lora", "full"):
        parameters = LanguageModelParameters("", method=method, sharding="fsdp", batch_size=_RANKS, micro_batch_size=1)
        trained = size.adapter(16, "all-linear") if method == "lora" else size.parameters
        part = 12 * trained / _RANKS / _GB  # 32 bits, and two moments of AdamW.
        merged = base if method == "lora" else 2 * base
        restart = rates.restart + rates.imports + (base + part) / rates.load
        columns.append(
            [
                f"{memory_estimate(size, parameters, _RANKS).total / 2**30:.0f} GiB",
                f"{base:.0f} GB, {base / rates.load:.0f} s",
                f"{_RANKS * part:.1f} GB, {part:.2f} GB",
                f"{part / rates.pause:.1f} s",
                f"{part / rates.store:.1f} s",
                f"{merged:.0f} GB, {merged / rates.store:.0f} s",
                f"{restart:.0f} s",
            ]
        )
    names = (
        "memory of each GPU, estimated for rows of 2,048 tokens",
        "base model, into the replica of rank 0",
        "checkpoint: all ranks, each rank",
        "pause of a checkpoint",
        "until it is stored",
        "merged or complete model, by rank 0",
        "restart after the loss of a node",
    )
    return [list(row) for row in zip(names, *columns, strict=True)]


if __name__ == "__main__":
    main()
