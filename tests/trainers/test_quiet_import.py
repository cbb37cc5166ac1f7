import subprocess
import sys

from kfp_distributed.trainers.quiet_import import _FILTER

# As TensorFlow 2.15 and 2.21 print them, with and without CUDA.
REMARKS = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795413589.587977   32101 port.cc:153] oneDNN custom operations are on. You may see slightly different
E0000 00:00:1742000000.000000      14 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register
E0000 00:00:1742000000.000000      14 cuda_blas.cc:1407] Unable to register cuBLAS factory: Attempting to register
2024-11-01 10:00:00.000000: E external/local_xla/xla/cuda_fft.cc:607] Unable to register cuFFT factory: Attempting
W0000 00:00:1742000000.000000      14 computation_placer.cc:177] computation placer already registered. Please check
"""
OTHERS = """\
W0000 00:00:1742000000.000000      14 gpu_device.cc:2341] Cannot dlopen some GPU libraries.
E0000 00:00:1742000000.000000      14 cuda_executor.cc:1228] failed call to cuInit: no CUDA-capable device is detected
F0000 00:00:1742000000.000000      14 cpu_feature_guard.cc:85] The TensorFlow library was compiled to use AVX
ImportError: libcudart.so.12: cannot open shared object file
"""


def test_remarks_are_dropped_and_all_else_is_kept():
    argv = [sys.executable, "-IS", "-c", _FILTER]
    printed = subprocess.run(argv, input=REMARKS + OTHERS, capture_output=True, text=True, check=True)
    assert printed.stdout == OTHERS
