"""The simulated camera in whole numbers: the same events to the last bit on every machine.

Levels of light and thresholds are integers, so no result depends on the order of additions, on fused instructions or
on how a library computes a logarithm. What is computed in float64 (a path, a frame) is rounded to a grid so coarse
that the last bits of different machines do not reach it. Random numbers are hashes.
"""
