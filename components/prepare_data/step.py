"""Between KFP's artifacts and the preparation: what a `prepare_data` step reads and writes."""

from typing import Any

from kfp_distributed.components.prepare_data.plan import parse_options
from kfp_distributed.components.prepare_data.prepare import prepare
from kfp_distributed.storage.placeholders import refuse_placeholders

_TEXTS = ("source", "label_column", "image_size", "drop_columns")


def run_step(
    *,
    source: str,
    train_dataset: Any,  # noqa: ANN401  (kfp's artifacts, which this module must not import)
    validation_dataset: Any,  # noqa: ANN401
    test_dataset: Any,  # noqa: ANN401
    overview: Any,  # noqa: ANN401
    **options: Any,  # noqa: ANN401
) -> None:
    """Prepare data; the parameters are those of the component.

    Raises:
        SystemExit: The data cannot be prepared. The text ends the step's log, which is all that KFP shows of a failure.
    """
    datasets = {"train": train_dataset, "validation": validation_dataset, "test": test_dataset}
    texts = {"source": source, **options}
    try:
        refuse_placeholders({name: texts[name] for name in _TEXTS})
        prepare(source, parse_options(**options), datasets, overview.path)
    except (ValueError, OSError) as error:
        raise SystemExit(f"\n{type(error).__name__}: {error}") from None
