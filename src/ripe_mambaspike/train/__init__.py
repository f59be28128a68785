"""Training: recipes, the loss, the training loop, checkpoints, and whole runs. `train(recipe)` trains by a recipe."""

from ripe_mambaspike.callable_package import make_callable

make_callable(__name__, "run", "train")
