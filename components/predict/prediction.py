"""The prediction of all rows: check the model and the rows, predict chunk by chunk, write the files."""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kfp_distributed.components.external_services.source_address import DIGITS
from kfp_distributed.components.kfp_interface.artifacts import Artifact
from kfp_distributed.components.model_versions.aliases import resolve
from kfp_distributed.components.predict.answering.predict_task import PredictWork, predict_chunk, with_row_numbers
from kfp_distributed.components.predict.answering.prediction_files import PredictionFiles, write_manifest
from kfp_distributed.components.predict.asked_model.model_folder import download_model
from kfp_distributed.components.predict.asked_model.model_plan import ModelPlan, plan_model
from kfp_distributed.components.predict.asked_model.predictor import forget_model, loaded_model, loaded_predictor
from kfp_distributed.components.predict.prediction_request import PredictionRequest
from kfp_distributed.components.predict.reading.dataset_rows import described_by, open_dataset, read_dataset
from kfp_distributed.components.predict.reading.input_rows import RowReader
from kfp_distributed.components.predict.reading.seen_values import SeenValues
from kfp_distributed.components.predict.reading.source_rows import SourceRows, open_rows
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.sources.disk_errors import disk_errors
from kfp_distributed.components.prepare_data.sources.fetch import is_stored, local_copy, refuse_downloads, stored_source
from kfp_distributed.components.prepare_data.sources.read_rows import ReadAgain, RejectedRows, RowsRefused
from kfp_distributed.components.prepare_data.sources.stored_files import SourcePath
from kfp_distributed.components.worker_pool.piece_tasks import run_here
from kfp_distributed.components.worker_pool.stored_tasks import Engine, StoredTasks
from kfp_distributed.components.worker_pool.task_scratch import step_tasks
from kfp_distributed.library.address_secrets import without_secrets
from kfp_distributed.storage.model import ModelManifest, read_model_folder

ROWS_PER_LOG_LINE = 1_000_000
"""Rows between two log lines about the progress."""

_FOREIGN_SETTING = re.compile(r"\b(drop_columns|label_column|columns=|(set|in) columns\b|columns declares)")


def run_prediction(request: PredictionRequest, predictions: Artifact, engine: Engine | None = None) -> int:
    """Predict all rows of a dataset or a source.

    Args:
        request: The checked parameters.
        predictions: Output artifact for the folder. Rows and model are added to its metadata.
        engine: Where the tasks run, each of which predicts a chunk. Default: None, in this process.

    Returns:
        Number of predicted rows.

    Raises:
        ValueError: The model, the rows or a parameter cannot be used. There is no output.
        ModelIncomplete: The model lacks files, or a file differs from model.json.
        OSError: The source cannot be downloaded, or the output cannot be written.
        StorageError: The store cannot be read.
    """
    if not request.is_artifact:
        request = replace(request, model_uri=resolve(request.model_uri))
    if engine and engine.has_other_machines:
        _refuse_own_disk(request)
    target = Path(predictions.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        forget_model(),
        tempfile.TemporaryDirectory(prefix="predict-") as scratch,
        # Beside the output, because its disk has place for the rows.
        tempfile.TemporaryDirectory(prefix=".predict-", dir=target.parent) as unfinished,
        disk_errors(target.parent, Path(scratch)),
    ):
        plan, manifest = _model(request, Path(scratch, "model"))
        prediction = _Prediction(request, plan, manifest, engine)
        rows = prediction.write(Path(scratch), Path(unfinished))
        shutil.rmtree(target, ignore_errors=True)
        Path(unfinished, "output").replace(target)
    predictions.metadata.update(rows=rows, model=without_secrets(request.model_uri))
    return rows


def _refuse_own_disk(request: PredictionRequest) -> None:
    """Check that processes on other machines can reach the model and the rows.

    Raises:
        ValueError: They cannot.
    """
    if request.dataset and not read_dataset(Path(request.dataset)).shards_uri:
        raise ValueError(
            "the shards of the dataset are on the disk of this machine, which workers on other machines do not see: "
            "run the pipeline with an object store, or leave distribution_specification empty"
        )
    if request.source:
        refuse_downloads([request.source], "workers on other machines do not see:")
    for name, address in (("model", request.model_uri), ("source", request.source)):
        if address and address != DIGITS and "://" not in address:
            raise ValueError(
                f"{name} {address} is on the disk of this machine, which workers on other machines do not see: store "
                "it in an object store, or leave distribution_specification empty"
            )


def _model(request: PredictionRequest, folder: Path) -> tuple[ModelPlan, ModelManifest]:
    """Return how the model is asked, and its manifest, after its files were checked.

    A model without columns in its manifest gets those of the dataset, if there is one.
    """
    if request.model:
        folder, manifest = Path(request.model), read_model_folder(Path(request.model))
    else:
        manifest = download_model(request.model_uri, folder, request.is_artifact)
    if request.dataset and not manifest.columns:
        manifest = described_by(read_dataset(Path(request.dataset)), manifest)
    plan = plan_model(str(folder), manifest, loaded_model(str(folder)).signature)
    if plan.kind == "classes" and not plan.classes:
        print("the model does not say its classes: `prediction` is the index of the class, from 0", flush=True)
    return plan, manifest


def _with_own_settings(text: str) -> str:
    """Return what the readers of `prepare_data` say, with what it means for this step, if they name their settings."""
    if not _FOREIGN_SETTING.search(text):
        return text
    return (
        f"{text}. These are inputs of prepare_data: here, write the column as in the training data, or take it out of "
        "key_columns"
    )


