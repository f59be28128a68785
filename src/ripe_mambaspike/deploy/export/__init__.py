"""Export of deployed networks to other runtimes and file formats."""
