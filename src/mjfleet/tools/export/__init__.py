"""`mjfleet export`: a policy as ONNX or TorchScript, for a robot."""
