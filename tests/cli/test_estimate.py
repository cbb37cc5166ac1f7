"""`kfp-distributed estimate`, and the estimate that `render` prints."""

import json

import pytest
from click.testing import CliRunner

from kfp_distributed.cli.main import main

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}

TABLE = """\
8,030,261,248 parameters, or 41,943,040 of an adapter (lora_r 16); max_length 1024, batch_size 4, ranks 2
METHOD   SHARDING   ACTIVATION_CHECKPOINTING   MICRO_BATCH_SIZE   GIB     WEIGHTS   GRADIENTS   OPTIMIZER   ACTIVATIONS   LOGITS   CUDA   FITS
lora     none       true                       1                  17.8    15.1      0.3         0.3         0.6           0.0      1.5    yes
lora     none       true                       2                  18.3    15.1      0.2         0.3         1.2           0.0      1.5    yes
lora     none       false                      1                  24.6    15.1      0.3         0.3         7.4           0.0      1.5    no
lora     none       false                      2                  31.8    15.1      0.2         0.3         14.7          0.0      1.5    no
lora     fsdp       true                       1                  10.9    8.9       0.1         0.2         0.2           0.0      1.5    yes
lora     fsdp       true                       2                  11.1    8.9       0.1         0.2         0.5           0.0      1.5    yes
lora     fsdp       false                      1                  16.5    8.5       0.1         0.2         6.1           0.1      1.5    yes
lora     fsdp       false                      2                  22.6    8.5       0.0         0.2         12.2          0.2      1.5    yes
qlora    none       true                       1                  8.3     5.6       0.3         0.3         0.6           0.0      1.5    yes
qlora    none       true                       2                  8.7     5.6       0.2         0.3         1.2           0.0      1.5    yes
qlora    none       false                      1                  15.1    5.6       0.3         0.3         7.4           0.0      1.5    yes
qlora    none       false                      2                  22.3    5.6       0.2         0.3         14.7          0.0      1.5    yes
full     none       true                       1                  164.7   29.9      59.8        59.8        13.5          0.1      1.5    no
full     none       true                       2                  151.8   29.9      59.8        59.8        0.7           0.0      1.5    no
full     none       false                      1                  172.2   29.9      59.8        59.8        21.1          0.0      1.5    no
full     none       false                      2                  151.8   29.9      59.8        59.8        0.7           0.0      1.5    no
full     fsdp       true                       1                  66.0    16.3      17.9        29.9        0.3           0.0      1.5    no
full     fsdp       true                       2                  66.3    16.3      17.9        29.9        0.7           0.0      1.5    no
full     fsdp       false                      1                  72.6    15.9      17.9        29.9        7.2           0.1      1.5    no
full     fsdp       false                      2                  66.3    16.3      17.9        29.9        0.7           0.0      1.5    no
"""  # noqa: E501


DPO = {"objective": "dpo"}


