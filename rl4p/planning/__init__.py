"""What `python -m rl4p.plan` does: compiles the functions of a run, and reads what they cost."""
