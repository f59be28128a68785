"""RIPE-MambaSpike: a compact classifier for event cameras."""
