"""Learning: the objective, one step of it, and which parameters decay."""
