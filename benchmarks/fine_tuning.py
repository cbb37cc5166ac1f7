"""Measure what the `train` step adds to the same fine-tuning by a plain script of trl under torchrun."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
from measure import Measured, header, log, measure, parser, spread, table, take_turns, write_page

from kfp_distributed.components import prepare_data
from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.interpreter import find_python
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.request import Request
from kfp_distributed.trainers.language_rows import language_rows
from kfp_distributed.trainers.language_training.update_order import update_order

_ROOT = Path(__file__).parents[1]
_UPDATE = 16
_TEXT = """\
# Fine-tuning of a language model

{header}

[All measurements](../docs/explanation/benchmarks.md) has the other pages.

The trainer `language_model` by the step `train`, and a plain script of trl under torchrun (benchmarks/programs), in
alternating order: two ranks on this machine, a Llama of 0.1 million parameters, LoRA, {rows:,} conversations, one epoch
of updates of {update} rows, ten checkpoints. The script gets the rows in the order of the trainer. The cells are
medians of {runs} runs, with the shortest and the longest. The goal is at most 3 % and 1 s more, and equal losses.

{table}

Losses: {losses}
"""


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__, "fine_tuning.md", runs=3)
    arguments.add_argument("--rows", type=int, default=3200, help="number of conversations (default: 3200)")
    options = arguments.parse_args()
    python = find_python({"trainer": "language_model"}, "PyTorch")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_inputs(folder, python, options.rows)
        losses: dict[str, list[float]] = {}
        ways = {
            "train step": lambda run: _by_step(folder, run, losses),
            "torchrun": lambda run: _by_script(folder, run, python, losses),
        }
        step, script = take_turns(ways, options.runs).values()
    added = [statistics.median(step) - statistics.median(script), min(step) - min(script)]
    row = [spread(step, form=".1f"), spread(script, form=".1f"), *(f"{seconds:+.1f} s" for seconds in added)]
    goal = f"{0.03 * statistics.median(script) + 1:.1f} s"
    columns = ["train step", "torchrun", "added", "added, shortest runs", "goal"]
    text = _TEXT.format(
        header=header("bench-fine-tuning", _versions(python), "columns"),
        rows=options.rows,
        update=_UPDATE,
        runs=options.runs,
        table=table(columns, [[*row, goal]]),
        losses=_compare(*losses.values()),
    )
    write_page(options.page, text)


def _compare(one: Sequence[float], other: Sequence[float]) -> str:
    if len(one) != len(other):
        return f"{len(one)} updates by the step, and {len(other)} by the script."
    largest = max(abs(a - b) / abs(b) for a, b in zip(one, other, strict=True))
    return f"from {one[0]:.4f} to {one[-1]:.4f} in {len(one)} updates; largest relative difference {largest:.1e}."


def _versions(python: str) -> dict[str, str]:
    code = "import json, peft, torch, trl; print(json.dumps({m.__name__: m.__version__ for m in (torch, trl, peft)}))"
    found: dict[str, str] = json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True).stdout)
    return found


def _write_inputs(folder: Path, python: str, rows: int) -> None:
    """Write the dataset, a tiny Llama, and the rows in the order of the training."""
    questions = [f"What is {number} and {number * 7 % 1000}?" for number in range(rows)]
    with (folder / "chats.jsonl").open("w") as chats:
        for text in questions:
            said = [("user", text), ("assistant", f"{text} It is {len(text)}.")]
            messages = [{"role": role, "content": content} for role, content in said]
            chats.write(json.dumps({"messages": messages}) + "\n")
    (folder / "texts.csv").write_text("message,team\n" + "".join(f"{text},It is\n" for text in questions))
    make = [python, str(_ROOT / "examples" / "make_tiny_llama.py"), str(folder / "texts.csv"), str(folder / "llama")]
    subprocess.run(make, check=True)
    names = ("train_dataset", "validation_dataset", "test_dataset", "overview")
    outputs = {name: SimpleNamespace(path=str(folder / name), uri=str(folder / name), metadata={}) for name in names}
    split = {"validation_fraction": 0, "test_fraction": 0}
    prepare_data.python_func(**outputs, source=str(folder / "chats.jsonl"), split=split)
    prepared = language_rows(str(folder / "train_dataset"))
    order = update_order(len(prepared), _UPDATE, 0, 0)
    pq.write_table(pa.Table.from_pylist([prepared[index] for index in order]), folder / "rows.parquet")


def _by_step(folder: Path, run: int, losses: dict[str, list[float]]) -> float:
    """Run the training by the step; return the seconds."""
    request = Request(
        train_uri=str(folder / "train_dataset"),
        model_uri=str(folder / f"step-{run}" / "model"),
        train_specification={"trainer": "language_model"},
        train_parameters={"base_model": str(folder / "llama"), "batch_size": _UPDATE, "warmup_ratio": 0.0},
        distribution_specification={"distribution_type": "PyTorch", "number_of_workers": 1},
        identity=(f"{folder}-{run}",),
    )
    begin = os.times().elapsed
    (rows,) = launch(request, LocalRunner(), lambda line: None).metrics.values()
    losses["train step"] = [row["loss"] for row in rows if "loss" in row]
    return os.times().elapsed - begin


def _by_script(folder: Path, run: int, python: str, losses: dict[str, list[float]]) -> float:
    """Run the training by the script; return the seconds."""
    place = folder / f"script-{run}"
    place.mkdir()
    script = [str(_ROOT / "benchmarks" / "programs" / "tuning_script.py"), "--rows", str(folder / "rows.parquet")]
    script += ["--base_model", str(folder / "llama"), "--model_dir", str(place / "model")]
    # Debian builds PyTorch without libuv, which the store of torchrun needs. It may be a file.
    store = ["--rdzv_backend=c10d", f"--rdzv_endpoint={place / 'store'}", "--rdzv_conf=store_type=file", "--rdzv_id=1"]
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    launcher = [python, "-m", "torch.distributed.run", "--nproc_per_node=2", *store]
    # Each rank of the step has one thread of the two cores, too: torchrun's default.
    measured: Measured = measure([*launcher, *script], {**os.environ, **variables}, place)
    losses["torchrun"] = json.loads((place / "losses.json").read_text())
    return measured.seconds


if __name__ == "__main__":
    log(f"{sys.argv[0]} begins")
    main()
