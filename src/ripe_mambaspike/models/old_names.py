"""Names of config fields and tensors in networks saved by earlier versions, and what they are called now."""

_COMMON = {"classes": "num_classes", "steps": "time_steps", "resolution": "in_size"}
CONFIG_FIELDS: dict[str, dict[str, str]] = {
    "ripe-mambaspike": {
        **_COMMON,
        "tokens": "num_tokens",
        "hierarchy_widths": "embed_dims",
        "drop_path": "drop_path_rate",
        "head_width": "head_hidden_size",
    },
    "mamba-spike": {
        **_COMMON,
        "width": "embed_dim",
        "blocks": "depth",
        "pooled": "pool_size",
        "window": "rate_window",
    },
}
