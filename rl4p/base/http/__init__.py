"""The HTTP client of rewards, of generation and of rollouts by servers."""
