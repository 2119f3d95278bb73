"""The update phase: policy losses, one per file. `learner` differentiates and applies them."""
