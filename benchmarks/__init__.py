"""Timing scripts."""
