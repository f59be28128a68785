"""The networks: configs, the registry, and weights on disk."""
