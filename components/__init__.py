"""The steps of a pipeline.

They are `prepare_data`, `train`, `evaluate`, `evaluate_language_model`, `export_model`, `fingerprint_source`,
`predict`, `deploy_model`, `import_model` and `tune`.

The environment variables of `Delivery.from_environment` configure how the steps find this library. `steps(delivery)`
returns the same ten steps for another delivery. `SingleJob`, `TensorFlow`, `Mpi` and `PyTorch` make the
`distribution_specification` of `train`, `Split` the `split` of `prepare_data`, and `Float`, `Int` and `Choice` the
`search_space` of `tune`.
"""

import os
import sys
from types import ModuleType
from typing import Any

# A step has kfp without its compiler. kfp itself checks the same variable.
if os.environ.get("_KFP_RUNTIME") != "true":
    from kfp_distributed.components.kfp_interface.delivery import Delivery
    from kfp_distributed.components.prepare_data.split_parameter import Split
    from kfp_distributed.components.step_components import Steps, steps
    from kfp_distributed.components.train.describe.distributions import Mpi, PyTorch, SingleJob, TensorFlow
    from kfp_distributed.components.train.describe.pod_settings import Toleration, Volume
    from kfp_distributed.components.tune.search_space import Choice, Float, Int

    __all__ = [
        "Choice",
        "Delivery",
        "Float",
        "Int",
        "Mpi",
        "PyTorch",
        "SingleJob",
        "Split",
        "Steps",
        "TensorFlow",
        "Toleration",
        "Volume",
        "deploy_model",
        "evaluate",
        "evaluate_language_model",
        "export_model",
        "fingerprint_source",
        "import_model",
        "predict",
        "prepare_data",
        "steps",
        "train",
        "tune",
    ]

    # `_Package` makes them.
    prepare_data: Any
    train: Any
    evaluate: Any
    export_model: Any
    fingerprint_source: Any
    predict: Any
    deploy_model: Any
    import_model: Any
    evaluate_language_model: Any
    tune: Any

    class _Package(ModuleType):
        """This package, which makes the ten components when one of them is first used.

        A component has the name of the subpackage of its step, and stands for it: see `StepComponent`.
        """

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (kfp exports no type for its components)
            if name not in Steps._fields:
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            # Another thread may have made them. Then all threads take its components.
            for step, component in steps(Delivery.from_environment(os.environ))._asdict().items():
                vars(self).setdefault(step, component)
            return vars(self)[name]

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *__all__})

        def __setattr__(self, name: str, value: object) -> None:
            # When Python imports a subpackage, it sets an attribute with its name.
            if not (name in Steps._fields and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    # https://docs.python.org/3/reference/datamodel.html#customizing-module-attribute-access
    sys.modules[__name__].__class__ = _Package
    for _step in Steps._fields:  # The imports above have set these.
        vars(sys.modules[__name__]).pop(_step, None)
