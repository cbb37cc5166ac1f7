"""Calls of prepare_data for tables that people have. Each function is a section of docs/how-to/prepare-data.md."""

from kfp import dsl

from kfp_distributed.components import prepare_data


# --8<-- [start:classes]
def classes() -> dsl.PipelineTask:
    """A class to predict."""
    return prepare_data(source="wine.csv", label_column="cultivar")
    # --8<-- [end:classes]


# --8<-- [start:number]
def number() -> dsl.PipelineTask:
    """A number to predict."""
    return prepare_data(source="houses.parquet", label_column="price", task="regression")
    # --8<-- [end:number]


# --8<-- [start:gaps]
def gaps() -> dsl.PipelineTask:
    """Gaps, some of them written as ? or -."""
    return prepare_data(source="survey.csv", csv_format={"missing": ["?", "-"]}, missing="impute")
    # --8<-- [end:gaps]


# --8<-- [start:spreadsheet]
def spreadsheet() -> dsl.PipelineTask:
    """A file of a spreadsheet with decimal commas."""
    return prepare_data(source="export.csv", csv_format={"separator": ";", "decimal": ",", "encoding": "latin-1"})
    # --8<-- [end:spreadsheet]


# --8<-- [start:codes]
def codes() -> dsl.PipelineTask:
    """Integer codes, dates and an ID."""
    return prepare_data(source="orders.csv", columns={"zip": "category", "ordered_on": "date"}, drop_columns=["id"])
    # --8<-- [end:codes]


# --8<-- [start:patients]
def patients() -> dsl.PipelineTask:
    """Several rows of each patient."""
    return prepare_data(source="scans.csv", split={"group_column": "patient"})
    # --8<-- [end:patients]


# --8<-- [start:time]
def time() -> dsl.PipelineTask:
    """The newest rows test the model."""
    return prepare_data(
        source="sales.csv", label_column="sold", split={"time_column": "day", "validation_fraction": 0.2}
    )
    # --8<-- [end:time]


# --8<-- [start:files]
def files() -> dsl.PipelineTask:
    """A file for each dataset."""
    return prepare_data(source="train.csv", split={"validation_source": "validation.csv", "test_source": "test.csv"})
    # --8<-- [end:files]


# --8<-- [start:texts]
def texts() -> dsl.PipelineTask:
    """Texts for a function of your own."""
    return prepare_data(source="reviews.csv", label_column="stars", columns={"review": "text"})
    # --8<-- [end:texts]


# --8<-- [start:records]
def records() -> dsl.PipelineTask:
    """Any rows, without a label, for a function of your own."""
    return prepare_data(source="events.parquet", label_column="", shards=16)
    # --8<-- [end:records]


# --8<-- [start:hugging_face]
def hugging_face_images() -> dsl.PipelineTask:
    """Images of a folder that Hugging Face datasets has written."""
    return prepare_data(source="photos", image_size="32x32", on_bad_row="skip")
    # --8<-- [end:hugging_face]


# --8<-- [start:bad]
def bad_rows() -> dsl.PipelineTask:
    """Some rows that cannot be used."""
    return prepare_data(source="sensor.csv.gz", on_bad_row="skip")
    # --8<-- [end:bad]


# --8<-- [start:workers]
def large_table() -> dsl.PipelineTask:
    """A table that several workers prepare."""
    return prepare_data(
        source="s3://mlpipeline/clicks.parquet",
        label_column="clicked",
        shards=64,
        distribution_specification={"number_of_workers": 4, "worker_cpus": 2, "worker_memory": "2Gi"},
    )
    # --8<-- [end:workers]


# --8<-- [start:like]
def new_rows(train_dataset: str) -> dsl.PipelineTask:
    """New rows for a model that was trained before."""
    return prepare_data(source="new.csv", like=train_dataset, split={"validation_fraction": 0, "test_fraction": 1})
    # --8<-- [end:like]
