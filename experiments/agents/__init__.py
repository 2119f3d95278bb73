"""Programs that use OpenAI's client, for `rollout=agent`."""
