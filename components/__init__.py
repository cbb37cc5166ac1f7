"""The steps of a pipeline: `prepare_data`, `train`, `evaluate`, `export_model` and `fingerprint_source`.

The environment variables of `Delivery.from_environment` configure how the steps find this library. `steps(delivery)`
returns the same five steps for another delivery.
"""

import os

# A step has kfp without its compiler. kfp itself checks the same variable.
if os.environ.get("_KFP_RUNTIME") != "true":
    from kfp_distributed.components.delivery import Delivery
    from kfp_distributed.components.steps import Steps, steps

    # Last, because the imports above set attributes with the same names: the subpackages prepare_data, train, ...
    prepare_data, train, evaluate, export_model, fingerprint_source = steps(Delivery.from_environment(os.environ))

    __all__ = ["Delivery", "Steps", "evaluate", "export_model", "fingerprint_source", "prepare_data", "steps", "train"]
