"""The job of `python -m rl4p.generate`: responses of a policy or a server, graded and selected."""
