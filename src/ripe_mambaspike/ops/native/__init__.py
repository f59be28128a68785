"""The fused operators in C++, for CPUs; built on first use by PyTorch's extension loader."""
