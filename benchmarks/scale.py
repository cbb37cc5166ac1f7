"""Compute what a fine-tuning of 70 billion parameters on 64 GPUs stores and waits for, from rates measured here."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple

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

_METHODS: tuple[Literal["lora", "full"], ...] = ("lora", "full")

_GB = 1e9
_LAYER = 134e6
"""Bytes of a layer of the model that is measured."""

_TEXT = """\
# A fine-tuning at scale

{header}

[All measurements](../docs/explanation/benchmarks.md) has the other pages.

Nothing here ran on {ranks} GPUs. The rates were measured with one rank on this machine, and the bytes follow from the
model. A model of {parameters:,} parameters (Llama 3 70B) is fine-tuned by `language_model` on {ranks} GPUs with
`"sharding": "fsdp"`, each in a replica of its own.

## Measured

One rank, with a local S3 server on the same disk, saves checkpoints of {checkpoint_size:.1f} GB by `save_sharded`,
kills itself, and loads the newest. The first save and the first load of a process are not measured. A second program
saves a model of {model_size:.1f} GB with 16 bits, uploads it, and fetches and reads it as the trainer does. What is
read was written just before, so the cache of the operating system has it.

{measured}

## Computed

Seconds are bytes divided by those rates, for each rank by itself. They hold if the store gives each of {ranks} ranks as
much as this one got: that is {needed:.0f} GB/s in all. A store with less needs the bytes of all ranks divided by what
it has.

{computed}

- The dataset and the model never pass through the step. It gets manifests, metrics and the lines of the log.
- A training stands still for the pause of a checkpoint. It is stored while the training goes on.
- The default `export` of `"method": "lora"` is `"adapter"`, which has {adapter:.1f} GB. The rows with a complete model
  are for `"merged"`. Rank 0 writes the model to its disk, and uploads it then. The time in which rank 0 gathers the
  weights from the other ranks comes on top.
