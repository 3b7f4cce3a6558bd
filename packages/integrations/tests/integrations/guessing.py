"""An agent that knows the words of `openenv_foreign_checks.py`."""

WORDS = ["red", "blue", "green", "black", "white"]


class Guess:
    def __init__(self, task):
        pass

    def act(self, observation, history):
        return WORDS[len(history)]
