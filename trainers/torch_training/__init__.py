"""The trainings of PyTorch: network, loop, resume, and models that are divided among ranks.

Rows and parameters come in, and an ONNX model goes out. torch_classifier and torch_horovod add the strategy.
"""
