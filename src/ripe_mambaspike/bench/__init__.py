"""Benchmarks: speed, memory, utilization of the machine, and agreement with the reference."""
