"""The training step: one gradient step for all losses, and everything that joins the loss."""
