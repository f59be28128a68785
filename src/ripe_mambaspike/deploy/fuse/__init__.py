"""Fusion of branches and norms into one kernel each, the accumulate-only form, and their verification."""

from ripe_mambaspike.deploy.fuse.convert import dual_kernel, fuse

__all__ = ["dual_kernel", "fuse"]
