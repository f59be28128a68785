"""Sets of recordings: the benchmarks and a user's own, split once and for all, stored once, read from memory maps."""
