"""The formats of `ripe export`, one file each; see `deploy.export.registry`."""
