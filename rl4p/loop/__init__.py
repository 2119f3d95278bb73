"""The training loop and its parts: phases, collectors, sources, scores, evaluation."""
