"""Export of a PyTorch network of your own as ONNX, as the built-in trainers do. This import path is public.

from kfp_distributed.trainers.torch_export import export_onnx

export_onnx(network, manifest, Path(model_dir, "model.onnx"))
"""

from kfp_distributed.trainers.torch_training.torch_network import export_onnx

__all__ = ["export_onnx"]
