import numpy as np
import pyarrow as pa
import pytest
import samples
from tune.search_step import FOLDER, Step

from kfp_distributed.storage.dataset import Column


@pytest.fixture
def step(tmp_path):
    column = Column("x", "number", "float32", (), (), 3.5, 2.3)
    rows = pa.array(np.arange(8, dtype=np.float32))
    samples.write_dataset(tmp_path / "train", [column], [rows], np.arange(8) % 2, ["a", "b"], [4, 4])
    return Step(tmp_path / "train", tmp_path / FOLDER)
