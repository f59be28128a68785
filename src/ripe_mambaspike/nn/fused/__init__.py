"""The network over the fused operators: the same modules' weights, channels-last activations, spikes as bytes.

Everything here is a function of a module (or of a plan made from it once) and a tensor `[B, T, H, W, C]`. The results
equal those of the modules' own `forward` up to rounding, which they are tested against.
"""