- Rank 0 has the files of the base model on its disk, and reads them into its memory, with 32 bits for `"full"`. Its
  disk also needs space for the complete model. The disk of each rank needs space for two parts of a checkpoint.
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
        write: Rate at which a model is written to the local disk.
        upload: Rate at which its files are uploaded then.
        fetch: Rate at which the files of a base model are downloaded and checked.
        read: Rate at which they are read then.
        restart: Seconds from the kill until the program begins again.
        imports: Seconds of the imports of the trainer.
    """

    pause: float
    store: float
    load: float
    write: float
    upload: float
    fetch: float
    read: float
    restart: float
    imports: float


def checkpoints(model_dir: str, folder: str, count: int) -> None:
    """Save checkpoints, die, load the newest, and write how long each took."""
    import time

    begun = time.time()
    import json
    import os
    import signal
    from pathlib import Path

    import torch
    import torch.distributed as dist

    from kfp_distributed.trainers.torch_checkpoint import load_sharded, save_sharded

    file = Path(folder, "checkpoints.json")
    dist.init_process_group("gloo", init_method=f"file://{folder}/group-{os.getpid()}", rank=0, world_size=1)
    tensors = 128  # A block of a checkpoint that is read at once has whole tensors.
    state = {f"weights-{one}": torch.arange(count // tensors, dtype=torch.float32) for one in range(tensors)}
    if not file.exists():
        save_sharded(state, 1, wait=True)  # The first one takes longer.
        times = {}
        for step, name in enumerate(("pause", "all"), start=2):
            before = time.perf_counter()
            save_sharded(state, step, wait=name == "all")
            times[name] = time.perf_counter() - before
            if name == "pause":  # The next save would wait for its upload.
                save_sharded(state, step, wait=True)
        file.write_text(json.dumps({**times, "killed": time.time()}))
        os.kill(os.getpid(), signal.SIGKILL)
    assert load_sharded(state) == 3
    before = time.perf_counter()
    assert load_sharded(state) == 3
    load = time.perf_counter() - before
    times = json.loads(file.read_text())
    file.write_text(json.dumps({**times, "load": load, "restart": begun - times["killed"]}))
    Path(model_dir, "model.onnx").write_text("none")


def model(model_dir: str, folder: str, layers: int) -> None:
    """Write, upload, fetch and read a model, and write how long each took."""
    import json
    import time
    from pathlib import Path

    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    from kfp_distributed.storage.model import MODEL_MANIFEST, ModelManifest
    from kfp_distributed.storage.opener import open_store
    from kfp_distributed.trainers.language_training.base_folder import base_folder

    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "vocab_size": 256}
    small = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **sizes)).to(torch.bfloat16)
    written, address, moments = Path(folder, "written"), "s3://scale/base", [time.perf_counter()]
    small.save_pretrained(written, max_shard_size="300MB")
    moments.append(time.perf_counter())
    (written / "tokenizer.json").write_text("{}")
    store = open_store(address)
    manifest = ModelManifest("hugging_face", store.upload_folder(written))
    store.write(MODEL_MANIFEST, manifest.to_json().encode())  # What it lists is checked after a download.
    moments.append(time.perf_counter())
    fetched = base_folder(address, Path(folder, "fetched"))
    moments.append(time.perf_counter())
    read = AutoModelForCausalLM.from_pretrained(fetched, dtype=torch.bfloat16)
    for parameter in read.parameters():
        parameter.clone()  # Files are mapped, and read when they are used.
    moments.append(time.perf_counter())
    names = ("write", "upload", "fetch", "read")
    times = {name: after - before for name, before, after in zip(names, moments, moments[1:], strict=False)}
    size = sum(file.stat().st_size for file in written.iterdir())
    Path(folder, "model.json").write_text(json.dumps({**times, "size": size}))
    Path(model_dir, "model.onnx").write_text("none")


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__, "scale.md")
    arguments.add_argument("--size", type=float, default=1.0, help="GB of the checkpoint (default: 1)")
    options = arguments.parse_args()
    rates, model_gb = _measure(int(options.size * _GB / 4))
    size = model_size(_CONFIG)
    assert size
    measured = [[name, f"{value:.2f} {'s' if name in ('restart', 'imports') else 'GB/s'}"] for name, value in
                rates._asdict().items()]  # fmt: skip
    text = _TEXT.format(
        header=header("bench-scale", {}, "columns"),
        parameters=size.parameters,
        ranks=_RANKS,
        checkpoint_size=options.size,
        model_size=model_gb,
        adapter=4 * _trained(size, _parameters("lora")) / _GB,
        measured=table(["what", "measured"], measured),
        computed=table(["", "lora", "full"], _rows(size, rates)),
        needed=_RANKS * rates.store,
        weights=2 * size.parameters / _GB,
    )
    write_page(options.page, text)


def _measure(count: int) -> tuple[_Rates, float]:
    """Return the rates, and the GB of the model with which they were measured."""
    with tempfile.TemporaryDirectory() as name, embedded_object_store(Path(name, "store"), cache_seconds=3600) as store:
        python = find_python({"trainer": "language_model"}, "PyTorch")
        # A job of one process has the Python of TensorFlow otherwise.
        os.environ.update({**store.environment(), variable_of("", "PYTHON"): python})
        open_store("s3://scale").make_bucket()
        folder = Path(name)
        names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
        outputs = {one: SimpleNamespace(path=str(folder / one), uri=str(folder / one), metadata={}) for one in names}
        prepare_data.python_func(**outputs, source="digits")
        saved = _run(checkpoints, folder, count=count)
        moved = _run(model, folder, layers=max(1, round(4 * count / _LAYER)))
    imports = measure([python, "-c", "import torch, transformers, peft, accelerate, datasets, trl"]).seconds
    part, complete = 4 * count / _GB, moved["size"] / _GB
    rates = _Rates(
        part / saved["pause"],
        part / (saved["all"] - saved["pause"]),
        part / saved["load"],
        **{name: complete / moved[name] for name in ("write", "upload", "fetch", "read")},
        restart=saved["restart"],
        imports=imports,
    )
    return rates, complete


def _run(function: Callable[..., None], folder: Path, **parameters: int) -> dict[str, float]:
    """Run a function as a training, and return what it has written."""
    name = function.__name__
    request = Request(
        train_uri=str(folder / "train_dataset"),
        model_uri=f"s3://scale/{name}",
        checkpoint_uri=f"s3://scale/checkpoints-{name}",
        train_specification=train_specification(function),
        train_parameters={"folder": str(folder), **parameters},
        identity=(str(folder), name),
    )
    launch(request, LocalRunner(), log)
    times: dict[str, float] = json.loads((folder / f"{name}.json").read_text())
    return times


def _parameters(method: Literal["lora", "full"]) -> LanguageModelParameters:
    return LanguageModelParameters("", method=method, sharding="fsdp", batch_size=_RANKS, micro_batch_size=1)


def _trained(size: ModelSize, parameters: LanguageModelParameters) -> int:
    if parameters.method == "full":
        return size.parameters
    return size.adapter(parameters.lora_r, parameters.lora_target_modules)


def _rows(size: ModelSize, rates: _Rates) -> list[list[str]]:
    base, columns = 2 * size.parameters / _GB, []
    for method in _METHODS:
        parameters = _parameters(method)
        part = 12 * _trained(size, parameters) / _RANKS / _GB  # 32 bits, and two moments of AdamW.
        in_memory = base if method == "lora" else 2 * base
        fetched = base / rates.fetch + base / rates.read
        restart = rates.restart + rates.imports + fetched + part / rates.load
        columns.append(
            [
                f"{memory_estimate(size, parameters, _RANKS).total / 2**30:.0f} GiB",
                f"{base:.0f} GB, {fetched:.0f} s",
                f"{in_memory:.0f} GB",
                f"{base + in_memory + 2 * part:.0f} GB",
                f"{_RANKS * part:.1f} GB, {part:.2f} GB",
                f"{part / rates.pause:.1f} s",
                f"{part / rates.store:.1f} s",
                f"{in_memory:.0f} GB, {in_memory / rates.write + in_memory / rates.upload:.0f} s",
                f"{restart:.0f} s",
            ]
        )
    names = (
        "memory of each GPU, estimated for rows of 2,048 tokens",
        "base model, fetched and read by rank 0",
        "memory of the replica of rank 0 for the weights",
        "disk of the replica of rank 0, with a complete model",
        "checkpoint: all ranks, each rank",
        "pause of a checkpoint",
        "until it is stored",
        "complete model, written and uploaded by rank 0",
        "restart after the loss of a node",
    )
    return [list(row) for row in zip(names, *columns, strict=True)]


if __name__ == "__main__":
    main()
