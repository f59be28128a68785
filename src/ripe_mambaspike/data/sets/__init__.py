"""The benchmarks, one module each: `listing(root, files) → Listing`, a pure function of the files' names."""

from ripe_mambaspike.data.sets.registry import SETS, SIMULATED, SetFacts, find_set, list_set

__all__ = ["SETS", "SIMULATED", "SetFacts", "find_set", "list_set"]
