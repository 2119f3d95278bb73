"""The training step: one gradient step for all losses, and the parts that make up a loss."""
