"""Write wine.csv: 178 wines with 13 measurements, and the cultivar to predict. The data is part of scikit-learn."""

import csv
from pathlib import Path

from sklearn.datasets import load_wine

wine = load_wine()
with Path("wine.csv").open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow([*wine.feature_names, "cultivar"])
    for measurements, cultivar in zip(wine.data, wine.target, strict=True):
        writer.writerow([*measurements, wine.target_names[cultivar]])
