"""The update phase: policy losses, one a file. `learner` differentiates and applies them."""
