"""Rows as CSV, JSON Lines, Parquet and images, for tests that prepare them in several ways."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROWS = 3000


def rows():
    generator = np.random.default_rng(0)
    return [
        {
            "x": None if row % 7 == 0 else float(generator.normal() * 10.0 ** generator.integers(-3, 6)),
            "y": float(generator.normal()),
            "town": f"town {int(generator.pareto(0.5)) % 300}",
            "group": f"g{row % 97}",
            "time": row // 3,
            "label": "abc"[row % 11 % 3],
        }
        for row in range(ROWS)
    ]


def csv_text(*, has_line_ends=True):
    lines = ["x,y,town,group,time,label"]
    for row in rows():
        town = f'"{row["town"]}\n, east"' if has_line_ends and row["time"] % 5 == 0 else row["town"]
        x = "" if row["x"] is None else f"{row['x']:.6g}"
        lines.append(f"{x},{row['y']:.5g},{town},{row['group']},{row['time']},{row['label']}")
    return "\n".join(lines) + "\n"


def json_lines():
    # The last lines have a key that the first ones lack.
    return "".join(json.dumps(row | ({"late": 1} if row["time"] > 900 else {})) + "\n" for row in rows())


def parquet():
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows()), sink, row_group_size=250)
    return sink.getvalue()


def images(folder):
    generator = np.random.default_rng(1)
    for number in range(120):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (6, 6 + 4 * (number > 100), 3)[: 2 if number < 90 else 3], np.uint8)
        Image.fromarray(pixels).save(path)
    return folder
