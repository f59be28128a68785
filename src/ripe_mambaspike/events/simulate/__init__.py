"""A simulated event camera: scenes of light, and the pixel that watches them.

A scene gives light over time, (batch, times, height, width). The pixel turns it into events, or straight into counts.
"""
