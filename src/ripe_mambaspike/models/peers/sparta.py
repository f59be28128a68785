"""SPARTA: attention among the tokens that fire early, often and in quick succession. Not built: see what is missing.

M. Jang, C. Kim: "SPARTA: Advancing Sparse Attention in Spiking Neural Networks via Spike-Timing-Based Prioritization",
arXiv 2508.01646, 2025. Table 1 quotes it with 13.80 M parameters, 98.78 % on DVS-Gesture and 83.06 % on CIFAR10-DVS.

What is known:

    HI-LIF   leaky neurons whose time constant and threshold start at a value of its own in every channel
    STEN     the encoder: convolutions, a 1×1 convolution and an adaptive pool; most of the network's operations
    cues     of every token: the time of its first spike, the intervals between its spikes, and its firing rate
    gate     the K tokens of highest priority by these cues; 65.4 % of all tokens are left out
    layer    an attention among the K tokens alone, O(K²) instead of O(N²), and Linear layers

What is missing, so that no network of this size can be called theirs:

    - layers, widths, kernels and strides of STEN, and the grid of tokens that it ends in
    - the width of a token, the number of attention layers and of heads, the width of the MLP
    - the means of HI-LIF's time constants and thresholds, and whether they are learned
    - how the three cues are scaled and weighted, K, and how a gradient passes the gate
    - the steps between encoder and attention that group patches and combine scales
    - whether the attention reads spikes or real numbers

Any of these moves the 13.80 M: widths that reach the number would be chosen for it alone. The file registers nothing.
"""
