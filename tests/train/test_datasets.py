"""The checks of the datasets of a training, and validation data with columns in another order."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_distributed.components.train.run.launch import launch
from kfp_distributed.components.train.run.runners.local.runner import LocalRunner
from kfp_distributed.components.train.run.training_request.datasets import check_datasets, check_trainable
from kfp_distributed.components.train.run.training_request.request import Request, plan_job
from kfp_distributed.storage.dataset import DATASET_MANIFEST, Column, DatasetManifest, Label, Shard
from kfp_distributed.storage.files import sha256_of
from kfp_distributed.trainers import train_specification

SIZE, AGE = (Column(name, "number", "float32", mean=2.5) for name in ("size", "age"))


def manifest_of(*columns, rows=4, shuffled=True, sha256="0" * 64, seed=0):
    shard = Shard("part.parquet", rows, 10, sha256)
    return DatasetManifest("train", columns, Label("kind", ("a", "b")), (shard,), (rows, 0), seed, "x", shuffled)


VALIDATION = "1" * 64


def test_splits_of_one_dataset_fit_in_any_order_of_the_columns():
    validation = manifest_of(AGE, SIZE, shuffled=False, sha256=VALIDATION)
    assert check_datasets(manifest_of(SIZE, AGE), validation, 4) == []
    assert check_datasets(manifest_of(SIZE), None, 4) == []


def test_shards_in_the_order_of_the_source_cause_a_warning():
    assert len(check_datasets(manifest_of(SIZE, shuffled=False), None, 1)) == 1


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        (manifest_of(SIZE), "1 of the 1 shards"),
        (manifest_of(SIZE, sha256=VALIDATION, seed=1), "the seed 1 instead of 0"),
    ],
    ids=["the training data", "another split"],
)
def test_validation_data_that_trains_the_model_causes_a_warning(validation, words):
    (warning,) = check_datasets(manifest_of(SIZE), validation, 1)
    assert words in warning


@pytest.mark.parametrize(
    ("validation", "ranks", "message"),
    [
        (None, 5, "train_dataset: 4 rows are too few for 5 ranks"),
        (manifest_of(SIZE), 1, "validation_dataset does not fit train_dataset: the column 'age' is missing"),
        (replace(manifest_of(SIZE, AGE), label=Label("kind", ("b", "a"))), 1, r"the classes are \['b', 'a'\]"),
    ],
)
def test_datasets_that_do_not_fit_are_refused(validation, ranks, message):
    with pytest.raises(ValueError, match=message):
        check_datasets(manifest_of(SIZE, AGE), validation, ranks)


KEPT = Column("review", "kept", "string")


def unlabelled(*columns, label):
    return replace(manifest_of(*columns), label=label, class_counts=())


NUMBER, NO_LABEL = Label("price", (), "regression", 5.0, 2.0), Label("", task="none")


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (unlabelled(SIZE, label=NO_LABEL), "torch_classifier needs one: .* of your own, .* label_column"),
        (manifest_of(SIZE, KEPT), "torch_classifier takes .*the columns 'review' .* of your own, .* drop_columns"),
    ],
    ids=["no label", "kept"],
)
def test_a_built_in_trainer_refuses_what_only_a_function_can_read(train, message):
    with pytest.raises(ValueError, match=f"train_dataset: .*{message}"):
        check_trainable(train, "torch_classifier", {})
    validation = replace(train, shards=tuple(replace(shard, sha256=VALIDATION) for shard in train.shards))
    assert check_datasets(train, validation, 1) == []


def test_the_step_refuses_a_built_in_trainer_for_a_dataset_without_a_label(tmp_path):
    (tmp_path / DATASET_MANIFEST).write_text(unlabelled(SIZE, label=NO_LABEL).to_json())
    request = Request(str(tmp_path), str(tmp_path / "model"), {"trainer": "keras_classifier"}, ("run",))
    with pytest.raises(ValueError, match="the dataset has no label"):
        plan_job(request)
    plan_job(replace(request, train_specification=train_specification(print_columns)))


@pytest.mark.parametrize(
    ("parameters", "validates", "message"),
    [
        ({"keep": "best"}, False, "keep is 'best' and metric is 'val_loss', but there are no validation rows; pass a"),
        ({"patience": 2}, False, "patience is 2 and metric is 'val_loss', but there are no validation rows; pass a"),
        ({"metric": "val_rmse"}, True, "metric is 'val_rmse', but the dataset has the task 'classification'; allowed"),
        ({"metric": "loss"}, True, "metric is 'loss', but keep is 'last' and patience is 0, so no epochs are compared"),
    ],
)
def test_the_step_refuses_a_choice_of_the_epoch_that_the_datasets_cannot_have(tmp_path, parameters, validates, message):
    for name, digest in (("train", "0" * 64), ("validation", VALIDATION)):
        manifest = manifest_of(SIZE)
        shards = tuple(replace(shard, sha256=digest) for shard in manifest.shards)
        (tmp_path / name).mkdir()
        (tmp_path / name / DATASET_MANIFEST).write_text(replace(manifest, shards=shards).to_json())
    request = Request(str(tmp_path / "train"), str(tmp_path / "model"), {"trainer": "keras_classifier"}, ("run",))
    request = replace(
        request,
        validation_uri=str(tmp_path / "validation") if validates else "",
        distribution_specification={"number_of_workers": 1},
    )
    with pytest.raises(ValueError, match=f"^train_parameters of keras_classifier: {message}"):
        plan_job(replace(request, train_parameters={"batch_size": 4, **parameters}))
    plan_job(replace(request, train_parameters={"batch_size": 4, "keep": "best", "metric": "loss", "patience": 2}))


def test_datasets_of_numbers_fit_whatever_their_scale():
    other = unlabelled(SIZE, label=replace(NUMBER, mean=6.0))
    validation = replace(other, shards=(replace(other.shards[0], sha256=VALIDATION),))
    assert check_datasets(unlabelled(SIZE, label=NUMBER), validation, 1) == []
    with pytest.raises(ValueError, match="train_parameters of keras_classifier: class_weights is 'balanced'"):
        check_trainable(other, "keras_classifier", {"class_weights": "balanced"})
    with pytest.raises(ValueError, match="the task is 'regression', in the training data 'classification'"):
        check_datasets(manifest_of(SIZE), validation, 1)


def kept(*names, **others):
    kinds = {"messages": "conversation", "conversations": "conversation", "input": "optional text", **others}
    columns = (Column(name, "kept", "string", source_type=kinds.get(name, "required text")) for name in names)
    return unlabelled(*columns, label=NO_LABEL)


@pytest.mark.parametrize(
    ("names", "loss_on", "allowed"),
    [
        (["messages"], "completion", "auto, assistant, all"),
        (["prompt", "completion"], "assistant", "auto, completion, all"),
        (["instruction", "input", "output"], "assistant", "auto, completion, all"),
        (["text"], "assistant", "auto, all"),
        (["messages", "prompt", "completion"], "completion", "auto, assistant, all"),
        (["conversations", "instruction", "output"], "completion", "auto, assistant, all"),
    ],
)
def test_the_rows_of_a_language_model_have_the_tokens_whose_loss_counts(names, loss_on, allowed):
    for choice in allowed.split(", "):
        check_trainable(kept(*names), "language_model", {"loss_on": choice})
    with pytest.raises(ValueError, match=f"loss_on is '{loss_on}', and .*{names[0]}.* allowed for them: {allowed}$"):
        check_trainable(kept(*names), "language_model", {"loss_on": loss_on})


@pytest.mark.parametrize("names", [["prompt", "chosen", "rejected"], ["chosen", "rejected"]])
def test_preferences_need_their_objective_and_it_needs_them(names):
    kinds = {} if "prompt" in names else dict.fromkeys(names, "conversation")
    check_trainable(kept(*names, **kinds), "language_model", {"objective": "dpo"})
    with pytest.raises(ValueError, match=r'objective is "sft", .* which are preferences: set objective to "dpo", or'):
        check_trainable(kept(*names, **kinds), "language_model", {})
    for others in (["messages"], ["prompt", "completion"], ["text"], ["messages", *names]):
        with pytest.raises(ValueError, match=r'objective is "dpo", .*no preferences: set objective to "sft", or run'):
            check_trainable(kept(*others, **kinds), "language_model", {"objective": "dpo"})


@pytest.mark.parametrize("kind", ["conversation", "list<object>"])
def test_the_validation_rows_of_a_language_model_have_the_kinds_of_its_training_rows(kind):
    texts, values = kept("prompt", "completion"), kept("prompt", "completion", prompt=kind)
    for train, validation in ((texts, values), (values, texts)):
        with pytest.raises(
            ValueError, match=r"validation_dataset does not fit .*source_type of column 'prompt' is '\w"
        ):
            check_datasets(train, validation, 1)


@pytest.mark.parametrize("kind", ["text", ""])
def test_the_validation_rows_of_a_language_model_were_checked_too(kind):
    train, validation = kept("prompt", "completion"), kept("prompt", "completion", completion=kind)
    with pytest.raises(ValueError, match=r"^validation_dataset: column 'completion' .* was prepared as"):
        check_trainable(train, "language_model", {}, validation)


def test_dates_and_numbers_do_not_fit_each_other():
    date, number = (replace(AGE, source_type=kind) for kind in ("date", ""))
    for train, validation in ((date, number), (number, date)):
        with pytest.raises(ValueError, match=r"validation_dataset does not fit .* the source_type of column 'age' is"):
            check_datasets(manifest_of(SIZE, train), manifest_of(SIZE, validation), 1)
    other = manifest_of(SIZE, replace(AGE, source_type="date %d.%m.%Y"), sha256=VALIDATION)
    assert check_datasets(manifest_of(SIZE, date), other, 1) == []


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["messages", "tools"], {"tools": "optional text"}),
        (["instruction", "output", "tools"], {"tools": "text"}),
        (["instruction", "output", "input"], {"input": "list<text>"}),
    ],
)
def test_the_optional_columns_of_a_form_have_its_kinds(names, kinds):
    with pytest.raises(ValueError, match=f"'{names[-1]}' of the dataset of .* was prepared as {kinds[names[-1]]}, and"):
        check_trainable(kept(*names, **kinds), "language_model", {})
    check_trainable(kept("text", *kinds, **kinds), "language_model", {})


@pytest.mark.parametrize("train", [manifest_of(SIZE, AGE), kept("prompt", "answer")])
def test_a_language_model_learns_from_conversations_prompts_and_texts_alone(train):
    with pytest.raises(ValueError, match=r"^train_dataset: .* has the columns .*; allowed are messages, conversations"):
        check_trainable(train, "language_model", {})


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ([Column("text", "category", "int32", vocabulary=("a",))], "'text' .* as category .* and not as required text"),
        ([Column("text", "kept", "string")], "'text' .* as kept .* and not as required text: run prepare_data without"),
        ([replace(kept("text").columns[0], source_type="optional text")], "'text' .* as optional text, and"),
        ([Column("messages", "kept", "string")], "'messages' .* as kept .* and not as conversation: run"),
        ([*kept("prompt").columns, Column("completion", "kept", "string")], "'completion' .* conversation or required"),
    ],
)
def test_a_language_model_learns_from_columns_that_were_prepared_for_it_alone(columns, problem):
    with pytest.raises(ValueError, match=f"^train_dataset: column {problem}"):
        check_trainable(unlabelled(*columns, label=NO_LABEL), "language_model", {})


def print_columns(validation_dir, model_dir):
    import json
    from pathlib import Path

    columns = json.loads(Path(validation_dir, "dataset.json").read_text())["columns"]
    Path(model_dir, "names").write_text(json.dumps([column["name"] for column in columns]))


def write(folder, *columns):
    folder.mkdir()
    values = {
        "kind": pa.array([0, 0], pa.int32()),
        **{column.name: pa.array([1, 2], pa.float32()) for column in columns},
    }
    pq.write_table(pa.table(values), folder / "part.parquet")
    file = folder / "part.parquet"
    shard = Shard(file.name, 2, file.stat().st_size, sha256_of(file))
    manifest = replace(manifest_of(*columns), shards=(shard,), class_counts=(2, 0))
    (folder / DATASET_MANIFEST).write_text(manifest.to_json())
    return str(folder)


def test_replicas_read_validation_data_in_the_order_of_the_training_data(tmp_path):
    request = Request(
        train_uri=write(tmp_path / "train", SIZE, AGE),
        validation_uri=write(tmp_path / "validation", AGE, SIZE),
        model_uri=str(tmp_path / "model"),
        train_specification=train_specification(print_columns),
        identity=(str(tmp_path),),
    )
    launch(request, LocalRunner(), lambda entry: None)
    assert json.loads((tmp_path / "model" / "names").read_text()) == ["size", "age"]
