"""Measuring: how fast, in how much memory, how close to what this machine can do, and whether the result is right."""
