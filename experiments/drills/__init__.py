"""Programs that cause real faults and attacks, and check how rl4p takes them."""
