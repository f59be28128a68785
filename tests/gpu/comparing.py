"""How tests on a GPU compare numbers."""


def relative(given, expected):
    """Largest difference over largest magnitude."""
    return ((given.double() - expected.double()).abs().max() / expected.double().abs().max()).item()
