"""Training: recipes, the objective, the trainer, checkpoints. `ripe_mambaspike.train(...)` is `train.run.train`."""

from ripe_mambaspike.callable_package import make_callable

make_callable(__name__, "run", "train")