@contextmanager
def _own_settings() -> Iterator[None]:
    try:
        yield
    except RowsRefused as error:
        raise RowsRefused(_with_own_settings(str(error))) from error
    except ValueError as error:
        raise ValueError(_with_own_settings(str(error))) from error


@dataclass(frozen=True)
class _Prediction:
    """The way from the rows to the files.

    Attributes:
        request: The parameters.
        plan: How the model is asked.
        manifest: Manifest of the model.
        engine: Where tasks run; None for this process.
    """

    request: PredictionRequest
    plan: ModelPlan
    manifest: ModelManifest
    engine: Engine | None

    def write(self, scratch: Path, unfinished: Path) -> int:
        """Write the output into a folder "output", and return the number of predicted rows.

        Args:
            scratch: Folder for downloads and unpacked files.
            unfinished: Empty folder beside the output.
        """
        opened = self._dataset if self.request.dataset else self._source(scratch)
        with _own_settings():
            return self._write_again(opened, unfinished)

    def _write_again(self, opened: Callable[[Mapping[str, str]], tuple[RowReader, ModelPlan]], unfinished: Path) -> int:
        """Write the output, again whenever a row shows that the source must be read in another way."""
        codes: dict[str, str] = {}
        while True:
            folder, chunks = unfinished / "output", unfinished / "chunks"
            for new in (folder, chunks):
                new.mkdir()
            try:
                reader, plan = opened(codes)
                with step_tasks(self.engine, self._identity(reader)) as tasks:
                    return self._write(reader, plan, folder, chunks, tasks)
            except ReadAgain as found:  # A later key shows that what seemed to be numbers are codes.
                codes |= found.codes
            for old in (folder, chunks):
                shutil.rmtree(old)

    def _identity(self, reader: RowReader) -> object:
        """Return everything that decides about the answers, see `step_tasks`."""
        return replace(self.request, model=""), self.manifest.to_json(), reader.chunks()

    def _dataset(self, codes: Mapping[str, str]) -> tuple[RowReader, ModelPlan]:
        folder = Path(self.request.dataset)
        rows = open_dataset(folder, read_dataset(folder), self.manifest, self.request.key_columns)
        loaded_predictor(self.plan)
        return rows, self.plan

    def _source(self, scratch: Path) -> Callable[[Mapping[str, str]], tuple[RowReader, ModelPlan]]:
        request, plan = self.request, self.plan
        loaded_predictor(plan)  # Its inputs are checked before the source is read.
        path: SourcePath | None = None
        if request.source != DIGITS:
            is_read_there = self.engine and is_stored(request.source)
            path = stored_source(request.source) if is_read_there else local_copy(request.source, scratch / "source")
        options = Options(label_column="", csv_format=request.csv_format, on_bad_row=request.on_bad_row)
        logged: set[str] = set()

        def opened(codes: Mapping[str, str]) -> tuple[SourceRows, ModelPlan]:
            rows = open_rows(
                path,
                options,
                plan.columns,
                request.key_columns,
                scratch,
                codes,
                are_kept=plan.are_kept,
                are_kinds_known=bool(self.manifest.columns),
                is_filled=not loaded_predictor(plan).by_column,
            )
            for note in rows.source.notes:
                if note not in logged:
                    print(f"warning: {_with_own_settings(note)}", flush=True)
            logged.update(rows.source.notes)
            return rows, plan

        return opened

    def _write(self, reader: RowReader, plan: ModelPlan, folder: Path, chunks: Path, tasks: StoredTasks | None) -> int:
        request = self.request
        work = PredictWork(plan, reader, request.on_bad_row, request.has_probabilities, "" if tasks else str(chunks))
        if self.engine and self.engine.has_other_machines:
            # The folder is another one when the step starts again, which then finds the results of the same work.
            work = replace(
                work, plan=replace(plan, folder=""), model_uri=request.model_uri, model_files=self.manifest.files
            )
        files, rejected = PredictionFiles(folder, work.schema), RejectedRows(request.on_bad_row)
        seen, late = SeenValues(), []
        before, rows = Counter[str](), 0
        try:
            for found in (tasks.run if tasks else run_here)(partial(predict_chunk, work), enumerate(reader.chunks())):
                rejected.merge(found.rejected, before)
                seen.merge(found.seen)
                late.append(found.late)
                with found.open() as batches:
                    for batch in batches:
                        files.add(with_row_numbers(batch, reader, before))
                found.discard()
                before.update(found.rows_of_files)
                rows_before, rows = rows, rows + found.rows
                if rows // ROWS_PER_LOG_LINE > rows_before // ROWS_PER_LOG_LINE:
                    print(f"predicted {rows:,} rows", flush=True)
            rejected.check()
            if rejected.count and not rows:
                raise ValueError("; ".join(["no row is left", *rejected.notes()]) + ". Correct the rows")
            files.finish()
        finally:
            files.discard()
        if reader.late_findings:
            for findings in late:
                reader.late_findings.add_late(findings)
        for note in [*reader.late_notes(), *rejected.notes(), *seen.lines(plan.columns)]:
            print(f"warning: {note}", flush=True)
        model = {"uri": without_secrets(request.model_uri), "job": self.manifest.job}
        write_manifest(folder, work.schema, files, model, plan.classes, rejected.count)
        count = len(files.parts)
        print(f"predicted {rows:,} rows, all, in {count:,} file{'s' * (count != 1)}", flush=True)
        return rows
