"""Questions, and the checkpointable stream of prompts made from them."""
