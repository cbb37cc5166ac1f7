"""The steps that a pipeline is composed of: `prepare_data`, `train`, `evaluate`, `export_model`.

`steps(delivery)` makes the same four for another way to find the library than the one that the environment names.
"""

import os

# A step's container has kfp without the compiler; kfp's own package looks at the same variable.
if os.environ.get("_KFP_RUNTIME") != "true":
    from kfp_distributed.components.delivery import Delivery
    from kfp_distributed.components.steps import Steps, steps

    # Last, for the names of the four are those of the folders beside this file, too.
    prepare_data, train, evaluate, export_model = steps(Delivery.from_environment(os.environ))

    __all__ = ["Delivery", "Steps", "evaluate", "export_model", "prepare_data", "steps", "train"]