@pytest.fixture
def base(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    return tmp_path


def estimate(address, parameters, distribution):
    words = ["--train-parameters", json.dumps(parameters), "--distribution-specification", json.dumps(distribution)]
    return CliRunner().invoke(main, ["estimate", *(["--base-model", str(address)] if address else []), *words])


def test_a_table_of_what_fits(base):
    ranks = {"distribution_type": "PyTorch", "number_of_workers": 1, "worker_gpus": 1, "worker_gpu_memory": "24Gi"}
    done = estimate(f"file://{base}", {"max_length": 1024, "batch_size": 4}, ranks)
    assert (done.exit_code, done.output) == (0, TABLE)
    lines = estimate("", {"base_model": str(base)}, {}).output.splitlines()
    assert estimate(base, {"base_model": "hf://owner/model@main"}, {}).output.splitlines() == lines
    assert lines[0].endswith("max_length 2048, batch_size 32, ranks 1")
    assert lines[1].endswith(" CUDA")
    assert len(lines) == 26
    assert (
        "max_length is 8193, and the model is made for 8192 tokens" in estimate(base, {"max_length": 8193}, {}).output
    )


def test_preferences_are_not_sharded(base):
    lines = estimate(base, DPO, {"distribution_type": "PyTorch", "number_of_workers": 1}).output.splitlines()
    assert {line.split()[1] for line in lines[2:]} == {"none"}


@pytest.mark.parametrize(
    ("address", "parameters", "distribution", "problem"),
    [
        ("hf://owner/model@main", {}, {}, "hf download owner/model config.json --revision main --local-dir FOLDER"),
        ("", {}, {}, "train_parameters: language_model needs base_model"),
        (
            "/nowhere",
            {},
            {},
            "base_model is '/nowhere', and /nowhere/config.json cannot be read: No such file or direc",
        ),
        (
            "owner/name",
            {},
            {},
            "No such file or directory; for a model of the Hugging Face Hub, write hf://owner/name@",
        ),
        ("{base}", {"method": "qlora", "sharding": "fsdp"}, {}, "whose model is not divided: set sharding to "),
        ("{base}", {"sharding": "fsdp"}, {}, 'sharding is "fsdp", and the job has one rank: use several workers'),
        ("{base}", {}, {"distribution_type": "TF"}, "distribution_type = 'TF': language_model is for Job, PyTorch"),
        ("{base}", {}, {"distribution_type": "MPI"}, "distribution_type = 'MPI': language_model is for Job, PyTorch"),
        ("{base}/quantized", {}, {}, "/quantized has quantized weights, for which there is no estimate"),
        ("{base}", {"epoch": 1}, {}, "language_model has no parameter 'epoch' to set"),
        ("{base}", {"lora_target_modules": "query"}, {}, "has the name 'query'; allowed are \"all-linear\", or names"),
        ("{base}", [], {}, "train_parameters is []; allowed: a dict"),
        ("{base}", {}, {"worker_gpu_memory": "80"}, "worker_gpu_memory = '80' is not an amount of memory"),
        ("{base}", {"batch_size": 5}, {"distribution_type": "PyTorch"}, "5, which cannot be divided among 3 ranks"),
        ("{base}/other", {}, {}, "has the model_type 'mamba'; those with an estimate are llama, "),
    ],
)
def test_what_cannot_be_estimated_is_an_error_of_one_line(base, address, parameters, distribution, problem):
    (base / "quantized").mkdir()
    (base / "quantized" / "config.json").write_text(json.dumps({**LLAMA_3_8B, "quantization_config": {"bits": 4}}))
    (base / "other").mkdir()
    (base / "other" / "config.json").write_text('{"model_type": "mamba"}')
    done = estimate(address.format(base=base), parameters, distribution)
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert problem in done.output


def test_render_prints_the_estimate(base):
    words = ["render", "--train-specification", '{"trainer": "language_model", "image": "x:1"}', "--train-parameters"]
    words.append(json.dumps({"base_model": str(base)}))
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0
    assert "\n# base_model has 8,030,261,248 parameters, and 41,943,040 of an adapter are trained; " in done.output
    done = CliRunner().invoke(
        main, [*words[:-1], json.dumps({"base_model": str(base), "lora_target_modules": "query"})]
    )
    assert (done.exit_code, "language_model: lora_target_modules is 'query', and no layer" in done.output) == (2, True)
    done = CliRunner().invoke(
        main, [*words, "--distribution-specification", '{"worker_gpus": 1, "worker_gpu_memory": "16Gi"}']
    )
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "needs about 18.3 GiB on each GPU" in done.output


@pytest.mark.parametrize("loss", [*({"loss_on": on} for on in ("auto", "all", "completion", "assistant")), DPO])
def test_render_takes_each_loss(base, loss):
    words = ["render", "--train-specification", '{"trainer": "language_model", "image": "x:1"}', "--train-parameters"]
    done = CliRunner().invoke(main, [*words, json.dumps({"base_model": str(base), **loss})])
    assert done.exit_code == 0, done.output
