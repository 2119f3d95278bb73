"""The contracts between the parts: phases, engines, reward terms, sources, collectors, hooks."""
