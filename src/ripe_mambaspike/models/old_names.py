"""Names of config fields and tensors in networks saved by earlier versions, and what they are called now."""

_COMMON = {"num_classes": "num_classes", "time_steps": "time_steps", "in_size": "in_size"}
CONFIG_FIELDS: dict[str, dict[str, str]] = {
    "ripe-mambaspike": {
        **_COMMON,
        "num_tokens": "num_tokens",
        "embed_dims": "embed_dims",
        "drop_path_rate": "drop_path_rate",
        "head_hidden_size": "head_hidden_size",
    },
    "mamba-spike": {
        **_COMMON,
        "embed_dim": "embed_dim",
        "depth": "depth",
        "pool_size": "pool_size",
        "rate_window": "rate_window",
    },
}
