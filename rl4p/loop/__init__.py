"""The loop, and the parts that it calls: phases, collectors, sources, scores, evaluation."""
