import contextlib
import functools
import json
import re
import subprocess
import sys

import pytest

from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.trainers import train_specification
from kfp_distributed.trainers.programs.program import (
    FOLDERS,
    TRAINERS,
    Program,
    check_parameters,
    command_line,
    function_arguments,
    parse_program,
)
from kfp_distributed.trainers.programs.signature import Parameter
from kfp_distributed.trainers.programs.training_parameters import TrainingParameters

SCALE = 3


def fit(train_dir, model_dir: str, epochs: int = 5, *, rate: float = 1e-3, units: "list[int] | None" = None):
    import json
    from pathlib import Path

    def double(x: SCALE) -> Path:  # an annotation needs no import
        return x * 2

    class Text:
        ending = json.dumps([double(n) for n in range(epochs)])

    Path(model_dir, "model.txt").write_text(Text.ending)


def test_a_function_is_sent_as_source():
    specification = json.loads(json.dumps(train_specification(fit, image="an/image", packages=["scipy"])))
    assert specification["function"] == "fit"
    assert specification["source"].startswith("def fit(train_dir, model_dir")
    program = parse_program(json.dumps(specification))
    assert (specification["image"], specification["packages"]) == ("an/image", ["scipy"])
    assert (program.kind, program.name, program.source) == ("function", "fit", specification["source"])
    assert program.folders == ("train_dir", "model_dir")
    assert program.parameters == (
        Parameter("epochs", "int", False, 5),
        Parameter("rate", "float", False, 1e-3),
        Parameter("units", "'list[int] | None'", False, None),
    )


def test_a_function_inside_a_function_is_dedented():
    def nested(model_dir, **options):
        return model_dir, options

    program = parse_program(train_specification(nested))
    assert program.source.startswith("def nested(")
    assert program.others == Parameter("options")


def test_trainers_and_commands():
    assert train_specification("keras_classifier") == {"trainer": "keras_classifier"}
    program = parse_program({"trainer": "keras_classifier", "image": "an/image", "packages": []})
    assert (program.kind, program.name, program.folders) == ("trainer", "keras_classifier", FOLDERS)
    assert program.parameters[3] == Parameter("hidden_units", "list[int]", False, [128])
    assert train_specification(["python", "main.py", "--data={train_dir}"]) == {
        "command": ["python", "main.py", "--data={train_dir}"]
    }
    assert parse_program({"command": ["true"]}) == Program(
        "command", "true", command=("true",), others=Parameter("parameters")
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"packages": 5}, "packages is 5; allowed: a list of strings"),
        ({"packages": {"scipy": "1.16"}}, "packages is {'scipy': '1.16'}; allowed: a list of strings"),
        ({"image": 5}, "image is 5; allowed: a string"),
        ({"image": "Registry/Trainer:1"}, "image = 'Registry/Trainer:1' is not a valid name of an image"),
    ],
)
def test_an_invalid_image_or_packages_are_refused(options, reason):
    with pytest.raises(ValueError, match=re.escape(f"train_specification: {reason}")):
        train_specification("keras_classifier", **options)


def test_how_rows_are_read():
    assert train_specification(["true"], rows="stream") == {"command": ["true"], "rows": "stream"}
    assert parse_program({"command": ["true"], "rows": "stream"}).rows == "stream"
    assert parse_program({"command": ["true"]}).rows == "download"
    assert parse_program(train_specification(["true"], rows="all")).rows == "all"
    with pytest.raises(ValueError, match=r"rows is 'whole'; allowed: download, stream, all"):
        train_specification(["true"], rows="whole")
    with pytest.raises(ValueError, match=r"a key is 'rows'; allowed: trainer, image, packages"):
        train_specification("keras_classifier", rows="stream")


def closure():
    size = 3

    def fit(model_dir):
        return size

    return fit


class Trainer:
    def fit(self, model_dir):
        pass


@functools.cache
def cached(model_dir):
    pass


@functools.wraps(fit)
def wrapped(model_dir):
    pass


def global_user(model_dir):
    return [SCALE * n for n in json.loads(model_dir)]


@contextlib.contextmanager
def decorated(model_dir):
    pass


def generator(model_dir):
    yield model_dir


async def asynchronous(model_dir):
    pass


def default_of_the_module(model_dir, scale=SCALE):
    pass


def by_position(model_dir, /):
    pass


