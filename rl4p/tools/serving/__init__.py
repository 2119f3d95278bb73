"""What `python -m rl4p.serve` has beside the server for agents: control, weights, options."""
