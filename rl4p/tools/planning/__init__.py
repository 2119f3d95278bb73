"""`python -m rl4p.plan`: compiles the functions of a run and reports their cost."""