def without_model(train_dir):
    pass


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (closure(), "closure: it uses size of the enclosing function"),
        (lambda model_dir: None, "a lambda has no name"),
        (Trainer.fit, "a method of Trainer"),
        (Trainer().fit, "not a plain Python function"),
        (Trainer, "not a plain Python function"),
        (print, "not a plain Python function"),
        (functools.partial(fit, epochs=1), "not a plain Python function"),
        (cached, "not a plain Python function"),
        (wrapped, "fit is decorated"),
        (decorated, "decorated is decorated, and a decorator is not sent"),
        (global_user, "uses SCALE, json of its module"),
        (generator, "is a generator"),
        (asynchronous, "is asynchronous"),
        (
            default_of_the_module,
            "the default of scale is SCALE (SCALE is not a constant expression); allowed: literals and",
        ),
        (by_position, "positional-only parameters"),
        (without_model, "no parameter model_dir"),
        (eval(compile("lambda: None", "nowhere", "eval")), "lambda"),
        ("keras_clasifier", "trainer is 'keras_clasifier'; allowed: keras_classifier"),
        ({"trainer": "keras_classifier"}, "Pass a dict to the step `train` directly"),
        (None, "None is not the name of a trainer, a function or a command"),
        ([], "command is []; allowed: at least the name of a program"),
        (["a", 1], "command is ['a', 1]; allowed: a list of strings"),
    ],
)
def test_a_program_that_cannot_run_is_refused(what, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        train_specification(what)


def test_a_function_without_a_file_is_refused():
    names = {}
    exec("def fit(model_dir): pass", names)
    with pytest.raises(ValueError, match="the source of fit is not available"):
        train_specification(names["fit"])


def test_a_function_without_a_file_is_refused_in_a_program_without_a_file():
    program = """
from kfp_distributed.trainers import train_specification
exec("def fit(model_dir): pass")
train_specification(fit)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "the source of fit is not available" in done.stderr


@pytest.mark.parametrize(
    ("specification", "reason"),
    [
        ({}, "one of the keys trainer, function, command"),
        ({"Command": ["x" * 1000]}, "x; allowed: one of the keys trainer, function, command"),
        (
            {"command": ["x"], "packages": ["a @ git+https://me:key@example.com/a.git"]},
            "packages contains a URL with a",
        ),
        ([1], "train_specification is [1]; allowed: a dict"),
        ("keras_classifier", "allowed: a dict"),
        ({"trainer": "keras_classifier", "command": ["x"]}, "one of the keys"),
        ({"trainer": "keras_classifier", "source": ""}, "a key is 'source'; allowed: trainer, image, packages"),
        ({"command": "python main.py"}, "a list of strings"),
        ({"command": ["main", "--out={modeldir}"]}, "command: a folder is '{modeldir}'; allowed: train_dir, "),
        ({"function": "fit", "source": "def fit(:"}, "is not valid Python"),
        ({"function": "fit", "source": "def fut(model_dir): pass"}, "no function 'fit'"),
        ({"function": "fit"}, "no function 'fit'"),
        ({"trainer": 3}, "trainer is 3; allowed: a string"),
        ({"trainer": "keras_classifier", "image": 3}, "image is 3; allowed: a string"),
    ],
)
def test_a_wrong_specification_is_refused(specification, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_program(specification)


@pytest.mark.parametrize("name", ["", "a b", "--rate", "a=b"])
def test_a_name_that_cannot_be_an_option_of_a_command_is_refused(name):
    with pytest.raises(ValueError, match=re.escape(f"train_parameters: a name is {name!r}; allowed: letters, ")):
        check_parameters(parse_program({"command": ["main"]}), {name: 1})
    assert check_parameters(parse_program({"command": ["main"]}), {"batch-size.2_x": 1}) == {"batch-size.2_x": 1}


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name != "language_model"])
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"epochs": 0}, "epochs is 0; allowed is more than 0"),
        ({"batch_size": "-1"}, "batch_size is -1; allowed is more than 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; allowed is more than 0"),
        ({"hidden_units": [8, 0]}, "hidden_units is [8, 0]; allowed is more than 0"),
        ({"seed": -1}, "seed is -1; allowed is 0 or more"),
        ({"class_weights": "even"}, "class_weights is 'even'; allowed is one of 'none', 'balanced'"),
        ({"keep": "first"}, "keep is 'first'; allowed is one of 'last', 'best'"),
        ({"metric": "auc"}, "metric is 'auc'; allowed is one of '', 'val_loss', 'val_accuracy', 'val_rmse', 'loss', "),
        ({"patience": -1}, "patience is -1; allowed is 0 or more"),
    ],
)
def test_the_error_names_a_value_that_is_not_allowed(trainer, wrong, reason):
    program = parse_program({"trainer": trainer})
    with pytest.raises(ValueError, match=re.escape(f"train_parameters of {trainer}: {reason}")):
        check_parameters(program, wrong)
    accepted = {"hidden_units": [], "seed": 0, "scale_learning_rate": False, "class_weights": "balanced"}
    accepted |= {"keep": "best", "metric": "loss", "patience": 0, "epochs": None}
    assert check_parameters(program, accepted) == accepted


DPO = {"objective": "dpo"}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"base_model": 1}, "base_model is 1; allowed is str"),
        ({"epochs": 0}, "epochs is 0; allowed is more than 0"),
        ({"micro_batch_size": -1}, "micro_batch_size is -1; allowed is 0 or more"),
        ({"warmup_ratio": 1}, "warmup_ratio is 1.0; allowed is 0 or more, and less than 1"),
        ({"lora_dropout": 1.5}, "lora_dropout is 1.5; allowed is 0 or more, and less than 1"),
        ({"seed": 2**32}, "seed is 4294967296; allowed is 0 or more, and less than 4294967296"),
        ({"method": "prefix"}, "method is 'prefix'; allowed is one of 'lora', 'qlora', 'full'"),
        ({"beta": 0}, "beta is 0.0; allowed is more than 0"),
        ({**DPO, "packing": True}, 'packing is true; allowed with the objective "dpo": false'),
        ({**DPO, "loss_on": "all"}, 'loss_on is "all"; allowed with the objective "dpo": "auto", "completion"'),
        ({**DPO, "lora_dropout": 0.1}, 'lora_dropout is 0.1; allowed with the objective "dpo": 0'),
        (
            {"method": "full", "lora_r": 8},
            'lora_r is 8, and method is "full", which trains no adapter: leave lora_r out',
        ),
        ({"method": "full", "lora_target_modules": "q_proj"}, 'lora_target_modules is "q_proj", and method is "full"'),
        ({"method": "full", "export": "both"}, 'export is "both", and method is "full", which trains no adapter'),
        ({**DPO, "sharding": "fsdp"}, 'sharding is "fsdp"; allowed with the objective "dpo": "auto", "none"'),
    ],
)
def test_the_parameters_of_a_language_model_have_their_own_ranges(wrong, reason):
    program = parse_program({"trainer": "language_model"})
    with pytest.raises(ValueError, match=re.escape(f"train_parameters of language_model: {reason}")):
        check_parameters(program, {"base_model": "/models/base", **wrong})
    with pytest.raises(ValueError, match="train_parameters: language_model needs base_model"):
        check_parameters(program, {})
    accepted = {"base_model": "/m", "learning_rate": 0.0, "warmup_ratio": 0.5, "packing": True, "export": "both"}
    accepted |= {"seed": 2**32 - 1, "chat_template": "{% for"}
    assert check_parameters(program, accepted) == accepted
    preferences = {**DPO, "base_model": "/m", "lora_dropout": 0.0, "loss_on": "completion", "sharding": "none"}
    assert check_parameters(program, preferences) == preferences


def test_a_trainer_gets_its_parameters_as_kfp_delivers_them():
    program = parse_program({"trainer": "keras_classifier"})
    checked = check_parameters(program, {"epochs": "5", "hidden_units": [8.0], "scale_learning_rate": "true"})
    trained = TrainingParameters(5, hidden_units=[8], scale_learning_rate=True)
    assert function_arguments(program, checked) == {"parameters": trained}
    assert program.parameters[-4] == Parameter("class_weights", "Literal['none', 'balanced']", False, "none")


def test_command_line():
    program = parse_program({"command": ["main", "--data", "{train_dir}/x", "{other}", "{model_dir}{model_dir}"]})
    parameters = check_parameters(
        program, {"epochs": 5.0, "rate": 0.1, "fast": True, "name": "3.0", "n": [1.0, {"x": 2.5}], "no": None}
    )
    assert command_line(program, {"train_dir": "/t", "model_dir": "/m"}, parameters) == [
        "main", "--data", "/t/x", "{other}", "/m/m",
        "--epochs=5", "--rate=0.1", "--fast=true", "--name=3.0", '--n=[1, {"x": 2.5}]',
    ]  # fmt: skip


@pytest.mark.parametrize("accept", [parse_program, lambda value: plan_job(Request("/d", "/m", value, ("run",)))])
def test_the_program_of_another_step_is_no_trainer(accept):
    problem = "trainer is 'language_evaluation'; allowed: keras_classifier, .*, language_model$"
    with pytest.raises(ValueError, match=problem):
        accept({"trainer": "language_evaluation"})
    with pytest.raises(ValueError, match=problem):
        train_specification("language_evaluation")


@pytest.mark.parametrize("text", ["python train.py", "./train.py"])
def test_a_command_that_is_one_text_gets_a_hint(text):
    hint = r'trainer is .* language_model; or a command, as a list of words such as \["python", "train.py"\]'
    with pytest.raises(ValueError, match=hint):
        train_specification(text)
    with pytest.raises(ValueError, match=hint):
        parse_program({"trainer": text})
