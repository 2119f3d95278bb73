"""The update phase: policy losses, and the one gradient step that they share."""
