"""The loop of the SQL experiments of 2023: an action, then its reward, on one connection."""

from intercode_paper.sql_env import score


class Experiment:
    """Tasks on one connection, which `MySQLConnectorConnection` and `score` are tested through."""

    def __init__(self, databases, tasks):
        self.connection = databases.connect()
        self.tasks = tasks

    def reset(self, row):
        """Go to a task's database."""
        self.task = self.tasks[row]
        self.connection.use(self.task.db)
        self.answer = self.task.query

    def step(self, action):
        """Execute an action; return its answer."""
        self.answer = self.connection.execute(action)
        return self.answer

    def turn(self, action):
        """Execute an action; return its answer, its reward, and the `info` of 2023."""
        answer = self.step(action)
        result = score(answer, self.connection.execute(self.task.gold[0]))
        return answer, result.value, result.detail

    def close(self):
        self.connection.close()
