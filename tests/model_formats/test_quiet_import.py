import os
import re
import subprocess
import sys

import pytest

from kfp_distributed.components.model_formats.quiet_import import STARTUP_REMARK, quiet_tensorflow

# As TensorFlow 2.15 and 2.21 print them, with and without CUDA.
REMARKS = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795413589.587977   32101 port.cc:153] oneDNN custom operations are on. You may see slightly different
I0000 00:00:1795413589.587977   32101 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available CPU instructions in performance-critical operations.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate compiler
E0000 00:00:1742000000.000000      14 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register
E0000 00:00:1742000000.000000      14 cuda_blas.cc:1407] Unable to register cuBLAS factory: Attempting to register
2024-11-01 10:00:00.000000: E external/local_xla/xla/cuda_fft.cc:607] Unable to register cuFFT factory: Attempting
W0000 00:00:1742000000.000000      14 computation_placer.cc:177] computation placer already registered. Please check
"""  # noqa: E501
OTHERS = """\
I1123 06:30:00.000000 140 program.py:12] a line of absl's logging
W0000 00:00:1742000000.000000      14 gpu_device.cc:2341] Cannot dlopen some GPU libraries.
E0000 00:00:1742000000.000000      14 cuda_executor.cc:1228] failed call to cuInit: no CUDA-capable device is detected
F0000 00:00:1742000000.000000      14 cpu_feature_guard.cc:85] The TensorFlow library was compiled to use AVX
ImportError: libcudart.so.12: cannot open shared object file
"""


def test_the_pattern_matches_all_remarks_and_no_other_line():
    assert all(re.search(STARTUP_REMARK, line) for line in REMARKS.splitlines())
    assert not any(re.search(STARTUP_REMARK, line) for line in OTHERS.splitlines())


@pytest.mark.parametrize(("level", "printed"), [("2", OTHERS), ("0", REMARKS + OTHERS)])
def test_remarks_are_hidden_only_while_tensorflow_is_imported(capfd, monkeypatch, level, printed):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    with quiet_tensorflow():
        os.write(2, (REMARKS + OTHERS).encode())
    os.write(2, REMARKS.encode())
    assert capfd.readouterr().err == printed + REMARKS


def test_a_failing_import_raises_its_error_and_restores_stderr(capfd, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    with pytest.raises(ImportError, match="libcudart"), quiet_tensorflow():
        raise ImportError("libcudart.so.12")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def test_ctrl_c_during_the_import_prints_one_traceback():
    # In a group of its own, as in a terminal.
    program = (
        "import os, signal\n"
        "from kfp_distributed.components.model_formats.quiet_import import quiet_tensorflow\n"
        "with quiet_tensorflow():\n"
        "    os.write(2, b'importing\\n')\n"
        "    os.killpg(0, signal.SIGINT)\n"
        "    signal.pause()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, start_new_session=True)
    assert ended.stderr.startswith("importing\n")
    assert ended.stderr.count("Traceback") == 1
