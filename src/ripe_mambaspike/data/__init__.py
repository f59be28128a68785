"""Datasets: the benchmarks and your own recordings, with fixed splits, decoded once into a memory-mapped store."""
