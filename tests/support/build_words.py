"""Configurations that parts of a run are built of."""

SMALL = (
    *("model=scratch", "model.width=32", "model.layers=1", "model.heads=2"),
    *("data.train_size=20", "data.held_out_size=4", "prompts_per_step=4", "group_size=2"),
)
