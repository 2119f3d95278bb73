"""An environment and a program of several turns, for runs that name them by `_target_`."""

import httpx2

from rl4p.protocols.environment import StepResult


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


class Duel:
    """Four messages of two players in turn; the longer one of the last two wins."""

    def reset(self, *, seed=None, options=None):
        self.lengths = []
        return "a begins", {"role": "a"}

    def step(self, action):
        self.lengths.append(len(action))
        count = len(self.lengths)
        role, reward = "ab"[count % 2], sum(map(ord, action)) % 7 / 7
        win = 1.0 if self.lengths[-1] > self.lengths[max(count - 2, 0)] else -1.0
        rewards = {"rewards": {"b": win, "a": -win}} if count == 4 else {}
        return f"{role} reads {count}", reward, count == 4, False, {"role": role} | rewards

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

    def ask(self, episode, messages, address=None):
        answer = httpx2.post(
            f"{address or episode.base_url}/chat/completions",
            json={"model": "any", "messages": messages, "max_tokens": 6},
            trust_env=False,
            timeout=120,
        )
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        messages += [message, {"role": "user", "content": "and now?"}]


class Team(PlannerAndWorker):
    """The same conversations at the addresses of two roles."""

    roles = ("planner", "worker")

    def __call__(self, episode):
        planner = [{"role": "user", "content": episode.prompt.question}]
        worker = list(planner)
        for role, messages in (("planner", planner), ("worker", worker), ("planner", planner)):
            self.ask(episode, messages, episode.addresses[role])
        said = {"planner": planner[1], "worker": worker[1]}
        worth = {role: sum(map(ord, x["content"])) % 7 / 7 for role, x in said.items()}
        return StepResult(reward=0.25, rewards=worth)
