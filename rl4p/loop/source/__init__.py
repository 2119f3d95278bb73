"""Sources: which prompts come next."""
