"""The pieces by themselves, in any order and sent between processes, give what one pass over them gives."""

import pickle
from dataclasses import dataclass, fields

import numpy as np
import pytest

from kfp_distributed.components.prepare_data.pieces.piece_files import Pieces
from kfp_distributed.components.prepare_data.preparation_options import Options
from kfp_distributed.components.prepare_data.report.overview import overview_page
from kfp_distributed.components.prepare_data.scan.scanner import scan
from kfp_distributed.components.prepare_data.split.strata import plan_strata
from kfp_distributed.components.prepare_data.tables.open_source import open_source
from kfp_distributed.components.prepare_data.writing import piece_rows
from kfp_distributed.components.prepare_data.writing import write as module
from kfp_distributed.components.prepare_data.writing.shard_files import write_shard
from kfp_distributed.components.prepare_data.writing.write import write_splits
from kfp_distributed.components.worker_pool.piece_tasks import run_here

pytestmark = pytest.mark.takes(5)

ROWS = 3000


def run_apart(task, items):
    """Run the tasks in any order, and send functions, items and results."""
    sent = [pickle.dumps((task, item)) for item in items]
    results = {}
    for index in np.random.default_rng(len(sent)).permutation(len(sent)):
        function, item = pickle.loads(sent[index])
        results[index] = pickle.dumps(function(item))
    return [pickle.loads(results[index]) for index in range(len(sent))]


def write_apart(work, profiler, files, texts, size):
    """Describe the pieces and write the files as tasks of their own."""
    items = zip(work.drawn.pieces.numbers, profiler.sampled(), strict=True)
    for profile, duplicates in run_apart(_Profile(work), items):
        profiler.merge(profile)
        profiler.merge_duplicates(duplicates)
    run_apart(_Shard(work, files, texts, size), range(len(files)))


@dataclass
class _Profile:
    work: piece_rows.RowWork

    def __call__(self, item):
        piece, sampled = item
        rows = self.work.read(piece)
        return self.work.profile(rows, sampled), self.work.duplicates(rows)


@dataclass
class _Shard:
    work: piece_rows.RowWork
    files: list
    texts: list
    size: int

    def __call__(self, file):
        write_shard(self.files[file], self.rows(file), self.texts, self.size)

    def rows(self, file):
        for piece in self.work.drawn.pieces.numbers:
            rows = self.work.read(piece)
            begin, end = np.searchsorted(rows.files, (file, file + 1))
            if begin < end:
                yield self.work.in_shards(rows)[begin:end]


def csv_text():
    generator = np.random.default_rng(0)
    lines = ["x,y,town,group,time,label"]
    for row in range(ROWS):
        x = "" if row % 7 == 0 else f"{generator.normal() * 10.0 ** generator.integers(-3, 6):.6g}"
        town = f"town {int(generator.pareto(0.5)) % 900}"
        lines.append(f"{x},{generator.normal():.5g},{town},g{row % 97},{row // 3},{'abc'[row % 11 % 3]}")
    return "\n".join(lines) + "\n"


OPTIONS = {
    "classes": {"shards": 5},
    "regression": {"label_column": "y", "task": "regression"},
    "groups": {"group_column": "group", "shards": 2},
    "times": {"time_column": "time"},
    "no label": {"label_column": "", "task": "none", "missing": "keep"},
}


@pytest.fixture
def outputs(file, tmp_path, monkeypatch):
    """Write the splits: outputs(name, "here", options) -> manifests, profile, overview and bytes of all files."""

    def write(name, where, **options):
        options = Options(**{"label_column": "label", **options})
        source = open_source(file("data.csv", csv_text()), options, tmp_path, {}, options.task or "classification")
        pieces = Pieces(tmp_path / name, 40 * ROWS, options.seed, 2**12)
        found = scan(source, pieces, options=options)
        assert len(pieces.files().numbers) > 20
        folders = {split: tmp_path / f"{name}-{split}" for split in ("train", "validation", "test")}
        for folder in folders.values():
            folder.mkdir()
        run = run_here
        with monkeypatch.context() as patch:
            patch.setattr(module, "group_bytes", lambda files: 4000)
            if where == "apart":
                run = run_apart
                patch.setattr(module, "write_shards", write_apart)
            strata, counts = plan_strata(pieces.files(), found, source.split_by, options, frozenset(), run)
            manifests, profile = write_splits(pieces.files(), found, strata, counts, options, "data.csv", folders, run)
        written = {
            (split, path.name): path.read_bytes() for split, folder in folders.items() for path in folder.iterdir()
        }
        return manifests, profile, overview_page(manifests, profile, found.missing), written

    return write


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_pieces_and_files_by_themselves_give_the_same_bytes(outputs, options):
    here, apart = outputs("here", "here", **options), outputs("apart", "apart", **options)
    assert here[0] == apart[0]
    assert here[3] == apart[3]
    assert here[2] == apart[2]
    assert plain(here[1]) == plain(apart[1])


def plain(profile):
    """The numbers of a profile, bit by bit."""
    moments = {
        name: {key: value.tobytes() for key, value in vars(found).items()} for name, found in profile.moments.items()
    }
    sample = {field.name: getattr(profile.sample, field.name) for field in fields(profile.sample)}
    sample |= {f"words of {name}": words for name, words in sample.pop("words").items()}
    arrays = {key: value.tobytes() if isinstance(value, np.ndarray) else value for key, value in sample.items()}
    return moments, arrays, [*profile.predictors], [*profile.duplicates], [*profile.unseen]
