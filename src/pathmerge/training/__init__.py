"""Training: the loop, its schedule and curriculum, checkpoints, and what a run writes as it goes."""
