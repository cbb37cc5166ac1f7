import pytest

from kfp_distributed.trainers.runtime.lifecycle.fatal_errors import is_lost_peer


def exception(package, name, message="no answer"):
    return type(name, (RuntimeError,), {"__module__": package})(message)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (exception("tensorflow.python.framework.errors_impl", "UnavailableError"), True),
        (exception("tensorflow.python.framework.errors_impl", "AbortedError"), True),
        (exception("tensorflow.python.framework.errors_impl", "InvalidArgumentError"), False),
        (exception("tensorflow.python.framework.errors_impl", "UnknownError"), False),
        (
            exception("tensorflow.python.framework.errors_impl", "UnknownError", "{{node Adam/HorovodAllreduce_0}}"),
            True,
        ),
        (exception("horovod.common.exceptions", "HorovodInternalError"), True),
        (exception("torch.distributed", "DistBackendError"), True),
        (exception("torch.distributed", "DistNetworkError"), True),
        (exception("torch.distributed", "DistStoreError"), True),
        (exception("torch.distributed", "DistError"), True),
        (exception("fit", "DistributionError"), False),
        (exception("fit", "DistBackendError"), False),
        (exception("torchvision", "DistBackendError"), False),
        (exception("fit", "UnavailableError"), False),
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read timeout"), True),
        (RuntimeError("Connection reset by peer"), True),
        (RuntimeError("Timed out initializing process group"), True),
        (RuntimeError("shapes do not fit"), False),
        (ValueError("Horovod initialization failed: rank 1"), True),
        (ValueError("Connection reset by peer"), False),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}" if isinstance(value, Exception) else "",
)
def test_the_package_of_an_exception_tells_a_lost_peer(error, lost):
    assert is_lost_peer(error) is lost


def test_the_classes_are_those_that_tensorflow_raises():
    errors = pytest.importorskip("tensorflow").errors
    assert is_lost_peer(errors.UnavailableError(None, None, "no answer"))
    assert is_lost_peer(errors.AbortedError(None, None, "no answer"))
