"""Commands that look at runs or use a policy: compare, samples, plan, generate, regrade, serve."""
