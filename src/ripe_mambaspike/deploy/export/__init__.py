"""One file a format: whether it can be used here, how a graph is saved in it, and how it is run by its own runtime."""
