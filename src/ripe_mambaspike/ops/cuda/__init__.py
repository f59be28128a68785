"""The fused operators as Triton kernels, for NVIDIA GPUs."""
