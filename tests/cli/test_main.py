"""The command line as a whole, and the command compile."""

import re
import signal
import subprocess
import sys

import click
import pytest
import yaml
from click.testing import CliRunner

from kfp_distributed.cli import options
from kfp_distributed.cli.main import main
from kfp_distributed.cli.setup.libraries import read_pipeline, read_step_libraries
from kfp_distributed.cluster_api.client import ClusterApi, ClusterError

pytestmark = pytest.mark.takes(22)

HELP = """
import sys
from kfp_distributed.cli.main import main
main(["--help"], standalone_mode=False)
print(sorted({"kfp", "kubernetes", "yaml", "minio"} & set(sys.modules)))
"""


def test_help_imports_no_heavy_package():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    *lines, imported = done.stdout.splitlines()
    commands = [line.split()[0] for line in lines[lines.index("Commands:") + 1 :] if line[2:3].strip()]
    assert (commands, imported) == (main.list_commands(click.Context(main)), "[]")
    assert commands[:5] == ["install", "uninstall", "doctor", "compile", "render"]


ARGUMENTS = {
    "compile": " FOLDER",
    "watch": " JOB",
    "logs": " JOB",
    "cancel": " JOB",
    "serve": " MODEL",
    "models": " COMMAND [ARGS]...",
    "schema": " [PARAMETER]",
}


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_each_command_has_help(name):
    done = CliRunner().invoke(main, [name, "--help"])
    assert (done.exit_code, done.output.splitlines()[0]) == (
        0,
        f"Usage: main {name} [OPTIONS]" + ARGUMENTS.get(name, ""),
    )


def test_a_command_that_does_not_exist():
    done = CliRunner().invoke(main, ["instal"])
    assert done.exit_code == 2
    assert "No such command 'instal'" in done.output


def test_a_python_without_kfp_is_named_with_what_to_install():
    """That of KFP_DISTRIBUTED_LANGUAGE_MODEL_PYTHON may have none, and serves language models."""
    program = "import sys; sys.modules['kfp'] = None; from kfp_distributed.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "serve", "model"], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.match(
        rf"Error: {re.escape(sys.executable)} lacks a package .*kfp.* -m pip install kfp-distributed\n$", done.stderr
    )


@pytest.mark.parametrize("name", ["install", "uninstall", "jobs", "watch", "logs", "cancel"])
def test_refused_credentials_have_advice(name, monkeypatch):
    class RefusingApi(ClusterApi):
        def __init__(self):
            self.namespace = "team"

        def call(self, *arguments, **options):
            raise ClusterError(401, "Unauthorized")

    monkeypatch.setattr(options, "connect", lambda namespace: RefusingApi())
    done = CliRunner().invoke(main, [name, *ARGUMENTS.get(name, "").split()])
    assert done.exit_code == 1
    assert "(Unauthorized); log in again" in done.output


@pytest.mark.parametrize(("name", "words"), [("jobs", ["--ended"]), ("logs", ["JOB"]), ("doctor", [])])
def test_the_exit_code_after_ctrl_c_is_that_of_shells(name, words, monkeypatch):
    def interrupt(namespace):
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "connect", interrupt)
    handler = signal.getsignal(signal.SIGINT)
    try:
        done = CliRunner().invoke(main, [name, *words])
    finally:
        signal.signal(signal.SIGINT, handler)
    assert (done.exit_code, done.output) == (130, "")


