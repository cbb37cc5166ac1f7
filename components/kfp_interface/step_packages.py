"""Requirements of the steps, in pip's notation, and of the pods that prepare data."""

from kfp_distributed.trainers.programs.requirements import STORE, TENSORFLOW

_ARROW = ("numpy>=1.26,<3", "pyarrow>=20,<27")

# Dependencies of kfp, which steps install without dependencies. Steps use them to find the object store and to watch
# the job.
_KUBERNETES = ("kubernetes>=29,<37", "PyYAML>=6,<7")

_REPORTS = ("bokeh>=3.9,<4", "Jinja2>=3.1,<4")

_IMAGES = ("pillow>=10.3,<14",)

_JOB = ("numpy>=1.26,<3", *_KUBERNETES, *STORE, *_REPORTS)

# Optuna needs SQLAlchemy and alembic for databases alone, which a study is not in. See library/start.py.
_SEARCH = ("optuna>=5,<6", "colorlog>=6,<7", "tqdm>=4.60,<5")

_MODELS = ("onnxruntime>=1.20,<2",)

PACKAGES = {
    "prepare_data": (*_ARROW, *_KUBERNETES, *STORE, *_REPORTS, *_IMAGES),
    # Replicas install their own packages.
    "train": _JOB,
    "evaluate_language_model": _JOB,
    "tune": (*_JOB, *_SEARCH),
    "evaluate": (
        *TENSORFLOW,
        "onnx>=1.16,<2",
        *_MODELS,
        "scikit-learn>=1.4,<2",
        *_ARROW,
        *_KUBERNETES,
        *STORE,
        *_REPORTS,
    ),
    "export_model": (*_KUBERNETES, *STORE),
    "fingerprint_source": (*_KUBERNETES, *STORE),
    "predict": (*TENSORFLOW, *_MODELS, *_ARROW, *_KUBERNETES, *STORE, *_IMAGES),
    "deploy_model": (*_KUBERNETES, *STORE),
    "import_model": (*_KUBERNETES, *STORE),
}
"""Requirements of each step. pip installs them in a stock image, and images/steps and images/evaluate have them."""

# The scheduler's certificate needs cryptography.
DASK = ("dask>=2025.3", "distributed>=2025.3", "cryptography>=42")
"""Requirements of a Dask cluster."""

PREDICTION = (*TENSORFLOW, *_MODELS, *_IMAGES, *DASK)
"""Requirements of a pod that predicts rows, beside those of every replica."""

PREPARATION = (*_REPORTS, *_IMAGES, *DASK)
"""Requirements of a pod that prepares data, beside those of every replica."""
