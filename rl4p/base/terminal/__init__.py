"""What rl4p prints: text of others is shown on the terminal, and never acts on it."""
