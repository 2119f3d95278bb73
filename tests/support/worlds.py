"""An environment and a program of several turns, for runs that name them by `_target_`."""

import httpx2


class Letters:
    """A world of three turns whose reward and state depend on the length of each message."""

    def reset(self, *, seed=None, options=None):
        self.turn, self.seed = 0, seed
        return f"World {seed % 100}.", {}

    def step(self, action):
        self.turn += 1
        reward = sum(map(ord, action)) % 7 / 7
        return f"{len(action) % 2}", reward, self.turn == 3, False, {}

    def close(self):
        pass


class PlannerAndWorker:
    """Asks in a conversation, in another one, and in the first one again."""

    def __call__(self, episode):
        planner = [{"role": "user", "content": episode.prompt.question}]
        self.ask(episode, planner)
        self.ask(episode, [{"role": "user", "content": "work"}])
        self.ask(episode, planner)
        return 1.0

    def ask(self, episode, messages):
        answer = httpx2.post(
            f"{episode.base_url}/chat/completions",
            json={"model": "any", "messages": messages, "max_tokens": 6},
            trust_env=False,
        )
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        messages += [message, {"role": "user", "content": "and now?"}]
