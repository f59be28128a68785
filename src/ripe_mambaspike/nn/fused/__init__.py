"""The network over the fused operators: the same modules' weights, channels together in memory, bytes for spikes.

Everything here is a function of a module (or of a plan made from it once) and a tensor `[B, T, H, W, C]`. The results
are those of the modules' own `forward` up to rounding; that is the reference these are tested against.
"""
