"""Branches and norms become one kernel each; the accumulate-only form; and the proof that nothing changed."""

from ripe_mambaspike.deploy.fuse.convert import dual_kernel, fuse

__all__ = ["dual_kernel", "fuse"]
