"""The network's operators: pure functions with their state in and out, `initial_state=None → (out, final_state)`.

Glossary (symbol in the paper: word here): T steps, C channels, N = H·W positions; x input, U `potential`, S
`spikes`, λ `coefficient`, A `attention`, γ `gain`; Δ `delta`, A `decay`, B `input_weight`, C `output_weight`.
"""

from ripe_mambaspike.ops.mamba_inner.scan import selective_scan
from ripe_mambaspike.ops.membrane_attention.feature_maps import positive_feature
from ripe_mambaspike.ops.membrane_attention.reference import convex_attention, ds_mpa
from ripe_mambaspike.ops.neurons import csilif, lif, silif
from ripe_mambaspike.ops.pooled_rates.reference import cumulative_rates
from ripe_mambaspike.ops.tdm import shift, tdm

__all__ = [
    "convex_attention",
    "csilif",
    "cumulative_rates",
    "ds_mpa",
    "lif",
    "positive_feature",
    "selective_scan",
    "shift",
    "silif",
    "tdm",
]