class TestCompile:
    @pytest.fixture(autouse=True)
    def _no_variables(self, monkeypatch):
        for name in ("IMAGE", "EVALUATE_IMAGE", "PACKAGE"):
            monkeypatch.delenv(f"KFP_DISTRIBUTED_{name}", raising=False)

    def needs(self, folder, *options):
        done = CliRunner().invoke(main, ["compile", str(folder), *options])
        assert done.exit_code == 0, done.output
        steps = ["prepare_data", "train", "evaluate", "export_model", "fingerprint_source", "predict", "deploy_model"]
        pipelines = ["train_and_export", "train_and_deploy", "fine_tune_and_deploy", "tune_train_and_export"]
        names = [*steps, "import_model", "evaluate_language_model", "tune", *pipelines]
        assert [line.split()[0] for line in done.output.splitlines()] == [f"{folder / name}.yaml" for name in names]
        libraries = read_step_libraries(read_pipeline((folder / "train_and_export.yaml").read_text()))
        return {library.step: library.image or library.requirement for library in libraries}

    def test_by_options(self, tmp_path):
        needs = self.needs(tmp_path / "new", "--image", "steps:1", "--evaluate-image", "evaluate:1")
        assert needs == {
            **dict.fromkeys(("prepare-data", "train", "export-model", "fingerprint-source"), "steps:1"),
            "evaluate": "evaluate:1",
        }

    def test_by_the_environment_and_task_config(self, tmp_path, monkeypatch):
        monkeypatch.setenv("KFP_DISTRIBUTED_PACKAGE", "kfp-distributed==0.1.0")
        assert set(self.needs(tmp_path, "--task-config").values()) == {"kfp-distributed==0.1.0"}
        train = yaml.safe_load((tmp_path / "train.yaml").read_text())
        assert "taskConfigPassthroughs" in train["components"]["comp-train"]

    @pytest.mark.parametrize(
        ("images", "variables"),
        [
            ((), {}),
            (
                ("replicas:1",),
                {
                    "KFP_DISTRIBUTED_TENSORFLOW_IMAGE": "replicas:1",
                    "KFP_DISTRIBUTED_HOROVOD_IMAGE": "replicas:1",
                    "KFP_DISTRIBUTED_PYTORCH_IMAGE": "replicas:1",
                    "KFP_DISTRIBUTED_HOROVOD_PYTORCH_IMAGE": "replicas:1",
                    "KFP_DISTRIBUTED_LANGUAGE_MODEL_IMAGE": "replicas:1",
                },
            ),
            (
                ("tensorflow=host:5000/tf:1", "horovod-pytorch=hp:1"),
                {
                    "KFP_DISTRIBUTED_TENSORFLOW_IMAGE": "host:5000/tf:1",
                    "KFP_DISTRIBUTED_HOROVOD_PYTORCH_IMAGE": "hp:1",
                },
            ),
        ],
    )
    def test_the_images_of_the_replicas(self, tmp_path, images, variables):
        """Each is the default of a variable of the step `train` alone. One that a task sets takes precedence.

        The pods of prepare_data run in the image of the step.
        """
        options = [word for image in images for word in ("--replicas-image", image)]
        assert self.needs(tmp_path, "--image", "steps:1", *options)["train"] == "steps:1"
        found = {}
        for file in ("train", "train_and_export"):
            executors = yaml.safe_load((tmp_path / f"{file}.yaml").read_text())["deploymentSpec"]["executors"]
            for name, executor in executors.items():
                program = executor["container"]["command"][3]
                found[file, name] = dict(
                    re.findall(r"^os\.environ\.setdefault\('(\w+)', '([^']+)'\)$", program, re.MULTILINE)
                )
        of_train = {("train", "exec-train"): variables, ("train_and_export", "exec-train"): variables} if images else {}
        assert {key: value for key, value in found.items() if value} == {
            ("train_and_export", "exec-prepare-data"): {"KFP_DISTRIBUTED_IMAGE": "steps:1"},
            **of_train,
        }

    @pytest.mark.parametrize(
        ("image", "error"),
        [
            (
                "jax=jax:1",
                "--replicas-image: 'jax' is not a kind of replica images; allowed are tensorflow, horovod, pytorch, "
                "horovod-pytorch, language-model",
            ),
            (
                "horovod=NAME",
                "--replicas-image horovod = 'NAME' is not a valid name of an image; write HOST/NAME:TAG, with NAME in "
                "lower case",
            ),
        ],
    )
    def test_a_wrong_image_of_the_replicas(self, tmp_path, image, error):
        done = CliRunner().invoke(main, ["compile", str(tmp_path), "--replicas-image", image])
        assert (done.exit_code, done.output, list(tmp_path.iterdir())) == (2, f"Error: {error}\n", [])

    def test_an_image_and_a_package(self, tmp_path):
        done = CliRunner().invoke(
            main, ["compile", str(tmp_path), "--image", "steps:1", "--package", "kfp-distributed"]
        )
        error = "Error: image 'steps:1' and package 'kfp-distributed': name only one of the two\n"
        assert (done.exit_code, done.output, list(tmp_path.iterdir())) == (2, error, [])

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").touch()
        done = CliRunner().invoke(main, ["compile", str(tmp_path / "file" / "folder")])
        assert done.exit_code == 1
        assert done.output.startswith(f"Error: cannot write to {tmp_path / 'file' / 'folder'}: ")
